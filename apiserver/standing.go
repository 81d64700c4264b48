package apiserver

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/access/lasting"
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

	open lasting.Open[*lastingRequest] // by the node that asks

	mu     sync.Mutex
	unsure []*lastingRequest  // nobody could say of them whether they may go on; they are asked about until there is an answer
	wake   context.CancelFunc // ends what run waits for
}

type lastingRequest struct {
	node string
	ctx  context.Context
	asks authorizer.Attributes
	who  user.Info // who has made the request, whomever he acts as
	end  context.CancelFunc

	mu   sync.Mutex
	also []func(ctx context.Context) error // what it was let in by besides; an error says that it would be refused, or that nobody knows
}

type lastingKey struct{}

// alsoAsk has what lasts asked about by one thing more, for as long as it lasts. An error is forbidden if the answer is no.
func alsoAsk(ctx context.Context, ask func(ctx context.Context) error) {
	l, ok := ctx.Value(lastingKey{}).(*lastingRequest)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.also = append(l.also, ask)
}

func (l *lastingRequest) others() []func(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.also)
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
	l := &lastingRequest{asks: asks}
	l.node, _ = noderights.NodeOf(asks.GetUser())
	l.ctx, l.end = context.WithCancel(context.WithValue(ctx, lastingKey{}, l))
	defer l.end()
	if ask := s.mayActAs(req); ask != nil {
		alsoAsk(l.ctx, ask)
	}
	defer s.open.Add(l.node, l)()
	defer s.credentials.hold(ctx, l)()
	// What changed since it was let in was not asked of it, because it was not among the others.
	switch why, lost, unknown := s.lost(l); {
	case lost:
		responsewriters.Forbidden(asks, w, req, why, legacyscheme.Codecs)
		return
	case unknown:
		s.askLater(l)
	}
	s.next.ServeHTTP(w, req.WithContext(l.ctx))
}

// askLater has requests asked about until there is an answer.
func (s *standing) askLater(unsure ...*lastingRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsure = append(s.unsure, unsure...)
	if s.wake != nil {
		s.wake()
	}
}

// lost says whether a request would be refused by now. Whoever cannot be asked about goes on until it is known.
func (s *standing) lost(l *lastingRequest) (why string, lost, unknown bool) {
	decision, why, err := s.rights.Authorize(l.ctx, l.asks)
	if decision != authorizer.DecisionAllow {
		return why, err == nil, err != nil
	}
	for _, ask := range l.others() {
		if err := ask(l.ctx); err != nil {
			no := apierrors.IsForbidden(err)
			return err.Error(), no, !no
		}
	}
	return why, false, false
}

// run follows the state until ctx ends.
func (s *standing) run(ctx context.Context) {
	at := s.backend.View().Revision()
	for ctx.Err() == nil {
		var concerned concern
		if concerned, at = s.changedSince(at); concerned.none() && !s.isUnsure() {
			s.await(ctx, at)
			continue
		}
		s.askAgain(ctx, concerned)
		select {
		case <-ctx.Done():
		case <-time.After(askAgainEvery):
		}
	}
}

func (s *standing) isUnsure() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unsure) > 0
}

// await returns when there are changes after a revision, or somebody of whom nobody could say.
func (s *standing) await(ctx context.Context, at int64) {
	ctx, wake := context.WithCancel(ctx)
	defer wake()
	s.mu.Lock()
	s.wake = wake
	unsure := len(s.unsure) > 0
	s.mu.Unlock()
	if !unsure {
		_ = s.backend.Feed().Wait(ctx, at) // looked at again in any case
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
	maps.DeleteFunc(c.nodes, func(node string, _ bool) bool { return !s.open.Has(node) })
	return c
}

// askAgain asks about what changes concern, and about what nobody could say of before. When one cannot be told the others are
// not asked, and are as unsure: each would wait as long.
func (s *standing) askAgain(ctx context.Context, concerned concern) {
	s.mu.Lock()
	ask := map[*lastingRequest]struct{}{}
	for _, l := range s.unsure {
		ask[l] = struct{}{}
	}
	s.unsure = nil
	s.mu.Unlock()
	if concerned.all {
		concerned.nodes = map[string]bool{"": true}
	}
	for node := range concerned.nodes {
		for _, l := range s.open.Of(node) {
			ask[l] = struct{}{}
		}
	}
	var unsure []*lastingRequest
	for l := range ask {
		if l.ctx.Err() != nil { // it has ended
			continue
		}
		if len(unsure) > 0 || ctx.Err() != nil {
			unsure = append(unsure, l)
			continue
		}
		_, lost, unknown := s.lost(l)
		switch {
		case lost:
			l.end()
		case unknown && l.ctx.Err() == nil:
			unsure = append(unsure, l)
		}
	}
	s.askLater(unsure...)
}
