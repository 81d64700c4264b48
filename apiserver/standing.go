package apiserver

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// standing ends watches, logs and streams into pods whose user has lost the right to
// them: what lasts is asked about again whenever roles change.
type standing struct {
	next        http.Handler
	longRunning request.LongRunningRequestCheck
	rights      *rights
	backend     Backend

	mu   sync.Mutex
	open map[*lasting]struct{}
}

// lasting is a request that lasts.
type lasting struct {
	ctx  context.Context
	asks authorizer.Attributes
	end  context.CancelFunc
}

// askAgainEvery bounds how often all that lasts is asked about.
const askAgainEvery = time.Second

func (s *standing) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	info, ok := request.RequestInfoFrom(ctx)
	if !ok || !s.longRunning(req, info) {
		s.next.ServeHTTP(w, req)
		return
	}
	asks, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		responsewriters.InternalError(w, req, err)
		return
	}
	l := &lasting{asks: asks}
	l.ctx, l.end = context.WithCancel(ctx)
	defer l.end()
	s.mu.Lock()
	s.open[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.open, l)
		s.mu.Unlock()
	}()
	// What changed since it was let in was not asked of it, because it was not among the others.
	if why, lost := s.lost(l); lost {
		responsewriters.Forbidden(asks, w, req, why, legacyscheme.Codecs)
		return
	}
	s.next.ServeHTTP(w, req.WithContext(l.ctx))
}

// lost says whether a request would be refused by now. Who cannot be asked about goes on.
func (s *standing) lost(l *lasting) (why string, lost bool) {
	decision, why, err := s.rights.Authorize(l.ctx, l.asks)
	return why, decision != authorizer.DecisionAllow && err == nil
}

// run follows the state until ctx ends.
func (s *standing) run(ctx context.Context) {
	at := s.backend.View().Revision()
	for ctx.Err() == nil {
		changes, err := s.backend.Feed().After(at, dispatchBatch)
		switch {
		case err != nil: // the state was restored, or changed too fast
			at = s.backend.View().Revision()
		case len(changes) == 0:
			_ = s.backend.Feed().Wait(ctx, at) // looked at again in any case
			continue
		default:
			at = changes[len(changes)-1].Revision
			if !concernRoles(changes) {
				continue
			}
		}
		s.askAgain()
		select {
		case <-ctx.Done():
		case <-time.After(askAgainEvery):
		}
	}
}

func concernRoles(changes []store.Change) bool {
	for i := range changes {
		for _, row := range []any{changes[i].Old, changes[i].New} {
			if o, ok := row.(*fsm.Object); ok && o != nil && (fsm.IsRole(o.Resource) || fsm.RevokedNode(o) != "") {
				return true
			}
		}
	}
	return false
}

func (s *standing) askAgain() {
	s.mu.Lock()
	open := make([]*lasting, 0, len(s.open))
	for l := range s.open {
		open = append(open, l)
	}
	s.mu.Unlock()
	for _, l := range open {
		if _, lost := s.lost(l); lost {
			l.end()
		}
	}
}
