package store

import (
	"context"
	"errors"
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
		f := NewFeed(capacity, 10)
		last := int64(10)
		for _, n := range []int64{1, 3, 0, 5, 40, 700, 2, 5000, 1} {
			f.Append(changesTo(last+1, last+n), nothing)
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
		f.Reset(9999, nothing)
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
		f := NewFeed(10, 0)
		woken := make(chan error, 1)
		wait := func(ctx context.Context, revision int64) { woken <- f.Wait(ctx, revision) }

		go wait(t.Context(), 0)
		synctest.Wait()
		f.Append(changesTo(1, 2), nothing)
		if err := <-woken; err != nil {
			t.Error("a change:", err)
		}
		wait(t.Context(), 1) // there is more already
		if err := <-woken; err != nil {
			t.Error("more already:", err)
		}
		go wait(t.Context(), 2)
		synctest.Wait()
		f.Append(nil, nothing) // an entry without changes wakes nobody
		synctest.Wait()
		select {
		case err := <-woken:
			t.Error("woken by nothing:", err)
		default:
		}
		f.Reset(50, nothing)
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
