package apiserver

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/access"
)

// turns are who may compute lists of many objects: at most half of the processors do, so that what others ask is answered
// beside them. Users follow one another, however many lists each has asked for. A turn lasts until there is something to
// send, or somebody else has waited for turnRows; nobody has one while a client is waited for.
type turns struct {
	contended atomic.Bool // somebody waits
	pace      pace
	plans     *turns // that are in memory, with a turn or without

	mu    sync.Mutex
	free  int
	users []*turnQueue // those who wait, in the order of their turns
}

// turnQueue is one user's wait.
type turnQueue struct {
	user    string
	waiting []chan struct{} // closed when it is that one's turn
}

const (
	// rowsWithoutTurn are looked at, and shown, without waiting for anybody.
	rowsWithoutTurn = 128
	// turnRows are looked at before a turn goes to whoever waits.
	turnRows = 64
	// turnSlice is computed before it is asked whether the user has enough left (pace), where a list is made row by row.
	turnSlice = time.Millisecond
)

func newTurns() *turns {
	return &turns{free: max(1, runtime.GOMAXPROCS(0)/2), pace: newPace(), plans: &turns{free: plansAtWork}}
}

// take waits for a turn.
func (t *turns) take(ctx context.Context, user string) error {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	at := slices.IndexFunc(t.users, func(q *turnQueue) bool { return q.user == user })
	if at < 0 {
		at = len(t.users)
		t.users = append(t.users, &turnQueue{user: user})
	}
	t.users[at].waiting = append(t.users[at].waiting, mine)
	t.contended.Store(true)
	t.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	if !t.forget(user, mine) {
		t.done() // it was given meanwhile
	}
	return ctx.Err()
}

// forget takes one who waits out of the queue; false: it was his turn already.
func (t *turns) forget(user string, mine chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, q := range t.users {
		if at := slices.Index(q.waiting, mine); q.user == user && at >= 0 {
			if q.waiting = slices.Delete(q.waiting, at, at+1); len(q.waiting) == 0 {
				t.users = slices.Delete(t.users, i, i+1)
			}
			t.contended.Store(len(t.users) > 0)
			return true
		}
	}
	return false
}

// done ends a turn: it is the next user's, and he comes last again.
func (t *turns) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.users) == 0 {
		t.free++
		return
	}
	q := t.users[0]
	next := q.waiting[0]
	q.waiting = slices.Delete(q.waiting, 0, 1)
	t.users = slices.Delete(t.users, 0, 1)
	if len(q.waiting) > 0 {
		t.users = append(t.users, q)
	}
	t.contended.Store(len(t.users) > 0)
	close(next)
}

// turn is a request's part in them. Its methods are for one goroutine; of nil they do nothing.
type turn struct {
	all    *turns
	user   string
	paced  bool // his account is asked
	looked int  // rows
	held   bool
	began  time.Time // since when it is held, or was last asked about
	taken  bool      // once: the request is one of many rows
}

// newTurn is the part of a request that lists or watches; others have none, and what waits for nobody (flowControl) has none either.
func (t *turns) newTurn(req *http.Request, info *request.RequestInfo) *turn {
	if info == nil || !info.IsResourceRequest || info.Verb != "list" && info.Verb != "watch" {
		return nil
	}
	return t.turnOf(req.Context())
}

// turnOf is a part of whoever makes a request.
func (t *turns) turnOf(ctx context.Context) *turn {
	mine := &turn{all: t, paced: true}
	if who, ok := request.UserFrom(ctx); ok {
		if isController(who) {
			return nil
		}
		mine.user, mine.paced = who.GetName(), !slices.Contains(who.GetGroups(), access.Masters)
	}
	return mine
}

// look is called before each row that is looked at or shown: the request waits for its turn when there are many.
func (t *turn) look(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if t.looked++; t.looked <= rowsWithoutTurn {
		return nil
	}
	t.taken = true
	if t.looked%turnRows == 0 && t.all.contended.Load() || t.overdrawn() {
		t.pause()
	}
	return t.resume(ctx)
}

// overdrawn says whether the user has nothing left, once a slice was computed.
func (t *turn) overdrawn() bool {
	if !t.held || !t.paced || time.Since(t.began) < turnSlice {
		return false
	}
	t.charge()
	return t.all.pace.try(t.user, 0) > 0
}

func (t *turn) charge() {
	now := time.Now()
	if t.paced {
		t.all.pace.charge(t.user, now.Sub(t.began))
	}
	t.began = now
}

// pause ends the turn for as long as the request waits for somebody.
func (t *turn) pause() {
	if t != nil && t.held {
		t.held = false
		t.charge()
		t.all.done()
	}
}

// resume waits for the next turn, if the request needs one.
func (t *turn) resume(ctx context.Context) error {
	if t == nil || !t.taken || t.held {
		return nil
	}
	for {
		if t.paced {
			if err := t.all.pace.take(ctx, t.user, 0); err != nil {
				return err
			}
		}
		if err := t.all.take(ctx, t.user); err != nil {
			return err
		}
		if !t.paced || t.all.pace.try(t.user, 0) <= 0 {
			break
		}
		t.all.done() // the user's others have used up what was left
	}
	t.held, t.began = true, time.Now()
	return nil
}

// do does something in a turn of its own, for another goroutine than that which has this one.
func (t *turn) do(ctx context.Context, f func()) error {
	own := turn{all: t.all, user: t.user, paced: t.paced, taken: true}
	if err := own.resume(ctx); err != nil {
		return err
	}
	defer own.pause()
	f()
	return nil
}

// turnWriter writes to a client without a turn. What encodes and compresses is before it.
type turnWriter struct {
	http.ResponseWriter
	ctx  context.Context
	turn *turn
}

// Unwrap is for http.ResponseController.
func (w turnWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w turnWriter) Write(b []byte) (int, error) {
	w.turn.pause()
	n, err := w.ResponseWriter.Write(b)
	if err != nil {
		return n, err
	}
	return n, w.turn.resume(w.ctx)
}

// Flush implements http.Flusher.
func (w turnWriter) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}
