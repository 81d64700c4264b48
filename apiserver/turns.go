package apiserver

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/access"
)

// turns are who may compute lists of many objects: at most half of the processors do, so that what others ask is answered
// beside them. Users follow one another, however many lists each has asked for. A turn lasts until there is something to
// send, or somebody else has waited for turnRows; nobody has one while a client is waited for.
type turns struct {
	contended atomic.Bool // somebody waits

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
)

func newTurns() *turns { return &turns{free: max(1, runtime.GOMAXPROCS(0)/2)} }

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

// do does something in a turn.
func (t *turns) do(ctx context.Context, user string, f func()) error {
	if err := t.take(ctx, user); err != nil {
		return err
	}
	defer t.done()
	f()
	return nil
}

// turn is a request's part in them. Its methods are for one goroutine; of nil they do nothing.
type turn struct {
	all    *turns
	user   string
	looked int // rows
	held   bool
	taken  bool // once: the request is one of many rows
}

// newTurn is the part of a request that lists or watches; others have none, and what waits for nobody (flowControl) has none either.
func (t *turns) newTurn(req *http.Request, info *request.RequestInfo) *turn {
	if info == nil || !info.IsResourceRequest || info.Verb != "list" && info.Verb != "watch" {
		return nil
	}
	name := ""
	if who, ok := request.UserFrom(req.Context()); ok {
		if name = who.GetName(); slices.Contains(who.GetGroups(), access.Controllers) {
			return nil
		}
	}
	return &turn{all: t, user: name}
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
	if t.looked%turnRows == 0 && t.all.contended.Load() {
		t.pause()
	}
	return t.resume(ctx)
}

// pause ends the turn for as long as the request waits for somebody.
func (t *turn) pause() {
	if t != nil && t.held {
		t.held = false
		t.all.done()
	}
}

// resume waits for the next turn, if the request needs one.
func (t *turn) resume(ctx context.Context) error {
	if t == nil || !t.taken || t.held {
		return nil
	}
	if err := t.all.take(ctx, t.user); err != nil {
		return err
	}
	t.held = true
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
