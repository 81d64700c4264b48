package sched

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// memoryLog is a log of what a harness applied.
type memoryLog struct {
	term    uint64
	entries [][]byte
	terms   []uint64
}

func (l *memoryLog) add(now int64, c fsm.Command) {
	b, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: now},
		[]fsm.Proposal{{User: "test", Groups: []string{"system:masters"}, Command: c}})
	if err != nil {
		panic(err)
	}
	l.entries, l.terms = append(l.entries, b), append(l.terms, l.term)
}

// apply adds an entry and applies it.
func (l *memoryLog) apply(state *fsm.State, now int64, c fsm.Command) fsm.Result {
	l.add(now, c)
	i := len(l.entries)
	results, err := state.Apply(uint64(i), l.terms[i-1], l.entries[i-1])
	if err != nil {
		panic(err)
	}
	return results[0]
}

func (l *memoryLog) Entry(index uint64) (uint64, []byte, error) {
	if index == 0 || index > uint64(len(l.entries)) {
		return 0, nil, fmt.Errorf("there is no entry %d", index)
	}
	return l.terms[index-1], l.entries[index-1], nil
}

// recordedWorld is a world that keeps its log from the first entry on, with pods that have rules about each other or
// without, and what happens in it.
func recordedWorld(t *rapid.T, nodes int) (w *world, happen func(nodes int)) {
	w = &world{harness: newHarnessOn(&memoryLog{term: 1}), t: t}
	w.drawWork()
	if rapid.Bool().Draw(t, "reserve early") {
		w.configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Reservation.AfterSeconds = new(int32(1)) })
	}
	if rapid.Bool().Draw(t, "topology") {
		w.furnishTopology(nodes)
		w.relabels = true
		return w, func(nodes int) {
			if rapid.IntRange(0, 2).Draw(t, "plain") > 0 {
				w.happenAround(nodes)
			} else {
				w.happen(nodes)
			}
		}
	}
	w.furnish(nodes)
	return w, w.happen
}

// live lets a recorded world go through whatever can happen to a leader: plans under way over each other, settled in
// any order, some of them lost, changes of leader, of the configuration, and memory that is forgotten. It returns how
// many plans never came into the log.
func (w *world) live(nodes int, happen func(nodes int)) (lost int) {
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
			w.now += int64(rapid.IntRange(0, 3).Draw(t, "seconds")) * second
		case 3, 4: // the oldest plan is applied; a settled one may still be on its way
			for i, p := range under {
				if !applied[p] {
					if rapid.IntRange(0, 9).Draw(t, "lost") > 0 {
						w.must(p.Command)
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
			if *w.state.View().SchedulerConfig().Spec.Preemption.Enabled { // else no pod may have a class
				happen(nodes)
			}
		case 8:
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0: // the feed was lost
				w.sched.broken = true
			case 1: // too many classes for memory, and changes long gone
				w.sched.dropAll()
				if w.sched.view != nil {
					w.sched.view.log.keep = -8 * nodes
				}
			case 2: // another leader; what the old one had under way and is not in the log is lost
				w.sched, under = New(w.state), nil
				w.log.term++
			case 3:
				on := rapid.Bool().Draw(t, "preemption")
				w.configure(func(s *berthv1.SchedulerConfigurationSpec) { s.Preemption.Enabled = &on })
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

// TestReplayDecidesTheSame: whatever happened, the log is enough to decide every plan again, and each comes out the
// same. Only plans that lie over one that was lost can not be decided again, because nobody knows what that one was.
func TestReplayDecidesTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 5).Draw(t, "nodes")
		w, happen := recordedWorld(t, nodes)
		lost := w.live(nodes, happen)
		r := &Replay{State: fsm.NewState(), Log: w.log, Keep: 3}
		if err := r.Run(uint64(len(w.log.entries))); err != nil {
			t.Fatal(err)
		}
		if r.Report.Different > 0 {
			t.Fatalf("came out otherwise: %+v", r.Report)
		}
		if skipped := r.Report.SkippedAtStart + r.Report.SkippedUnknown + r.Report.SkippedOld; skipped > 0 && lost == 0 {
			t.Fatalf("%d plans were skipped and none was lost: %+v", skipped, r.Report)
		}
		if got, want := r.State.View().Digest(), w.state.View().Digest(); got != want {
			t.Fatalf("the replay ends in another state")
		}
	})
}

// TestReplayFromTheMiddle: a snapshot and the entries after it are enough too.
func TestReplayFromTheMiddle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 5).Draw(t, "nodes")
		w, happen := recordedWorld(t, nodes)
		w.live(nodes, happen)
		last := uint64(len(w.log.entries))
		first := &Replay{State: fsm.NewState(), Log: w.log}
		if err := first.Run(uint64(rapid.IntRange(1, int(last)).Draw(t, "from"))); err != nil {
			t.Fatal(err)
		}
		r := &Replay{State: first.State.View().Fork(), Log: w.log, Keep: 3}
		if err := r.Run(last); err != nil {
			t.Fatal(err)
		}
		if r.Report.Different > 0 {
			t.Fatalf("came out otherwise: %+v", r.Report)
		}
	})
}

