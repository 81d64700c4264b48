package sched

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestRankSet holds the two-level bitset against a plain list.
func TestRankSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1, 63, 64, 65, 4096, 4097, 10_000}).Draw(t, "size")
		set := newRankSet(size)
		var plain []int32
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			r := rapid.Int32Range(0, int32(size-1)).Draw(t, "rank")
			if i := slices.Index(plain, r); i >= 0 {
				plain = slices.Delete(plain, i, i+1)
				set.remove(r)
			} else {
				plain = append(plain, r)
				set.add(r)
			}
			slices.Sort(plain)
			from := rapid.Int32Range(0, int32(size-1)).Draw(t, "from")
			want := int32(-1)
			for _, p := range plain {
				if p >= from {
					want = p
					break
				}
			}
			if got := set.next(from); got != want || int(set.n) != len(plain) {
				t.Fatalf("next(%d) = %d of %d, want %d of %v", from, got, set.n, want, plain)
			}
			if len(plain) > 0 && want < 0 && set.nextOnRing(from) != plain[0] {
				t.Fatalf("the ring does not go round from %d", from)
			}
		}
	})
}

// TestEvictionsTree holds the tournament against a walk over all costs: the lowest cost, and among equals the first at
// or after the start.
func TestEvictionsTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := newView()
		for i := range rapid.IntRange(1, 70).Draw(t, "nodes") {
			v.slot(fmt.Sprintf("n%d", i))
		}
		v.ring.rebuild(v.nodes)
		e := &evictions{}
		e.replant(v)
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			slot := rapid.Int32Range(0, int32(len(v.nodes)-1)).Draw(t, "slot")
			e.entries[slot].exact = true
			e.entries[slot].cost = rapid.SampledFrom([]cost{impossible, {count: 1}, {count: 2}, {count: 2, start: 5}, {violations: 1}}).Draw(t, "cost")
			e.play(v.nodes[slot].rank)
			start := rapid.Int32Range(0, int32(len(v.nodes)-1)).Draw(t, "start")
			want, found := walk(v, e, start, -1)
			got, ok := e.best(v, budgetTable{}, start)
			if ok != found || ok && got != want {
				t.Fatalf("best from %d: slot %d (%v), want %d (%v)", start, got, ok, want, found)
			}
			if !ok {
				continue
			}
			want, found = walk(v, e, start, got)
			next, ok := e.runnerUp(v, budgetTable{}, got, start)
			if ok != found || ok && next != want {
				t.Fatalf("runner-up from %d: slot %d (%v), want %d (%v)", start, next, ok, want, found)
			}
		}
	})
}

func walk(v *View, e *evictions, start, except int32) (int32, bool) {
	best, found := int32(0), false
	for i := range v.ring.slots {
		slot := v.ring.slots[(int(start)+i)%len(v.ring.slots)]
		if slot == except || !e.entries[slot].cost.possible() {
			continue
		}
		if !found || e.entries[slot].cost.less(&e.entries[best].cost) {
			best, found = slot, true
		}
	}
	return best, found
}

// TestChangeLog: whatever the log forgot, a reader is told of every slot that changed since, once, and of no other.
func TestChangeLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := newView()
		const nodes = 5
		for i := range nodes {
			v.slot(fmt.Sprintf("n%d", i))
		}
		v.log.keep = -8*nodes + rapid.IntRange(1, 9).Draw(t, "kept")
		last := make([]uint64, nodes)
		var positions []uint64
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			positions = append(positions, v.log.head())
			slot := rapid.Int32Range(0, nodes-1).Draw(t, "slot")
			v.touch(slot)
			last[slot] = v.nodes[slot].changedAt
			from := rapid.SampledFrom(positions).Draw(t, "from")
			var got, want []int32
			v.since(from, func(s int32) { got = append(got, s) })
			for s, at := range last {
				if at >= from {
					want = append(want, int32(s))
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("since %d: %v, want %v", from, got, want)
			}
		}
	})
}
