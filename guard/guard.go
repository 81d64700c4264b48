// Package guard keeps a panic in one goroutine from ending the process. A panic is a mistake of Berth's: it costs the call, the
// loop or the stream that it comes from, and nobody else.
package guard

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// Func calls f and says whether it came to its end, and not to a panic, which it counts and tells as one of what.
type Func func(what string, f func()) (ok bool)

// Unguarded lets a panic end the process.
func Unguarded(_ string, f func()) bool {
	f()
	return true
}

// Telling is a guard that tells of each panic.
func Telling(tell func(what string, p *Panic)) Func {
	return func(what string, f func()) (ok bool) {
		p := new(Panic)
		if errors.As(Caught(func() error { f(); return nil }), &p) {
			tell(what, p)
			return false
		}
		return true
	}
}

// Or is the guard, or Unguarded where there is none.
func (g Func) Or() Func {
	if g == nil {
		return Unguarded
	}
	return g
}

// Call calls f and returns its error; broke where f panics.
func (g Func) Call(what string, broke error, f func() error) error {
	err := broke
	g(what, func() { err = f() })
	return err
}

const (
	// A loop that panicked begins again after firstRest, and after twice as long each time until longestRest; one that ran
	// for longer than longestRest begins with firstRest again.
	firstRest   = 100 * time.Millisecond
	longestRest = 30 * time.Second
)

// Keep runs a loop until ctx ends or the loop does: after a panic it is begun again.
func (g Func) Keep(ctx context.Context, name string, loop func(ctx context.Context)) {
	for rest := firstRest; ; rest = min(2*rest, longestRest) {
		began := time.Now()
		if g(name, func() { loop(ctx) }) {
			return
		}
		if time.Since(began) > longestRest {
			rest = firstRest
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(rest):
		}
	}
}

// Every calls do after each period until ctx ends, for a loop that Keep runs. What falls into a call that takes longer is left out.
func Every(ctx context.Context, period time.Duration, do func(now time.Time)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			do(now)
		}
	}
}

// Panic is what a goroutine of a Group panicked with, and where.
type Panic struct {
	Value any
	Stack []byte
}

// Error implements error.
func (p *Panic) Error() string { return fmt.Sprintf("%v\n%s", p.Value, p.Stack) }

// Caught calls f and returns its error, which is a *Panic where f panics: for whoever has no guard and tells errors.
func Caught(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &Panic{p, debug.Stack()}
		}
	}()
	return f()
}

// Together runs all of them until ctx ends or each has. Where one panics the others are told to end, and the call panics.
func Together(ctx context.Context, all ...func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running Group
	for _, run := range all {
		running.Go(func() {
			ended := false
			defer func() {
				if !ended {
					cancel()
				}
			}()
			run(ctx)
			ended = true
		})
	}
	running.Wait()
}

// Group is goroutines that do something for one call: where one of them panics, Wait does, with a *Panic, so that it is the call
// that breaks. The zero value is a group of none.
type Group struct {
	all   sync.WaitGroup
	mu    sync.Mutex
	first *Panic
}

// Go calls f in a goroutine of the group.
func (g *Group) Go(f func()) {
	g.all.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				g.mu.Lock()
				defer g.mu.Unlock()
				if g.first == nil {
					g.first = &Panic{p, debug.Stack()}
				}
			}
		}()
		f()
	})
}

// Wait waits until all of them have returned.
func (g *Group) Wait() {
	g.all.Wait()
	if g.first != nil {
		panic(g.first)
	}
}
