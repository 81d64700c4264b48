package guard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// counting is a guard that counts panics by what they are of.
func counting(seen map[string]int) Func {
	return func(what string, f func()) (ok bool) {
		defer func() {
			if recover() != nil {
				seen[what]++
			}
		}()
		f()
		return true
	}
}

// What is done every so often is done first after that time, and not once more when its context has ended.
func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began, at := time.Now(), []time.Duration(nil)
		Every(ctx, time.Second, func(now time.Time) {
			at = append(at, now.Sub(began))
			switch len(at) {
			case 2:
				<-time.After(2500 * time.Millisecond)
			case 4:
				cancel()
			}
		})
		if want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("it was done after %s, want %s", at, want)
		}
	})
}

// A loop that panics is begun again until it ends by itself or its context does, later each time.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen, runs, began := map[string]int{}, 0, time.Now()
		g := counting(seen)
		g.Keep(t.Context(), "heartbeats", func(context.Context) {
			if runs++; runs <= 20 {
				panic("the clock fell off the wall")
			}
		})
		if runs != 21 || seen["heartbeats"] != 20 {
			t.Errorf("%d runs, panics %v", runs, seen)
		}
		// 0.1 s doubled until 30 s: 51.1 s for the first nine, thirty for each of the eleven others.
		if took := time.Since(began); took != 381100*time.Millisecond {
			t.Errorf("it rested for %s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		g.Keep(ctx, "push", func(context.Context) {
			cancel()
			panic("at the end")
		})
		if seen["push"] != 1 {
			t.Errorf("panics %v", seen)
		}
	})
}

// Whoever waits for a group is the one whose call breaks, once the others are done.
func TestGroupPanicsInItsCaller(t *testing.T) {
	done := make(chan struct{})
	var g Group
	g.Go(func() { panic("a goroutine of a call") })
	g.Go(func() { close(done) })
	defer func() {
		p, ok := recover().(*Panic)
		if !ok || p.Value != "a goroutine of a call" || !strings.Contains(p.Error(), "guard_test.go") {
			t.Errorf("the caller panicked with %v", p)
		}
		select {
		case <-done:
		default:
			t.Error("not all were waited for")
		}
	}()
	g.Wait()
}

func TestGroupWithoutAPanic(t *testing.T) {
	var g Group
	n := make([]int, 10)
	for i := range n {
		g.Go(func() { n[i] = i })
	}
	g.Wait()
	if n[9] != 9 {
		t.Errorf("%v", n)
	}
}

func TestCall(t *testing.T) {
	broke, no := errors.New("it broke"), errors.New("no")
	g := counting(map[string]int{})
	for _, c := range []struct {
		f    func() error
		want error
	}{
		{func() error { return nil }, nil},
		{func() error { return no }, no},
		{func() error { panic("a mistake") }, broke},
	} {
		if got := g.Call("a call", broke, c.f); !errors.Is(got, c.want) {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
}

func TestNoGuard(t *testing.T) {
	ran := false
	if !Func(nil).Or()("nothing", func() { ran = true }) || !ran {
		t.Error("it was not called")
	}
}

func TestTelling(t *testing.T) {
	var told []any
	g := Telling(func(what string, p *Panic) { told = append(told, what, p.Value) })
	if !g("fine", func() {}) || g("broken", func() { panic("a mistake") }) || len(told) != 2 || told[0] != "broken" || told[1] != "a mistake" {
		t.Errorf("told %v", told)
	}
}

func TestCaught(t *testing.T) {
	no := errors.New("no")
	if err := Caught(func() error { return no }); err != no {
		t.Errorf("%v", err)
	}
	p := new(Panic)
	if err := Caught(func() error { panic("a mistake") }); !errors.As(err, &p) || p.Value != "a mistake" {
		t.Errorf("%v", err)
	}
}

// Where one panics the others end, and the call panics; where none does all of them end by themselves.
func TestTogether(t *testing.T) {
	ended := 0
	Together(t.Context(), func(context.Context) { ended++ })
	if ended != 1 {
		t.Errorf("%d ended", ended)
	}
	defer func() {
		if p, ok := recover().(*Panic); !ok || p.Value != "one of two" || ended != 2 {
			t.Errorf("%v, %d ended", p, ended)
		}
	}()
	Together(t.Context(), func(context.Context) { panic("one of two") }, func(ctx context.Context) {
		<-ctx.Done()
		ended++
	})
}
