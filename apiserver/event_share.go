package apiserver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/berth-dev/berth/access"
)

// Events are kept in one ring: who writes many takes the place of others'. So each user has a share, far above what an honest kubelet or
// controller tells.
const (
	eventsPerSecond = 50
	eventsAtOnce    = 1000
	// maxEventShares is of how many users is known what they have left. Of whoever has all of it nothing has to be known.
	maxEventShares = 4096
)

// eventShare is an admission plugin: it bounds how many events a user writes.
type eventShare struct {
	now func() time.Time

	mu    sync.Mutex
	users map[string]*rate.Limiter
}

var _ admission.MutationInterface = (*eventShare)(nil)

func newEventShare(now func() time.Time) *eventShare {
	return &eventShare{now: now, users: map[string]*rate.Limiter{}}
}

// Handles implements admission.Interface.
func (*eventShare) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Admit implements admission.MutationInterface. It changes nothing.
func (e *eventShare) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if _, ok := a.GetObject().(*core.Event); !ok {
		return nil
	}
	who := sharer(a.GetUserInfo())
	if who == "" || e.take(who) {
		return nil
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("%s has written %d events, and may write %d more a second", who, eventsAtOnce, eventsPerSecond), retryAfterSeconds)
}

// sharer is whose share a user has; empty: nobody's, he is not bound. Whoever may make service accounts makes many: those of one
// namespace share one.
func sharer(who user.Info) string {
	if who == nil || isController(who) {
		return ""
	}
	for _, group := range who.GetGroups() {
		if group == access.Masters {
			return ""
		}
	}
	name := who.GetName()
	if strings.HasPrefix(name, serviceaccount.ServiceAccountUsernamePrefix) {
		if namespace, _, err := serviceaccount.SplitUsername(name); err == nil {
			return fmt.Sprintf("namespace %q, of all its service accounts,", namespace)
		}
	}
	return fmt.Sprintf("user %q", name)
}

// take takes one event of somebody's share, if there is one.
func (e *eventShare) take(who string) bool {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.users[who]
	if l == nil {
		e.makeRoom(now)
		l = rate.NewLimiter(eventsPerSecond, eventsAtOnce)
		e.users[who] = l
	}
	return l.AllowN(now, 1)
}

// makeRoom forgets those who have all of their share, or else who has most of it, where too many are known.
func (e *eventShare) makeRoom(now time.Time) {
	if len(e.users) < maxEventShares {
		return
	}
	most, has := "", -1.0
	for who, l := range e.users { // order does not matter: of those who have as much it is one or another
		switch left := l.TokensAt(now); {
		case left >= eventsAtOnce:
			delete(e.users, who)
		case left > has:
			most, has = who, left
		}
	}
	if len(e.users) >= maxEventShares {
		delete(e.users, most)
	}
}
