package apiserver

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// userShare bounds what one user has at work at a time, of what priority and fairness lets in. Users of a level take turns at its
// queues, but who has been let in stays until his request is answered, and lists for slow readers, slow bodies and slow webhooks
// take long: without a bound one user would have all seats of a level, and others would wait for him. Who waits here has no seat.
type userShare struct {
	most, lists int // requests, and those of them that list
	calm        int // so many requests are few

	mu    sync.Mutex
	users map[string]*atWork
}

// atWork is one user's.
type atWork struct {
	requests, lists int
	plans           int
	waiting         []*waiter // in the order in which they came
}

type waiter struct {
	lists int // 1: it lists
	plans int // 1: it plans
	ready chan struct{}
}

// A level that takes everybody who is in no other (global-default) has a twelfth of all seats. One user has half of it, and a
// quarter of that for lists, each of which may need several seats.
const (
	sharesOfUsers     = 24
	leastShare        = 8
	listsOfShare      = 4
	leastListsOfShare = 2
	// calmOfProcessor is how much one user may have at work for each processor before it is charged.
	calmOfProcessor = 2
)

func newUserShare(maxRequests int) *userShare {
	most := max(leastShare, maxRequests/sharesOfUsers)
	return &userShare{
		most: most, lists: max(leastListsOfShare, most/listsOfShare), calm: min(most, calmOfProcessor*runtime.GOMAXPROCS(0)), users: map[string]*atWork{},
	}
}

// begin waits until the user has room for a request, and gives what ends it; an error is the context's. crowded: he has more at work than
// others would not notice, or more of his requests wait for room.
func (u *userShare) begin(ctx context.Context, user string, info *request.RequestInfo) (crowded bool, end func(), err error) {
	w := &waiter{ready: make(chan struct{})}
	// A watch is at work until it has sent what is there.
	if info.IsResourceRequest && (info.Verb == "list" || info.Verb == "watch") && info.Name == "" {
		w.lists = 1
	} else if isPlan(info) {
		w.plans = 1
	}
	end = func() { u.end(user, w) }
	u.mu.Lock()
	s := u.users[user]
	if s == nil {
		s = &atWork{}
		u.users[user] = s
	}
	s.waiting = append(s.waiting, w)
	u.admit(s)
	u.mu.Unlock()
	select {
	case <-w.ready:
	default:
		select {
		case <-w.ready:
		case <-ctx.Done():
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if at := slices.Index(s.waiting, w); at >= 0 {
		s.waiting = slices.Delete(s.waiting, at, at+1)
		u.forget(user, s)
		return false, nil, ctx.Err()
	}
	return s.requests > u.calm || len(s.waiting) > 0, end, nil
}

// admit lets in who waits, as far as there is room: a list or a plan that has to wait holds nobody up who asks for something else.
func (u *userShare) admit(s *atWork) {
	s.waiting = slices.DeleteFunc(s.waiting, func(w *waiter) bool {
		if s.requests >= u.most || w.lists > 0 && s.lists >= u.lists || w.plans > 0 && s.plans >= plansOfUser {
			return false
		}
		s.requests++
		s.lists += w.lists
		s.plans += w.plans
		close(w.ready)
		return true
	})
}

func (u *userShare) end(user string, w *waiter) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.users[user]
	s.requests--
	s.lists -= w.lists
	s.plans -= w.plans
	u.admit(s)
	u.forget(user, s)
}

func (u *userShare) forget(user string, s *atWork) {
	if s.requests == 0 && len(s.waiting) == 0 {
		delete(u.users, user)
	}
}
