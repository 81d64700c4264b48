package sched

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
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
	w.furnishTopology(rapid.IntRange(1, 4).Draw(t, "nodes"))
	w.configure(func(s *berthv1.SchedulerConfigurationSpec) {
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
			c, _ := buildConstraint(zoneKey + ":1:-")
			s.PodTopologySpread.DefaultConstraints = []corev1.TopologySpreadConstraint{c}
		}
	})
	return w
}

// sleeper is a pod with something of everything.
func (w *world) sleeper(bound bool) *corev1.Pod {
	p := w.topologyPod(bound)
	for _, word := range []string{
		w.pick("port", "", "", "", "port=80"), w.pick("strict", "", "", "", "strict"), w.pick("mem", "", "mem=3Gi"),
		w.pick("deadline", "", "", "", "deadline=30"), w.pick("gate", "", "", "", "", "gate=g"), w.pick("more cpu", "", "", "cpu=3", "cpu=15"),
		w.pick("tolerates", "", "", "", "tolerate=old"),
	} {
		if word == "" || bound && word == "gate=g" {
			continue
		}
		if err := addToPod(p, word); err != nil {
			w.t.Fatal(err)
		}
	}
	return p
}

// anythingHappens lets one thing happen to the cluster.
func (w *world) anythingHappens() {
	switch rapid.IntRange(0, 20).Draw(w.t, "anything") {
	case 0, 1, 2, 3:
		for range rapid.IntRange(1, 3).Draw(w.t, "pods") {
			w.pod(w.sleeper(false))
		}
	case 4:
		w.pod(w.sleeper(true))
	case 5:
		w.confirm()
	case 6:
		w.randomBudgets()
	case 7:
		w.dropBudgets()
	case 8, 9:
		w.changesReadiness()
	case 10, 11:
		w.changesPod()
	case 12: // the leader is lost
		w.sched = New(w.state)
	case 13: // a plan is overtaken
		if p := w.step(rapid.IntRange(1, 4).Draw(w.t, "max")); p != nil {
			w.anythingHappens()
			w.commit(p)
		}
	case 14:
		w.configure(func(s *berthv1.SchedulerConfigurationSpec) {
			s.Preemption.Budgets = rapid.SampledFrom([]berthv1.BudgetPolicy{"", berthv1.BudgetsStrict}).Draw(w.t, "budgets")
			others := rapid.Int32Range(0, 2).Draw(w.t, "other nodes now")
			s.Preemption.MaxOtherNodes = &others
		})
	case 15:
		w.changesNode()
	case 16:
		w.changesSelectors()
	case 17:
		w.configuresPlugins(w.pick("profile", "odd", "default-scheduler"))
	default:
		w.happenAround(4)
	}
	w.now += rapid.Int64Range(0, 20).Draw(w.t, "seconds") * second
}

// changesReadiness has a pod that runs say whether it is ready.
func (w *world) changesReadiness() {
	if key, ok := w.someBoundPod(); ok {
		w.report(key, rapid.Bool().Draw(w.t, "ready"))
	}
}

func (w *world) someBoundPod() (string, bool) {
	var keys []string
	w.state.View().Pods.Scan("", func(key string, p *corev1.Pod) bool {
		if p.Spec.NodeName != "" && !model.Terminal(p) {
			keys = append(keys, key)
		}
		return true
	})
	if len(keys) == 0 {
		return "", false
	}
	return w.pick("bound", keys...), true
}

// changesPod changes what an update of a pod may change.
func (w *world) changesPod() {
	key, ok := w.somePod()
	if !ok {
		return
	}
	old, _ := w.state.View().Pods.Get(key)
	p := old.DeepCopy()
	switch w.pick("what", "labels", "labels", "toleration", "gate", "strict", "image") {
	case "labels":
		p.Labels = map[string]string{"app": w.pick("app", "web", "db", "none"), "rev": w.pick("rev", "1", "2")}
	case "toleration":
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: w.pick("tolerated", "team", "old"), Operator: corev1.TolerationOpExists})
	case "gate":
		p.Spec.SchedulingGates = nil
	case "strict":
		p.Annotations = map[string]string{model.DisruptionPolicyAnnotation: w.pick("policy", "Strict", "")}
	case "image":
		p.Spec.Containers[0].Image = w.pick("image", "web:1", "db")
	}
	w.must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: p}})
}

