package sched

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	worstWorldsFlag = flag.Int("worst.worlds", 1, "how many worlds the search for the worst step looks at")
	worstScaleFlag  = flag.Int("worst.scale", 1,
		"the size of these worlds in percent of 10,000 nodes and 100,000 waiting pods")
	worstSeedFlag = flag.Uint64("worst.seed", 1, "where the search begins")
	worstOnlyFlag = flag.String("worst.only", "",
		"the events that are looked at, by the beginning of their name; the first is always")
	worstPlanFlag  = flag.String("worst.plan", "", "one world, as the search prints it, instead of a search")
	worstFullFlag  = flag.Bool("worst.full", false, "the worlds of full size that are known to be dear, instead of a search")
	worstStepsFlag = flag.Int("worst.steps", 30, "how many steps are made after each event")
)

// worstFound is the worst step that was seen after an event.
type worstFound struct {
	worstCost
	plan worstPlan
}

// TestWorst looks for worlds and events that make one step as dear as can be, and prints the worst after each event. It
// begins with a random world; half of the others are changes of one in which some step was at its worst. Without flags
// it only shows that the tool works; `make worst` looks in earnest.
func TestWorst(t *testing.T) {
	s := &worstSearch{t: t, rng: rand.New(rand.NewPCG(*worstSeedFlag, 0)), found: map[string]worstFound{},
		dearest: map[string]worstFound{}}
	if *worstPlanFlag != "" {
		var p worstPlan
		if err := json.Unmarshal([]byte(*worstPlanFlag), &p); err != nil {
			t.Fatal(err)
		}
		s.look(p)
	} else if *worstFullFlag {
		for _, p := range fullWorlds() {
			s.look(p)
			runtime.GC()
		}
	} else {
		for i := range *worstWorldsFlag {
			s.look(s.next(i))
		}
	}
	s.report()
}

// fullWorlds are of 10,000 nodes and 100,000 waiting pods of 10,000 shapes.
func fullWorlds() []worstPlan {
	all := worstPlan{
		Nodes: 10_000, Zones: 50, NodeLabels: 4, Each: 10, Kinds: 1000, Levels: 300, Waiting: 100_000, Shapes: 10_000,
		Ask: 2, SearchLimit: 1000, OtherNodes: 3,
	}
	with := func(change func(p *worstPlan)) worstPlan {
		p := all
		change(&p)
		return p
	}
	return []worstPlan{
		all,
		// As many terms as a pod may have, by which no two nodes are alike.
		with(func(p *worstPlan) { p.WaitingRules, p.Taints, p.Resources = worstRules{Anti: 64, Spread: 4}, 4, 28 }),
		with(func(p *worstPlan) { p.WaitingRules = worstRules{Anti: 4, Spread: 4, Key: 1, About: 2} }),
		// Searches as long as may be configured, among many pods that may have to go, minding budgets.
		with(func(p *worstPlan) {
			p.Nodes, p.Each, p.Ask, p.SearchLimit, p.Budgets, p.Strict = 1000, 100, 3, 1_000_000, 1000, true
		}),
		with(func(p *worstPlan) {
			p.Crowd, p.Crowded, p.Ask, p.SearchLimit, p.OtherNodes = 8000, 5, 3, 1_000_000, 16
		}),
		with(func(p *worstPlan) { p.Nominated, p.Deadlines = 20_000, true }),
		// Volumes of hosts, of which pods choose as many as they may; and of two hosts each, with demands of their own.
		with(func(p *worstPlan) {
			p.Each, p.Waiting, p.Shapes, p.Volumes = 0, 10_000, 1000, worstVolumes{Free: 100_000, Claims: 256}
		}),
		with(func(p *worstPlan) { p.Each, p.Volumes = 0, worstVolumes{Free: 10_000, At: 3, Claims: 16, Demands: 16} }),
	}
}

type worstSearch struct {
	t       *testing.T
	rng     *rand.Rand
	found   map[string]worstFound // the longest, by event
	dearest map[string]worstFound // with the dearest unit
}

func (s *worstSearch) next(i int) worstPlan {
	if i > 0 && s.rng.IntN(2) == 0 {
		var all []worstFound
		for _, event := range worstEvents() {
			all = append(all, s.found[event])
		}
		slices.SortStableFunc(all, func(a, b worstFound) int { return int(b.Time - a.Time) })
		p := all[s.rng.IntN(1+s.rng.IntN(len(all)))].plan // the dearest are the most likely
		if p.Nodes > 0 {
			for range 1 + s.rng.IntN(3) {
				s.change(&p)
			}
			return p
		}
	}
	p := worstPlan{Nodes: 100, Zones: 3, Each: 10, Kinds: 100, Levels: 1, Waiting: 1000, Shapes: 100, SearchLimit: 1000,
		OtherNodes: 3, Ask: 2}
	for range 25 {
		s.change(&p)
	}
	return p
}

