package sched

import (
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// Life is what a recorded world has gone through.
type Life struct {
	Log *clustertest.Log // from the first entry on
	End *fsm.View
	// Lost is how many plans never came into the log.
	Lost int
}

// Live lets a recorded world of a few nodes live, for the tests that decide its log again: they know package replay, which
// this one must not. With panics, some decisions panic.
func Live(t *rapid.T, panics bool) *Life {
	nodes := rapid.IntRange(1, 5).Draw(t, "nodes")
	w := newRecordedWorld(t, nodes)
	if panics {
		w.panicsAfter(rapid.IntRange(20, 200).Draw(t, "charges"))
	}
	lost := w.live(nodes)
	return &Life{Log: w.log, End: w.State.View(), Lost: lost}
}

// recordedWorld is a world that keeps its log, with pods that have rules about each other or without.
type recordedWorld struct {
	*world
	log   *clustertest.Log
	event func(nodes int) // lets something happen
}

func newRecordedWorld(t *rapid.T, nodes int) *recordedWorld {
	log := &clustertest.Log{Term: 1}
	w := &recordedWorld{world: &world{harness: newHarnessOn(clustertest.NewLogged(log)), t: t}, log: log}
	w.event = w.happen
	w.drawWork()
	if rapid.Bool().Draw(t, "reserve early") {
		w.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Reservation.AfterSeconds = new(int32(1)) })
	}
	if rapid.Bool().Draw(t, "topology") {
		w.furnishTopology(nodes)
		w.relabels = true
		w.event = func(nodes int) {
			if rapid.IntRange(0, 2).Draw(t, "plain") > 0 {
				w.happenAround(nodes)
			} else {
				w.happen(nodes)
			}
		}
		return w
	}
	w.furnish(nodes)
	return w
}

// live lets a recorded world go through whatever can happen to a leader: plans under way over each other, settled in
// any order, some of them lost, changes of leader, of the configuration, and memory that is forgotten. It returns how
// many plans never came into the log.
func (w *recordedWorld) live(nodes int) (lost int) {
	t := w.t
	var under []*Plan
	applied := map[*Plan]bool{}
	for range rapid.IntRange(10, 60).Draw(t, "turns") {
		switch rapid.IntRange(0, 9).Draw(t, "turn") {
		case 0, 1, 2:
			if len(under) == maxUnder {
				continue
			}
			if p := w.step(rapid.IntRange(1, 4).Draw(t, "max")); p != nil {
				under = append(under, p)
				t.Logf("at %d, over %v, decided %d: %s", p.Command.Revision, p.Command.Over, p.Command.Number, describe(p.Command))
			}
			w.NowUnixNano += int64(rapid.IntRange(0, 3).Draw(t, "seconds")) * second
		case 3, 4: // the oldest plan is applied; a settled one may still be on its way
			for i, p := range under {
				if !applied[p] {
					if rapid.IntRange(0, 9).Draw(t, "lost") > 0 {
						w.Must(p.Command)
						applied[p] = true
					} else { // and every later one of this term with it, as far as it is not in the log
						lost++
						w.sched.Settle(p)
						under = append(under[:i], under[i+1:]...)
					}
					break
				}
			}
		case 5: // any plan that is applied is settled
			var done []int
			for i, p := range under {
				if applied[p] {
					done = append(done, i)
				}
			}
			if len(done) > 0 {
				i := rapid.SampledFrom(done).Draw(t, "settled")
				w.sched.Settle(under[i])
				under = append(under[:i], under[i+1:]...)
			}
		case 6, 7:
			if *w.State.View().SchedulerConfig().Spec.Preemption.Enabled { // else no pod may have a class
				w.event(nodes)
			}
		case 8:
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0: // the feed was lost
				w.sched.broken = true
			case 1: // too many classes for memory, and changes long gone
				w.forgetClasses(nodes)
			case 2: // another leader; what the old one had under way and is not in the log is lost
				w.sched, under = New(w.State), nil
				w.log.Term++
			case 3:
				on := rapid.Bool().Draw(t, "preemption")
				w.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Preemption.Enabled = &on })
			case 4:
				w.configuresPlugins(w.pick("profile", "odd", "default-scheduler"))
			}
		case 9: // a step that leads to nothing, and still follows the state
			w.sched.followAll()
		}
	}
	return lost
}

// maxUnder is how many plans may be under way at once in these tests.
const maxUnder = 4