// TestReplayFindsWhatIsNotSo: one decision of the log is another than the scheduler would have made, and the replay
// says which.
func TestReplayFindsWhatIsNotSo(t *testing.T) {
	for _, c := range []struct {
		what, pod string
		alter     func(c *fsm.ApplyPlan) bool
	}{
		{"a victim", "default/high", func(c *fsm.ApplyPlan) bool {
			if len(c.Preemptions) == 0 {
				return false
			}
			d := c.Preemptions[0]
			d.Victims = d.Victims[:1]
			c.Preemptions = []fsm.PreemptDecision{d}
			return true
		}},
		{"a runner-up", "default/low0", func(c *fsm.ApplyPlan) bool {
			if len(c.Bindings) == 0 {
				return false
			}
			c.Bindings = slices.Clone(c.Bindings)
			c.Bindings[0].RunnerUp += "0"
			return true
		}},
		{"a reservation", "default/large", func(c *fsm.ApplyPlan) bool {
			if len(c.Reservations) == 0 {
				return false
			}
			c.Reservations = slices.Clone(c.Reservations)
			c.Reservations[0].Node = "n2"
			return true
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			log := lifeWith(t, c.alter)
			r := &Replay{State: fsm.NewState(), Log: log, Keep: 3}
			if err := r.Run(uint64(len(log.entries))); err != nil {
				t.Fatal(err)
			}
			if r.Report.Different != 1 || len(r.Report.Differences) != 1 || r.Report.Differences[0].Pod != c.pod {
				t.Fatalf("one decision was altered; the replay found %+v", r.Report)
			}
			if r.Report.Bindings == 0 || r.Report.Preemptions == 0 || r.Report.Failures == 0 || r.Report.Reservations == 0 {
				t.Errorf("a life without some kind of decision: %+v", r.Report)
			}
			if d := r.Report.Differences[0]; d.Recorded == d.Decided || d.Index == 0 || d.Number == 0 {
				t.Errorf("a difference that does not tell: %+v", d)
			}
		})
	}
}

// lifeWith records decisions of all kinds; the first plan that can be is altered.
func lifeWith(t *testing.T, alter func(c *fsm.ApplyPlan) bool) *memoryLog {
	h := newHarnessOn(&memoryLog{term: 1})
	for _, n := range []string{"n1 cpu=4", "n2 cpu=2", "n3 cpu=1"} {
		h.node(mkNode(n))
	}
	altered := false
	decide := func() {
		for p := h.next(4); p != nil; p = h.next(4) {
			c := *p.Command
			altered = altered || alter(&c)
			h.must(&c)
			h.sched.Settle(p)
		}
	}
	for i := range 6 {
		h.pod(mkPod(fmt.Sprintf("low%d priority=0 cpu=1", i)))
	}
	decide()
	h.pod(mkPod("high priority=10 cpu=2"))
	h.pod(mkPod("huge priority=10 cpu=9"))
	h.pod(mkPod("large priority=-1 cpu=4"))
	decide()
	h.now += 400 * second
	decide()
	if !altered {
		t.Fatal("there was nothing to alter")
	}
	return h.log
}

// TestReplayNeedsItsLog: an entry that is missing is an error, not a difference.
func TestReplayNeedsItsLog(t *testing.T) {
	l := &memoryLog{term: 1}
	l.add(1, &fsm.Checkpoint{})
	r := &Replay{State: fsm.NewState(), Log: l}
	if err := r.Run(2); err == nil || errors.Is(err, store.ErrUnknownCommand) {
		t.Errorf("a log without entry 2: %v", err)
	}
}

// TestLoadHoldsBack: a failure that hangs on an unsettled preemption is held back whether the view was loaded anew
// meanwhile or not: what the preemption is about is known from the plan, also when its victim is gone already.
func TestLoadHoldsBack(t *testing.T) {
	for _, anew := range []bool{false, true} {
		h := newHarness()
		h.node(mkNode("n1 pods=1"))
		h.pod(mkPod("victim priority=0 label=app=web grace=0 node=n1"))
		h.pod(mkPod("high priority=10"))
		p := h.next(1)
		h.must(p.Command)
		if _, there := h.state.View().Pods.Get("default/victim"); there {
			t.Fatal("a victim without a grace period is still there")
		}
		h.pod(mkPod("near priority=10 near=kubernetes.io/hostname:app=web"))
		if anew {
			h.sched.broken = true
		}
		if q := h.next(8); q != nil {
			t.Errorf("loaded anew: %v: it does not wait for the plan under way: %s", anew, describe(q.Command))
		}
	}
}
