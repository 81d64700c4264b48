package sched

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
)

// TestNobodySleepsWhoCouldBePlaced (QU8): whatever happens to a cluster, with plans under way, leaders lost and what is
// about rules, budgets, reservations and nominations changed in any order: once everything is settled, nobody waits for
// a change whom Explain would place or preempt for.
func TestNobodySleepsWhoCouldBePlaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newSleepWorld(t)
		for range rapid.IntRange(2, 14).Draw(t, "rounds") {
			for range rapid.IntRange(1, 3).Draw(t, "things") {
				w.anythingHappens()
			}
			w.settle()
			w.nobodySleeps()
		}
	})
}

// newSleepWorld is a small cluster of mixed kinds, with any configuration.
func newSleepWorld(t *rapid.T) *world {
	w := &world{harness: newHarness(), t: t, relabels: true}
	w.drawEvents()
	w.furnishTopology(rapid.IntRange(1, 4).Draw(t, "nodes"))
	w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
		others := rapid.Int32Range(0, 2).Draw(t, "other nodes")
		s.Preemption.MaxOtherNodes = &others
		if rapid.IntRange(0, 2).Draw(t, "strict") == 0 {
			s.Preemption.Budgets = berthv1.BudgetsStrict
		}
		if rapid.IntRange(0, 2).Draw(t, "reservation") == 0 {
			yes, after := true, int32(100)
			s.Reservation.Enabled, s.Reservation.AfterSeconds = &yes, &after
		}
		if rapid.IntRange(0, 5).Draw(t, "hard defaults") == 0 {
			s.PodTopologySpread.DefaultingType = berthv1.SpreadList
			c, _ := clustertest.Constraint(zoneKey + ":1:-")
			s.PodTopologySpread.DefaultConstraints = []corev1.TopologySpreadConstraint{c}
		}
	})
	if rapid.IntRange(0, 3).Draw(t, "volumes") == 3 {
		w.furnishVolumes()
	}
	if rapid.IntRange(0, 3).Draw(t, "devices") == 3 {
		w.furnishDevices()
	}
	if rapid.IntRange(0, 19).Draw(t, "crowd") == 19 {
		w.crowd()
	}
	return w
}

// sleeper is a pod with something of everything.
func (w *world) sleeper(bound bool) *corev1.Pod {
	p := w.topologyPod(bound)
	if p.Spec.Priority != nil && w.pick("system", "", "", "", "", "", "", "", "system") != "" {
		p.Spec.Priority, p.Spec.PreemptionPolicy = ptr(int32(model.SystemCriticalPriority)), nil
	}
	for _, word := range []string{
		w.pick("port", "", "", "", "port=80"), w.pick("strict", "", "", "", "strict"), w.pick("mem", "", "mem=3Gi"),
		w.pick("deadline", "", "", "", "deadline=30"), w.pick("gate", "", "", "", "", "gate=g"),
		w.pick("more cpu", "", "", "cpu=3", "cpu=15"),
		w.pick("tolerates", "", "", "", "tolerate=old"),
	} {
		if word == "" || bound && word == "gate=g" {
			continue
		}
		if err := clustertest.AddWord(p, word); err != nil {
			w.t.Fatal(err)
		}
	}
	w.claimsVolumes(p)
	w.claimsDevices(p)
	return p
}

// settle lets everything be decided that can be without anything new. Victims need not have ended.
func (w *world) settle() {
	for range 50 {
		w.decideAll()
		q := w.State.View().QueueLengths()
		if q.Active+q.Backoff == 0 {
			return
		}
		w.NowUnixNano += 400 * second
		w.expire()
	}
	w.t.Fatalf("the queue never comes to rest")
}

// decideAll steps until nothing is left to decide.
func (w *world) decideAll() {
	for range 200 + 4*w.State.View().Queue.Len() { // one wakes the next
		p := w.step(1024)
		if p == nil {
			return
		}
		w.t.Logf("at revision %d, second %d: %s", w.State.View().Revision(), w.NowUnixNano/second, describe(p.Command))
		for _, refused := range w.commit(p) {
			w.t.Logf("refused: %+v", refused)
		}
	}
	w.t.Fatalf("the scheduler goes round in circles")
}

// expire ends the nominations whose time has come, as the controller does.
func (w *world) expire() {
	var late []fsm.PodRef
	w.State.View().Nominations.Scan("", func(key string, n *fsm.Nomination) bool {
		if n.DeadlineUnixNano < w.NowUnixNano && !n.Reserved {
			late = append(late, fsm.PodRef{Key: key, UID: string(n.UID)})
		}
		return true
	})
	if len(late) > 0 {
		w.Must(&fsm.ReleaseNominations{Pods: late})
	}
}

// nobodySleeps asks Explain about everybody who waits for a change.
func (w *world) nobodySleeps() {
	v := w.State.View()
	v.Queue.Scan("", func(key string, e *fsm.QueueEntry) bool {
		if e.State != berthv1.QueueUnschedulable && e.State != berthv1.QueueNominated {
			return true
		}
		if inCrowd(key) {
			return true // no node is so large
		}
		pod, _ := v.Pods.Get(key)
		nom, nominated := v.Nominations.Get(key)
		verdicts := explainAll(v, pod)
		waits := nominated && !nom.Reserved && mayStillTake(verdicts, nom.Node)
		for _, n := range verdicts {
			if len(n.Reasons) == 0 {
				w.t.Fatalf("%s (%s: %s) sleeps beside room on %s", key, e.State, e.Diagnosis.Message, n.Node)
			}
			if !waits && !missesSome(v, pod) && len(n.Victims)+len(n.Ending) > 0 {
				w.t.Fatalf("%s (%s: %s) sleeps, and could preempt %v on %s, waiting for %v",
					key, e.State, e.Diagnosis.Message, n.Victims, n.Node, n.Ending)
			}
		}
		return true
	})
}

// missesSome says whether victims of a pod may be missed that there are: without a search they are chosen by reprieve
// alone, which asks nobody to stay whom the pod's affinity needs, and finds them when one of those who are in its way
// leaves.
func missesSome(v *fsm.View, pod *corev1.Pod) bool {
	return *v.SchedulerConfig().Spec.Preemption.SearchLimit == 0 && pod.Spec.Affinity != nil && pod.Spec.Affinity.PodAffinity != nil
}

// mayStillTake says whether a node can take the pod that is nominated to it once its victims have gone (T5). That other
// pods, or a service that came, make it impossible is found out when they have gone, or are late.
func mayStillTake(verdicts []NodeVerdict, node string) bool {
	i := slices.IndexFunc(verdicts, func(n NodeVerdict) bool { return n.Node == node })
	return i >= 0 && !slices.ContainsFunc(verdicts[i].Reasons, func(r Reason) bool {
		return !r.Kind.Resolvable() && r.Kind != model.TopologyMissing && r.Kind != model.PodAffinity
	})
}
