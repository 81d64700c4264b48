package victims

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// drawProblem draws a problem of few pods: everything that whoever asks may fill in.
func drawProblem(t *rapid.T) *Problem {
	p := &Problem{Slot: 1, Roam: -1, Limit: 1_000_000}
	pods := func(label string, most int, slots ...int32) []Pod {
		var out []Pod
		for i := range rapid.IntRange(0, most).Draw(t, label) {
			out = append(out, Pod{
				UID: types.UID(fmt.Sprint(label, i)), Slot: rapid.SampledFrom(slots).Draw(t, "slot"),
				Priority:      rapid.SampledFrom([]int32{-1 << 31, -5, 0, 0, 1, 7, 2_000_000_000}).Draw(t, "priority"),
				StartUnixNano: rapid.Int64Range(0, 3).Draw(t, "start"),
			})
		}
		slices.SortFunc(out, func(a, b Pod) int { return MoreImportant(&a, &b) })
		return out
	}
	around := []int32{1}
	if rapid.Bool().Draw(t, "around") {
		around = []int32{1, 1, 2, 3, 4}
	}
	p.Movable, p.Forced = pods("movable", 10, around...), pods("forced", 3, around...)
	p.Base = None
	for i := range p.Forced {
		v := &p.Forced[i]
		p.Base = p.Base.With(v)
		if v.Slot != p.Slot {
			p.Base.Elsewhere = true
			if !slices.Contains(p.Elsewhere, v.Slot) {
				p.Elsewhere = append(p.Elsewhere, v.Slot)
			}
		}
	}
	if len(around) > 1 {
		p.Most = int32(len(p.Elsewhere)) + rapid.Int32Range(0, 2).Draw(t, "most")
		p.Roam = p.Most - int32(len(p.Elsewhere))
	}
	for range rapid.IntRange(0, 3).Draw(t, "dimensions") {
		p.Need = append(p.Need, rapid.Int64Range(1, 12).Draw(t, "need"))
	}
	for range len(p.Movable) * len(p.Need) {
		p.Frees = append(p.Frees, rapid.Int64Range(0, 5).Draw(t, "frees"))
	}
	drawRules(t, p)
	return p
}

func drawRules(t *rapid.T, p *Problem) {
	n := rapid.IntRange(0, 3).Draw(t, "rules")
	if n == 0 {
		return
	}
	draw := func(label string) uint64 { return uint64(rapid.IntRange(0, 1<<n-1).Draw(t, label)) }
	for range p.Movable {
		p.Spends = append(p.Spends, draw("spends"))
	}
	for range p.Forced {
		p.Forces = append(p.Forces, draw("forces"))
	}
	for r := range n {
		rule := Rule{Allowed: rapid.Int32Range(0, 3).Draw(t, "allowed"), Hard: rapid.Bool().Draw(t, "hard")}
		rule.Before = rule.Allowed
		for _, under := range p.Forces {
			if under>>r&1 == 1 {
				if rule.Allowed > 0 {
					rule.Allowed--
				} else {
					p.Base.Violations++ // of a hard one nothing is asked, the node is left out before
				}
			}
		}
		for _, under := range p.Spends {
			rule.Members += int32(under >> r & 1)
		}
		p.Rules = append(p.Rules, rule)
	}
}

// plain says what a set of the movable pods costs, with the forced ones, and whether it is a choice.
func (p *Problem) plain(set uint) (Cost, bool) {
	c, left, elsewhere := p.Base, slices.Clone(p.Need), slices.Clone(p.Elsewhere)
	spent := make([]int32, len(p.Rules))
	for i := range p.Movable {
		if set>>i&1 == 0 {
			continue
		}
		v := &p.Movable[i]
		c = c.With(v)
		for d := range left {
			left[d] -= p.Frees[i*len(left)+d]
		}
		if v.Slot != p.Slot {
			c.Elsewhere = true
			if !slices.Contains(elsewhere, v.Slot) {
				elsewhere = append(elsewhere, v.Slot)
			}
		}
		if len(p.Rules) > 0 {
			for under := p.Spends[i]; under != 0; under &= under - 1 {
				spent[bits.TrailingZeros64(under)]++
			}
		}
	}
	for r := range p.Rules {
		over := max(spent[r]-p.Rules[r].Allowed, 0)
		if over > 0 && p.Rules[r].Hard {
			return Impossible, false
		}
		c.Violations += over
	}
	enough := !slices.ContainsFunc(left, func(n int64) bool { return n > 0 })
	return c, enough && (p.Roam < 0 || len(elsewhere) <= int(p.Most))
}

