package apiserver

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/apiserver/noderights"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// standing ends watches, logs and streams into pods whose user has lost the right to
// them, or is not who he was: what lasts is asked about again whenever roles change, and
// its credential is checked again.
type standing struct {
	next        http.Handler
	longRunning request.LongRunningRequestCheck
	rights      authorizer.Authorizer
	backend     Backend
	credentials *credentials

	mu   sync.Mutex
	open map[string]map[*lasting]struct{} // by the node that asks; of all others under ""
}

// lasting is a request that lasts.
type lasting struct {
	node string
	ctx  context.Context
	asks authorizer.Attributes
	who  user.Info // who has made the request, whomever he acts as
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
	l.node, _ = noderights.NodeOf(asks.GetUser())
	l.ctx, l.end = context.WithCancel(ctx)
	defer l.end()
	s.add(l)
	defer s.remove(l)
	defer s.credentials.hold(ctx, l)()
	// What changed since it was let in was not asked of it, because it was not among the others.
	if why, lost, _ := s.lost(l); lost {
		responsewriters.Forbidden(asks, w, req, why, legacyscheme.Codecs)
		return
	}
	s.next.ServeHTTP(w, req.WithContext(l.ctx))
}

func (s *standing) add(l *lasting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[l.node] == nil {
		s.open[l.node] = map[*lasting]struct{}{}
	}
	s.open[l.node][l] = struct{}{}
}

func (s *standing) remove(l *lasting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.open[l.node], l); len(s.open[l.node]) == 0 {
		delete(s.open, l.node)
	}
}

// lost says whether a request would be refused by now. Whoever cannot be asked about goes on until it is known.
func (s *standing) lost(l *lasting) (why string, lost, unknown bool) {
	decision, why, err := s.rights.Authorize(l.ctx, l.asks)
	if decision == authorizer.DecisionAllow {
		return why, false, false
	}
	return why, err == nil, err != nil
}

// run follows the state until ctx ends.
func (s *standing) run(ctx context.Context) {
	at := s.backend.View().Revision()
	var unknown map[*lasting]struct{} // what is asked about until there is an answer
	for ctx.Err() == nil {
		var concerned concern
		if concerned, at = s.changedSince(at); concerned.none() && len(unknown) == 0 {
			_ = s.backend.Feed().Wait(ctx, at) // looked at again in any case
			continue
		}
		unknown = s.askAgain(ctx, concerned, unknown)
		select {
		case <-ctx.Done():
		case <-time.After(askAgainEvery):
		}
	}
}

// changedSince goes through everything that changed since a revision, and says whom it concerns and up to which revision.
func (s *standing) changedSince(at int64) (concerned concern, until int64) {
	for {
		changes, err := s.backend.Feed().After(at, dispatchBatch)
		switch {
		case err != nil: // the state was restored, or changed too fast
			s.credentials.changedAll()
			return concern{all: true}, s.backend.View().Revision()
		case len(changes) == 0:
			return concerned, at
		}
		at = changes[len(changes)-1].Revision
		concerned.add(s.concernedBy(changes))
		s.credentials.changed(changes)
	}
}

// concern is whose rights changes may have ended: everybody's, or those of some nodes.
type concern struct {
	all   bool
	nodes map[string]bool
}

func (c *concern) none() bool { return !c.all && len(c.nodes) == 0 }

func (c *concern) add(d concern) {
	c.all = c.all || d.all
	if c.nodes == nil {
		c.nodes = d.nodes
	} else {
		maps.Copy(c.nodes, d.nodes)
	}
}

// concernedBy: roles are everybody's. A node loses rights when a pod leaves it.
func (s *standing) concernedBy(changes []store.Change) concern {
	c := concern{nodes: map[string]bool{}}
	for i := range changes {
		if pod, ok := changes[i].Old.(*corev1.Pod); ok && pod != nil {
			now, _ := changes[i].New.(*corev1.Pod)
			if now == nil || now.UID != pod.UID || now.Spec.NodeName != pod.Spec.NodeName {
				c.nodes[pod.Spec.NodeName] = true
			}
			continue
		}
		for _, row := range []any{changes[i].Old, changes[i].New} {
			if o, ok := row.(*fsm.Object); ok && o != nil && (fsm.IsRole(o.Resource) || fsm.RevokedNode(o) != "") {
				c.all = true
			}
		}
	}
	delete(c.nodes, "")
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(c.nodes, func(node string, _ bool) bool { return len(s.open[node]) == 0 })
	return c
}

// askAgain asks about what changes concern, and about what nobody could say of before; it gives that of which nobody can say
// now. When one cannot be told the others are not asked: each would wait as long.
func (s *standing) askAgain(ctx context.Context, concerned concern, before map[*lasting]struct{}) (unknown map[*lasting]struct{}) {
	s.mu.Lock()
	var open []*lasting
	for node, asking := range s.open {
		for l := range asking {
			if _, again := before[l]; again || concerned.all || concerned.nodes[node] {
				open = append(open, l)
			}
		}
	}
	s.mu.Unlock()
	unknown = map[*lasting]struct{}{}
	for _, l := range open {
		if len(unknown) > 0 || ctx.Err() != nil {
			unknown[l] = struct{}{}
			continue
		}
		_, lost, untold := s.lost(l)
		switch {
		case lost:
			l.end()
		case untold && l.ctx.Err() == nil:
			unknown[l] = struct{}{}
		}
	}
	return unknown
}