// changesNode changes one thing of a node.
func (w *world) changesNode() {
	old, ok := w.state.View().Nodes.Get(w.someNode())
	if !ok {
		return
	}
	n := old.DeepCopy()
	n.ResourceVersion = ""
	switch w.pick("of the node", "cordon", "taint", "label", "unrelated") {
	case "cordon":
		n.Spec.Unschedulable = !n.Spec.Unschedulable
	case "taint":
		n.Spec.Taints = nil
		if rapid.Bool().Draw(w.t, "tainted") {
			n.Spec.Taints = []corev1.Taint{{Key: w.pick("taint key", "team", "old"), Effect: corev1.TaintEffectNoSchedule}}
		}
	case "label":
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		key := w.pick("label key", "zone", zoneKey, hostKey, "rack")
		if v := w.pick("label value", "", "a", "b", "1"); v != "" {
			n.Labels[key] = v
		} else {
			delete(n.Labels, key)
		}
	case "unrelated":
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels["unrelated"] = fmt.Sprint(w.now)
	}
	w.must(&fsm.PutNode{Node: fsm.NodeWire{Object: n}})
}

// changesSelectors changes what default constraints go by.
func (w *world) changesSelectors() {
	name := w.pick("service", "web", "first")
	if _, ok := w.state.View().Objects.Get(fsm.ObjectKey("services", "default", name)); ok {
		w.must(&fsm.DeleteObject{Resource: "services", Namespace: "default", Name: name})
		return
	}
	w.service(name, map[string]string{"app": w.pick("selects", "web", "db")})
}

// settle lets everything be decided that can be without anything new. Victims need not have ended.
func (w *world) settle() {
	for range 50 {
		w.decideAll()
		q := w.state.View().QueueLengths()
		if q.Active+q.Backoff == 0 {
			return
		}
		w.now += 400 * second
		w.expire()
	}
	w.t.Fatalf("the queue never comes to rest")
}

// decideAll steps until nothing is left to decide.
func (w *world) decideAll() {
	for range 200 {
		p := w.step(1024)
		if p == nil {
			return
		}
		w.t.Logf("at revision %d, second %d: %s", w.state.View().Revision(), w.now/second, describe(p.Command))
		for _, refused := range w.commit(p) {
			w.t.Logf("refused: %+v", refused)
		}
	}
	w.t.Fatalf("the scheduler goes round in circles")
}

// expire ends the nominations whose time has come, as the controller does.
func (w *world) expire() {
	var late []fsm.PodRef
	w.state.View().Nominations.Scan("", func(key string, n *fsm.Nomination) bool {
		if n.DeadlineUnixNano < w.now && !n.Reserved {
			late = append(late, fsm.PodRef{Key: key, UID: string(n.UID)})
		}
		return true
	})
	if len(late) > 0 {
		w.must(&fsm.ReleaseNominations{Pods: late})
	}
}

// nobodySleeps asks Explain about everybody who waits for a change.
func (w *world) nobodySleeps() {
	v := w.state.View()
	v.Queue.Scan("", func(key string, e *fsm.QueueEntry) bool {
		if e.State != berthv1.QueueUnschedulable && e.State != berthv1.QueueNominated {
			return true
		}
		pod, _ := v.Pods.Get(key)
		nom, nominated := v.Nominations.Get(key)
		waits := nominated && !nom.Reserved
		for _, n := range explainAll(v, pod) {
			if len(n.Reasons) == 0 {
				w.t.Fatalf("%s (%s: %s) sleeps beside room on %s", key, e.State, e.Diagnosis.Message, n.Node)
			}
			if !waits && len(n.Victims)+len(n.Ending) > 0 {
				w.t.Fatalf("%s (%s: %s) sleeps, and could preempt %v on %s, waiting for %v",
					key, e.State, e.Diagnosis.Message, n.Victims, n.Node, n.Ending)
			}
		}
		return true
	})
}
