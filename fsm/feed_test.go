package fsm

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

func changesTo(from, to int64) []Change {
	var cs []Change
	for r := from; r <= to; r++ {
		cs = append(cs, Change{Revision: r})
	}
	return cs
}

func nothing() {}

func TestFeedIsARingByRevision(t *testing.T) {
	for _, capacity := range []int{1, 7, 1024, 3000} {
		f := newFeed(capacity, 10)
		last := int64(10)
		for _, n := range []int64{1, 3, 0, 5, 40, 700, 2, 5000, 1} {
			f.append(changesTo(last+1, last+n), nothing)
			last += n
			if f.Last() != last {
				t.Fatalf("capacity %d: last %d, want %d", capacity, f.Last(), last)
			}
			oldest := max(10, last-int64(capacity))
			if f.First() < oldest {
				t.Fatalf("capacity %d at %d: keeps from %d, which is more than its capacity", capacity, last, f.First())
			}
			if int64(capacity) >= last-10 && f.First() != 10 {
				t.Fatalf("capacity %d at %d: forgot what it had room for", capacity, last)
			}
			for from := f.First(); from <= last; from += max(1, (last-f.First())/50) {
				got, err := f.After(from, 100)
				if err != nil {
					t.Fatalf("capacity %d: after %d: %v", capacity, from, err)
				}
				if want := min(100, last-from); int64(len(got)) != want {
					t.Fatalf("capacity %d: after %d: %d changes, want %d", capacity, from, len(got), want)
				}
				for i, c := range got {
					if c.Revision != from+int64(i)+1 {
						t.Fatalf("capacity %d: after %d: change %d is of revision %d", capacity, from, i, c.Revision)
					}
				}
			}
			for _, from := range []int64{f.First() - 1, last + 1} {
				if _, err := f.After(from, 1); !errors.Is(err, ErrCompacted) {
					t.Fatalf("capacity %d: after %d, which is not there: %v", capacity, from, err)
				}
			}
		}
		f.reset(9999, nothing)
		if _, err := f.After(last, 1); !errors.Is(err, ErrCompacted) {
			t.Fatalf("capacity %d: a reset feed goes on: %v", capacity, err)
		}
		if got, err := f.After(9999, 1); err != nil || len(got) > 0 {
			t.Fatalf("capacity %d: a reset feed begins with %v, %v", capacity, got, err)
		}
	}
}

func TestFeedWakesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(10, 0)
		woken := make(chan error, 1)
		wait := func(ctx context.Context, revision int64) { woken <- f.Wait(ctx, revision) }

		go wait(t.Context(), 0)
		synctest.Wait()
		f.append(changesTo(1, 2), nothing)
		if err := <-woken; err != nil {
			t.Error("a change:", err)
		}
		wait(t.Context(), 1) // there is more already
		if err := <-woken; err != nil {
			t.Error("more already:", err)
		}
		go wait(t.Context(), 2)
		synctest.Wait()
		f.append(nil, nothing) // an entry without changes wakes nobody
		synctest.Wait()
		select {
		case err := <-woken:
			t.Error("woken by nothing:", err)
		default:
		}
		f.reset(50, nothing)
		if err := <-woken; err != nil {
			t.Error("a restore:", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go wait(ctx, 50)
		synctest.Wait()
		cancel()
		if err := <-woken; !errors.Is(err, context.Canceled) {
			t.Error("cancelled:", err)
		}
	})
}

// TestReadersNeverStumble: while entries are applied and a snapshot is restored,
// readers walk over views, follow the feed and try things out on forks. A view
// and its changes belong together at every moment; with -race it is also shown
// that none of this needs a lock.
func TestReadersNeverStumble(t *testing.T) {
	w := newTranscript(t)
	w.quiet = true
	done := make(chan struct{})
	var readers sync.WaitGroup
	read := func(f func()) {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					f()
				}
			}
		})
	}
	s := w.state
	read(func() {
		v := s.View()
		cs, err := s.Feed().After(v.Revision(), 10)
		if err != nil {
			t.Errorf("view %d is there before its changes: %v", v.Revision(), err)
		}
		for _, c := range cs {
			if s.View().Revision() < c.Revision {
				t.Errorf("change %d is there before the view of it", c.Revision)
			}
		}
	})
	read(func() {
		v := s.View()
		n := 0
		v.Queue.Scan("", func(string, *QueueEntry) bool { n++; return true })
		if n != v.Queue.Len() {
			t.Errorf("a view changes under its reader: %d entries, %d counted", v.Queue.Len(), n)
		}
		v.Ready(w.now.UnixNano(), func(*QueueEntry) bool { return true })
	})
	read(func() {
		v := s.View()
		before := v.Revision()
		v.Fork().Try(0, Proposal{Command: &DeleteNode{Name: "n1"}}, Proposal{Command: &Checkpoint{}})
		if v.Revision() != before {
			t.Error("a fork changes its original")
		}
	})
	read(func() {
		if len(s.View().Digest()) != 64 {
			t.Error("no digest")
		}
	})
	for i := range 60 {
		w.line("node n1 cpu=4")
		w.line("pod web cpu=1")
		w.line("bind web n1")
		w.line("delete web grace=0")
		if i%7 == 0 {
			w.line("delete-node n1")
		}
	}
	restored := restoredFrom(t, s.View())
	if restored.View().Digest() != s.View().Digest() {
		t.Error("restored to something else")
	}
	close(done)
	readers.Wait()
}