// change changes one thing.
func (s *worstSearch) change(p *worstPlan) {
	scaled := func(most int) int { return max(1, most**worstScaleFlag/100) }
	pick := func(from ...int) int { return from[s.rng.IntN(len(from))] }
	rules := func(r *worstRules) {
		switch s.rng.IntN(5) {
		case 0:
			*r = worstRules{}
		case 1:
			r.Anti, r.Affinity, r.Spread, r.Preferred = pick(0, 0, 1, 4, 64), 0, pick(0, 0, 1, 4, 32), 0
		case 2:
			r.Affinity, r.Preferred = pick(0, 1, 4), pick(0, 0, 4, 60)
			r.Anti = max(0, min(r.Anti, 64-r.Affinity-r.Preferred))
		case 3:
			r.Key = pick(0, 1, 2)
		case 4:
			r.About = pick(0, 1, 2)
		}
	}
	switch s.rng.IntN(24) {
	case 0, 1:
		p.Nodes = scaled(pick(100, 10_000, 10_000))
	case 2:
		p.Zones = pick(1, 3, 50, 100_000)
	case 3:
		p.NodeLabels, p.Taints = pick(0, 4, 100), pick(0, 0, 4, 60)
	case 4:
		p.Images, p.Containers = pick(0, 0, 10, 128), pick(1, 1, 10, 128)
	case 5, 6:
		p.Each = pick(0, 4, 10, 100)
	case 7:
		p.Kinds = scaled(pick(1, 1000, 100_000))
	case 8, 9:
		p.Crowd, p.Crowded = pick(0, 0, scaled(2000), scaled(8000)), pick(1, 1, scaled(20))
	case 10:
		p.Levels = pick(1, 2, 300, 900)
	case 11:
		p.Waiting = scaled(pick(1000, 100_000))
	case 12:
		p.Shapes = scaled(pick(1, 10_000, 10_000))
	case 13:
		p.Nominated = pick(0, 0, scaled(1000), scaled(20_000))
	case 14, 15:
		p.Ask = pick(0, 1, 2, 2, 3)
	case 16:
		rules(&p.PlacedRules)
	case 17, 18:
		rules(&p.WaitingRules)
	case 19:
		p.Ports, p.Resources = pick(0, 0, 1, 100), pick(0, 0, 4, 28)
	case 20:
		p.Budgets, p.AnyBudget, p.Strict = pick(0, scaled(100), scaled(1000), 64), pick(0, 1) == 1, pick(0, 1) == 1
	case 21:
		p.NodeTerms, p.Tolerations = pick(0, 0, 64), pick(0, 0, 128)
		p.SearchLimit, p.OtherNodes, p.Deadlines = int32(pick(0, 1000, 1000, 1_000_000)), int32(pick(0, 3, 3, 16)),
			pick(0, 0, 1) == 1
	case 22, 23:
		p.Volumes = worstVolumes{Free: scaled(pick(1, 10_000, 100_000)), At: pick(0, 0, 1, 2, 3, 4), Claims: pick(0, 1, 16, 256),
			Demands: pick(1, 1, 16, 256), Bound: pick(0, 0, 1) == 1, Single: pick(0, 0, 1) == 1}
	}
	p.Shapes = min(p.Shapes, p.Waiting)
	for p.placed() > 1_000*scaled(1000) {
		p.Each /= 2
		p.Crowd /= 2
	}
}

// look measures steps in one world, after each event.
func (s *worstSearch) look(p worstPlan) {
	gc := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(gc)
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(5 << 30))
	began := time.Now()
	text, err := json.Marshal(p)
	if err != nil {
		s.t.Fatal(err)
	}
	w := p.build()
	s.t.Logf("a world in %v: %s", time.Since(began).Round(time.Millisecond), text)
	for _, event := range worstEvents() {
		if event != "leader" && !strings.HasPrefix(event, *worstOnlyFlag) {
			continue
		}
		runtime.GC()
		w.happen(event)
		var worst worstCost
		for range *worstStepsFlag {
			cost, plan := w.measure()
			if cost.Time > s.found[event].Time {
				s.found[event] = worstFound{cost, p}
			}
			if was := s.dearest[event]; cost.Time > 2*time.Millisecond && cost.perUnit() > was.perUnit() {
				s.dearest[event] = worstFound{cost, p}
			}
			if cost.Time > worst.Time {
				worst = cost
			}
			if plan != nil {
				w.Apply(plan.Command)
				w.sched.Settle(plan)
			} else if !w.sched.Behind() {
				break
			}
		}
		s.t.Logf("  %-14s %8.2f ms %10d units %6.1f ns/unit %10d bytes", event, float64(worst.Time.Microseconds())/1000,
			worst.Work, worst.perUnit(), worst.Bytes)
	}
}

func (s *worstSearch) report() {
	var b strings.Builder
	for name, found := range map[string]map[string]worstFound{"longest": s.found, "dearest unit": s.dearest} {
		fmt.Fprintf(&b, "\n%s\n%-14s %8s %10s %8s %12s\n", name, "event", "ms", "work", "ns/unit", "allocated")
		events := worstEvents()
		slices.SortStableFunc(events, func(x, y string) int { return int(found[y].Time - found[x].Time) })
		shown := map[worstPlan]bool{}
		for _, event := range events {
			f := found[event]
			if f.Time == 0 {
				continue
			}
			fmt.Fprintf(&b, "%-14s %8.2f %10d %8.1f %12d", event, float64(f.Time.Microseconds())/1000, f.Work, f.perUnit(),
				f.Bytes)
			if !shown[f.plan] {
				shown[f.plan] = true
				text, err := json.Marshal(f.plan)
				if err != nil {
					s.t.Fatal(err)
				}
				fmt.Fprintf(&b, " -worst.plan='%s'", text)
			}
			b.WriteByte('\n')
		}
	}
	s.t.Log(b.String())
}
