package sched

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/victims"
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
			e.entries[slot].cost = rapid.SampledFrom([]victims.Cost{
				victims.Impossible, {Count: 1}, {Count: 2}, {Count: 2, StartUnixNano: 5}, {Violations: 1},
			}).Draw(t, "cost")
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
		if slot == except || !e.entries[slot].cost.Possible() {
			continue
		}
		if !found || e.entries[slot].cost.Less(&e.entries[best].cost) {
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

// TestGroupLevels: whatever the scores are, a group finds its best node and the next one as a walk over all does.
func TestGroupLevels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const ranks = 100
		g, plain := &group{}, map[int32]int32{}
		b := &board{profile: &profile{step: 1}}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			rank := rapid.Int32Range(0, ranks-1).Draw(t, "rank")
			if score, there := plain[rank]; there {
				g.remove(score, rank)
				delete(plain, rank)
			} else {
				plain[rank] = rapid.OneOf(rapid.Int32(), rapid.Int32Range(0, 5)).Draw(t, "score")
				g.add(plain[rank], rank, ranks)
			}
			if len(plain) == 0 {
				continue
			}
			first := b.at(g, g.top(), 0)
			second := b.after(g, first, 0)
			all := make([]ranked, 0, len(plain))
			for rank, score := range plain {
				all = append(all, ranked{int64(score), rank})
			}
			slices.SortFunc(all, func(a, b ranked) int {
				return cmp.Or(cmp.Compare(b.score, a.score),
					cmp.Compare(a.rank, b.rank))
			})
			if all = append(all, unranked); first != all[0] || second != all[1] || int(g.n) != len(plain) {
				t.Fatalf("%v and %v of %d, want %v", first, second, g.n, all)
			}
		}
	})
}

// TestBalance: kube-scheduler's score, but for the noise of its floating-point numbers.
func TestBalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.OneOf(rapid.Int64Range(0, 1000), rapid.Int64Range(0, 1<<61))
		alloc := &model.Resources{MilliCPU: amount.Draw(t, "cpus"), MemoryBytes: amount.Draw(t, "bytes")}
		milliCPU, memoryBytes := amount.Draw(t, "used cpus"), amount.Draw(t, "used bytes")
		got := balance(milliCPU, memoryBytes, alloc)
		part := func(used, capacity int64) *big.Rat {
			if capacity == 0 {
				return new(big.Rat)
			}
			return big.NewRat(min(used, capacity), capacity)
		}
		exact := new(big.Rat).Sub(part(milliCPU, alloc.MilliCPU), part(memoryBytes, alloc.MemoryBytes))
		if alloc.MilliCPU == 0 || alloc.MemoryBytes == 0 {
			exact.SetInt64(0)
		}
		exact.Sub(big.NewRat(100, 1), exact.Abs(exact).Mul(exact, big.NewRat(50, 1)))
		want := new(big.Int).Quo(exact.Num(), exact.Denom()).Int64()
		if next, _ := exact.Sub(big.NewRat(want+1, 1), exact).Float64(); got != want && (got != want+1 || next > 1e-12) {
			t.Fatalf("%d of %d and %d of %d: %d, want %d", milliCPU, alloc.MilliCPU, memoryBytes, alloc.MemoryBytes, got, want)
		}
	})
}
