package fsm

import (
	"cmp"
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
	worstWorldsFlag = flag.Int("worst.worlds", 2, "how many worlds the search for the worst looks at")
	worstScaleFlag  = flag.Int("worst.scale", 1, "the size of these worlds in percent of 10,000 nodes and 100,000 waiting pods")
	worstSeedFlag   = flag.Uint64("worst.seed", 1, "where the search begins")
	worstOnlyFlag   = flag.String("worst.only", "", "the commands that are looked at, by the beginning of their name")
	worstPlanFlag   = flag.String("worst.plan", "", "one world, as the search prints it, instead of a search")
	worstFullFlag   = flag.Bool("worst.full", false, "the worlds of full size that are known to be dear, instead of a search")
	worstByFlag     = flag.String("worst.by", "time", "what is dear: time, memory (allocated), kept (memory that is not let go of) or log (its bytes)")
	worstTimesFlag  = flag.Int("worst.times", 2, "how often each command is applied in each world")
)

// worstFound is the worst that was seen of a command.
type worstFound struct {
	worstCost
	plan worstPlan
}

// TestWorst looks for worlds and commands that make one entry as dear as can be,
// and prints the worst of each kind. It begins with a random world; half of the
// others are changes of one in which some command was at its worst. Without
// flags it only shows that the tool works; `make worst` looks in earnest.
func TestWorst(t *testing.T) {
	s := &worstSearch{t: t, rng: rand.New(rand.NewPCG(*worstSeedFlag, 0)), found: map[string]worstFound{}}
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

// fullWorlds are of 10,000 nodes and up to 100,000 waiting pods of 10,000 shapes.
func fullWorlds() []worstPlan {
	all := worstPlan{Nodes: 10_000, Zones: 3, NodeLabels: 4, Placed: 20_000, Kinds: 1000, Waiting: 100_000, Shapes: 10_000, Namespaces: 1, Labels: 2, Levels: 300}
	with := func(change func(p *worstPlan)) worstPlan {
		p := all
		change(&p)
		return p
	}
	return []worstPlan{
		all,
		with(func(p *worstPlan) { // rules about everybody
			p.Levels, p.PlacedRules, p.WaitingRules = 1, worstRules{Anti: 2, Key: 1}, worstRules{Anti: 4, About: 2}
		}),
		with(func(p *worstPlan) { // rules about one's own kind, of which there are many
			p.Placed, p.Kinds, p.PlacedRules, p.WaitingRules = 100_000, 10_000, worstRules{Anti: 1, Key: 1}, worstRules{Anti: 1, Affinity: 1, Spread: 2, Key: 1}
		}),
		with(func(p *worstPlan) { // as many terms as a pod may have
			p.NodeLabels, p.Waiting, p.Shapes, p.WaitingRules = 64, 10_000, 1000, worstRules{Anti: 64, Key: 2}
		}),
		with(func(p *worstPlan) { p.Crowd, p.Labels, p.Nominated = 7000, 10, 50_000 }),
		with(func(p *worstPlan) { p.Zones, p.Namespaces, p.Services, p.Replicas = 100_000, 10, 10, true }),
		with(func(p *worstPlan) { p.Budgets, p.AnyBudget = 100, true }),
		with(func(p *worstPlan) { // volumes of hosts, of which pods choose as many as they may
			p.Waiting, p.Shapes, p.Volumes = 10_000, 1000, worstVolumes{Free: 100_000, Claims: 256}
		}),
		with(func(p *worstPlan) { p.Volumes = worstVolumes{Free: 10_000, At: 3, Claims: 16, Demands: 16} }),
		with(func(p *worstPlan) { // a herd of one shape
			p.Kinds, p.Shapes, p.Nominated, p.WaitingRules = 1, 1, 10_000, worstRules{Anti: 1}
		}),
	}
}

type worstSearch struct {
	t     *testing.T
	rng   *rand.Rand
	found map[string]worstFound
}

func (s *worstSearch) next(i int) worstPlan {
	if i > 0 && s.rng.IntN(2) == 0 {
		names := make([]string, 0, len(s.found))
		for _, c := range worstCases() {
			if _, ok := s.found[c.name]; ok {
				names = append(names, c.name)
			}
		}
		slices.SortFunc(names, func(a, b string) int { return cmp.Compare(s.found[b].by(), s.found[a].by()) })
		// The dearest are the most likely.
		p := s.found[names[s.rng.IntN(1+s.rng.IntN(len(names)))]].plan
		for range 1 + s.rng.IntN(3) {
			s.change(&p)
		}
		return p
	}
	p := worstPlan{Nodes: 100, Zones: 3, Placed: 1000, Kinds: 100, Waiting: 1000, Shapes: 100, Namespaces: 1, Levels: 1}
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
			r.Anti, r.Affinity, r.Spread = pick(0, 0, 1, 4, 64), 0, pick(0, 0, 1, 4)
		case 2:
			r.Affinity = pick(0, 1, 4)
			r.Anti = min(r.Anti, 64-r.Affinity)
		case 3:
			r.Key = pick(0, 1, 2)
		case 4:
			r.About, r.Everywhere = pick(0, 1, 2), pick(0, 1) == 1
		}
	}
	switch s.rng.IntN(23) {
	case 0, 1:
		p.Nodes = scaled(pick(100, 10_000, 10_000))
	case 2:
		p.Zones = pick(1, 3, 50, 100_000)
	case 3:
		p.NodeLabels = pick(0, 4, 64)
	case 4, 5:
		p.Placed = scaled(pick(0, 10_000, 100_000))
	case 6:
		p.Kinds = scaled(pick(1, 1000, 100_000))
	case 7:
		p.Crowd = pick(0, 0, scaled(500), scaled(7000))
	case 8, 9:
		p.Waiting = scaled(pick(100, 100_000, 100_000))
	case 10:
		p.Shapes = scaled(pick(1, 10_000, 10_000))
	case 11:
		p.Namespaces = pick(1, 1, 10, 500)
	case 12:
		p.Labels = pick(0, 10, 120)
	case 13, 14:
		rules(&p.PlacedRules)
	case 15, 16:
		rules(&p.WaitingRules)
	case 17:
		p.Budgets, p.AnyBudget = pick(0, scaled(100), scaled(1000)), pick(0, 1) == 1
	case 18:
		p.Levels, p.Nominated = pick(1, 2, 300), pick(0, scaled(1000), scaled(50_000))
	case 19:
		p.Ask, p.Services, p.Replicas = pick(0, 1, 2), pick(0, 0, 10), pick(0, 0, 1) == 1
	case 20:
		p.Where = pick(0, 0, 10, 500)
	case 21, 22:
		p.Volumes = worstVolumes{Free: scaled(pick(1, 10_000, 100_000)), At: pick(0, 0, 1, 2, 3, 4), Claims: pick(0, 1, 16, 256),
			Demands: pick(1, 1, 16, 256), Bound: pick(0, 0, 1) == 1, Single: pick(0, 0, 1) == 1}
	}
	p.Shapes, p.Kinds = min(p.Shapes, p.Waiting), max(1, min(p.Kinds, p.Placed+p.Crowd))
}