// exhaust looks at every choice. Whether victims are elsewhere is no concern of the search but for how many nodes those
// are.
func (p *Problem) exhaust() (best Cost, found bool) {
	for set := range uint(1) << len(p.Movable) {
		if c, ok := p.plain(set); ok && (!found || c.Less(&best)) {
			best, found = c, true
		}
	}
	return best, found
}

// here is a cost with nothing said about other nodes.
func here(c Cost) Cost {
	c.Elsewhere = false
	return c
}

func setOf(s *Solution) (set uint) {
	for _, i := range s.Goes {
		set |= 1 << i
	}
	return set
}

// TestOracleSolve: the choice costs as much as the best of all, a bound is never above it, and what is said of a search
// that was cut short is so.
func TestOracleSolve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem(t)
		p.Limit = rapid.SampledFrom([]int32{0, 1, 5, 1_000_000, 1_000_000}).Draw(t, "limit")
		want, possible := p.exhaust()
		want = here(want)
		if !p.Enough(0) {
			if possible {
				t.Fatalf("%+v is possible, and not enough", want)
			}
			return // nobody asks then
		}
		least, ok := p.Bound()
		if low := here(least); possible && (!ok || want.Less(&low)) {
			t.Fatalf("the bound is %+v (%v), the least cost %+v", least, ok, want)
		}
		if !ok {
			return
		}
		s, found := p.Solve(least)
		if !found {
			if possible && (p.Limit == 1_000_000 || s.Known == Impossible) {
				t.Fatalf("nothing was found (known %+v), and %+v is possible", s.Known, want)
			}
			return
		}
		got, is := p.plain(setOf(&s))
		if !is || got != s.Cost {
			t.Fatalf("%v costs %+v (%v) and not %+v", s.Goes, got, is, s.Cost)
		}
		if got = here(got); got.Less(&want) || s.Minimal && got != want || p.Limit == 1_000_000 && !s.Minimal {
			t.Fatalf("%v costs %+v (minimal: %v, %d steps), the least is %+v", s.Goes, got, s.Minimal, s.Steps, want)
		}
		if low := here(s.Known); !s.Minimal && want.Less(&low) {
			t.Fatalf("%+v is said to be a bound of %+v", s.Known, want)
		}
	})
}

// openness is a Trial that takes the pod if certain sets are gone, as rules that depend on each other may.
type openness struct {
	gone uint
	open func(gone uint) bool
}

func (o *openness) Leave(i int)  { o.gone |= 1 << i }
func (o *openness) Return(i int) { o.gone &^= 1 << i }
func (o *openness) Open() bool   { return o.open(o.gone) }

// TestOracleTry: of the choices that leave the node open, the cheapest is taken.
func TestOracleTry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem(t)
		if p.Roam < 0 {
			p.Most = 4
		}
		modulus, rest := rapid.UintRange(1, 7).Draw(t, "modulus"), rapid.UintRange(0, 6).Draw(t, "rest")
		o := &openness{open: func(gone uint) bool { return gone%modulus <= rest }}
		var want Cost
		possible := false
		for set := range uint(1) << len(p.Movable) {
			if c, ok := p.plain(set); ok && o.open(set) && (!possible || c.Less(&want)) {
				want, possible = c, true
			}
		}
		s, found := p.Try(o, None)
		if found != possible || found && (s.Cost != want || !s.Minimal) || !found && s.Known != Impossible {
			t.Fatalf("%v costs %+v (%v, minimal: %v), the least is %+v (%v)", s.Goes, s.Cost, found, s.Minimal, want, possible)
		}
		if o.gone != 0 {
			t.Fatalf("%b are still gone", o.gone)
		}
	})
}
