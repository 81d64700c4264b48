package store

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
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
		f := NewFeed(FeedBounds{Changes: capacity, Bytes: 1 << 30, QuietBytes: 1 << 30}, 10)
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
		f := NewFeed(FeedBounds{Changes: 10, Bytes: 1 << 30, QuietBytes: 1 << 30}, 0)
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

// TestFeedIsBoundedByBytes: the oldest changes go when the old rows of all hold
// too much, also when they are few; and those that are old when they hold much.
func TestFeedIsBoundedByBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bounds := FeedBounds{Changes: 300, Bytes: 100_000, QuietBytes: 20_000, Age: time.Minute}
		f := NewFeed(bounds, 0)
		var kept []Change
		revision, now := int64(0), int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "entries") {
			now += int64(rapid.IntRange(0, 40).Draw(t, "seconds")) * int64(time.Second)
			n, held := rapid.IntRange(0, 200).Draw(t, "changes"), rapid.SampledFrom([]int{0, 10, 1000, 30_000, 200_000}).Draw(t, "held")
			var cs []Change
			for range n {
				revision++
				cs = append(cs, Change{Revision: revision, Old: revision, heldBytes: held, TimeUnixNano: now})
			}
			f.Append(cs, nothing)
			if kept = append(kept, cs...); n > 0 {
				kept = withinBounds(kept, bounds, now)
			}
			if f.First() != revision-int64(len(kept)) {
				t.Fatalf("%d changes are kept, want %d", revision-f.First(), len(kept))
			}
			got, err := f.After(f.First(), 1<<20)
			if err != nil || !slices.Equal(got, kept) {
				t.Fatalf("%d changes, want %d, %v", len(got), len(kept), err)
			}
			if _, err := f.After(f.First()-1, 1); !errors.Is(err, ErrCompacted) {
				t.Fatalf("goes on after what it has forgotten: %v", err)
			}
			for i := range f.ring {
				if c := &f.ring[i]; c.Old != nil && c.Revision <= f.First() {
					t.Fatal("what is forgotten is still held")
				}
			}
			if len(f.ring) > max(firstFeedCapacity, 8*len(kept)) {
				t.Fatalf("a ring of %d for %d changes", len(f.ring), len(kept))
			}
		}
	})
}

// withinBounds is what of the changes is kept.
func withinBounds(changes []Change, bounds FeedBounds, now int64) []Change {
	for len(changes) > 0 {
		bytes := 0
		for i := range changes {
			bytes += changeBytes + changes[i].heldBytes
		}
		old := now-changes[0].TimeUnixNano > int64(bounds.Age)
		if len(changes) <= bounds.Changes && bytes <= bounds.Bytes && (bytes <= bounds.QuietBytes || !old) {
			break
		}
		changes = changes[1:]
	}
	return changes
}