// look measures every command in one world, most of them in a world of its own
// that is a copy.
func (s *worstSearch) look(p worstPlan) {
	gc := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(gc)
	debug.SetMemoryLimit(8 << 30)
	began := time.Now()
	text, err := json.Marshal(p)
	if err != nil {
		s.t.Fatal(err)
	}
	w := p.build(s.t)
	s.t.Logf("a world in %v: %s", time.Since(began).Round(time.Millisecond), text)
	for _, c := range worstCases() {
		if !strings.HasPrefix(c.name, *worstOnlyFlag) {
			continue
		}
		runtime.GC()
		own := w.copy()
		for i := range *worstTimesFlag {
			cost := own.measure(c.make(own, i))
			if was, ok := s.found[c.name]; !ok || cost.by() > was.by() {
				s.found[c.name] = worstFound{cost, p}
			}
		}
	}
}

func (s *worstSearch) report() {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-30s %8s %10s %10s %8s %12s %12s %10s %9s %8s\n", "command", "paced ms", "ms", "work", "ns/unit", "allocated", "kept", "log", "changes", "refused")
	cases := worstCases()
	slices.SortStableFunc(cases, func(a, b worstCase) int { return cmp.Compare(s.found[b.name].by(), s.found[a.name].by()) })
	for _, c := range cases {
		f, ok := s.found[c.name]
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "%-30s %8.2f %10.2f %10d %8.0f %12d %12d %10d %9d %8d\n", c.name, float64(f.Paced.Microseconds())/1000, float64(f.Time.Microseconds())/1000, f.Work,
			float64(f.Time.Nanoseconds())/float64(max(1, f.Work)), f.Bytes, f.Kept, f.Log, f.Changes, f.Refused)
	}
	shown := map[worstPlan]bool{}
	for _, c := range cases[:min(len(cases), 12)] {
		if f, ok := s.found[c.name]; ok && !shown[f.plan] {
			shown[f.plan] = true
			text, err := json.Marshal(f.plan)
			if err != nil {
				s.t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s: -worst.plan='%s'\n", c.name, text)
		}
	}
	s.t.Log(b.String())
}
