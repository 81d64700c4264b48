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

func TestFeedKeepsTheNewestByRevision(t *testing.T) {
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
			chunk := int64(FeedBounds{Changes: capacity}.chunkChanges())
			if f.First() > max(10, oldest+chunk-1) {
				t.Fatalf("capacity %d at %d: forgot what it had room for", capacity, last)
			}
			for from := f.First(); from <= last; from += max(1, (last-f.First())/50) {
				got, err := f.After(from, 100)
				if err != nil {
					t.Fatalf("capacity %d: after %d: %v", capacity, from, err)
				}
				if most := min(100, last-from); int64(len(got)) > most || most > 0 && len(got) == 0 {
					t.Fatalf("capacity %d: after %d: %d changes, want up to %d", capacity, from, len(got), most)
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
		f.Reset(9999, nil, nothing)
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
		f.Reset(50, nil, nothing)
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
// too much, also when they are few; and those that are old when they hold much. It is said of each change alone which
// may stay, and no more go with those that may not than a chunk has.
func TestFeedIsBoundedByBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bounds := FeedBounds{Changes: 300, Bytes: 100_000, QuietBytes: 20_000, Age: time.Minute}
		f := NewFeed(bounds, 0)
		var every, kept []Change
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
			every = append(every, cs...)
			if kept = append(kept, cs...); n > 0 {
				kept = withinBounds(kept, bounds, now)
			}
			got := all(t, f)
			if f.First() != revision-int64(len(got)) || !slices.Equal(got, every[len(every)-len(got):]) {
				t.Fatalf("%d changes from %d on are not the last ones up to %d", len(got), f.First(), revision)
			}
			bytes := 0
			for i := range got {
				bytes += changeBytes + got[i].heldBytes
			}
			if len(got) > bounds.Changes || bytes > bounds.Bytes || bytes != f.bytes {
				t.Fatalf("%d changes of %d bytes, which are counted as %d", len(got), bytes, f.bytes)
			}
			if late := len(kept) - len(got); late > bounds.chunkChanges() || late < -bounds.chunkChanges() {
				t.Fatalf("%d changes are kept, want %d", len(got), len(kept))
			}
			if _, err := f.After(f.First()-1, 1); !errors.Is(err, ErrCompacted) {
				t.Fatalf("goes on after what it has forgotten: %v", err)
			}
		}
	})
}

// TestFeedHoldsAsMuchAsItsState: no more than that, where it is not small, and never more than its bounds let it.
func TestFeedHoldsAsMuchAsItsState(t *testing.T) {
	f := NewFeed(FeedBounds{Changes: 1 << 12, Bytes: 1 << 20, LeastBytes: 1 << 16, QuietBytes: 1 << 20}, 0)
	for revision := int64(1); revision <= 10_000; revision++ {
		var state int64
		switch {
		case revision > 8000:
			state = 1 << 40
		case revision > 4000:
			state = 1 << 18
		}
		f.SizeTo(state)
		f.Append([]Change{{Revision: revision, heldBytes: 1000 - changeBytes}}, nothing)
		if want := min(max(state, 1<<16), 1<<20); int64(f.bytes) > want {
			t.Fatalf("at %d the feed holds %d bytes beside a state of %d", revision, f.bytes, state)
		}
		if revision%2000 == 0 && int64(f.bytes) < min(max(state, 1<<16), 1<<20)*7/8 {
			t.Errorf("at %d the feed holds only %d bytes beside a state of %d", revision, f.bytes, state)
		}
	}
}

// all are the changes that a feed has, read part by part.
func all(t *rapid.T, f *Feed) (out []Change) {
	for at := f.First(); ; at = out[len(out)-1].Revision {
		got, err := f.After(at, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			return out
		}
		out = append(out, got...)
	}
}

// TestReadersKeepWhatTheyWereGiven: neither what comes later nor what is forgotten changes it.
func TestReadersKeepWhatTheyWereGiven(t *testing.T) {
	f := NewFeed(FeedBounds{Changes: 200, Bytes: 1 << 30, QuietBytes: 1 << 30}, 0)
	f.Append(changesTo(1, 2), nothing)
	given, err := f.After(0, 10)
	if err != nil || len(given) != 2 {
		t.Fatalf("%v, %v", given, err)
	}
	_ = append(given, Change{Revision: 99}) // a reader's own
	f.Append(changesTo(3, 3), nothing)
	if next, err := f.After(2, 10); err != nil || len(next) != 1 || next[0].Revision != 3 {
		t.Fatalf("after a reader has added to its own: %v, %v", next, err)
	}
	f.Append(changesTo(4, 1000), nothing)
	if given[0].Revision != 1 || given[1].Revision != 2 {
		t.Fatalf("what was given became %v", given)
	}
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

// TestWhatReplacesAStateComesWithIt: who begins at the view that an entry leads to which replaces the state and changes it goes on from there,
// and who waited comes to what it changed.
func TestWhatReplacesAStateComesWithIt(t *testing.T) {
	f := NewFeed(FeedBounds{Changes: 10_000, Bytes: 1 << 20, QuietBytes: 1 << 20}, 0)
	f.Append(changesTo(1, 30), nothing)
	f.Reset(50, changesTo(51, 53), nothing)
	if err := f.Wait(t.Context(), 50); err != nil {
		t.Fatal(err)
	}
	if cs, err := f.After(50, 10); err != nil || len(cs) != 3 || f.Last() != 53 {
		t.Errorf("after it there are %d changes up to %d: %v", len(cs), f.Last(), err)
	}
	if _, err := f.After(30, 10); !errors.Is(err, ErrCompacted) {
		t.Errorf("who was before it goes on: %v", err)
	}
}
