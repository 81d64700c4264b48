package controller_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/owners"
)

// TestWorkloadsConverge: whatever users, nodes and changes of leader do, and
// whatever becomes of what is under way, in the end every ReplicaSet has exactly
// as many pods as it wants, all of them matching, and says so; nothing that it
// could adopt is left, and nobody's dependents are.
func TestWorkloadsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(panics{})
		w.run("node", args{{Key: "n1"}})
		pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
		set := func() string { return pick("set", "a", "b", "c") }
		line := func(format string, values ...any) {
			text := fmt.Sprintf(format, values...)
			var words args
			fields := strings.Fields(text)
			for _, f := range fields[1:] {
				key, value, ok := strings.Cut(f, "=")
				arg := args{{Key: key}}
				if ok {
					arg[0].Vals = strings.Split(value, ",")
				}
				words = append(words, arg...)
			}
			w.run(fields[0], words)
		}
		uid := 0
		t.Repeat(map[string]func(*rapid.T){
			"set": func(*rapid.T) {
				name := set()
				if _, known := w.state.View().ReplicaSet("default", name); known {
					line("rs %s replicas=%s", name, pick("replicas", "0", "1", "3", "6"))
					return
				}
				uid++
				// Two of the three want the same pods.
				line("rs %s replicas=%s selector=app:%s uid=uid-%s-%d %s", name, pick("replicas", "0", "1", "3", "6"),
					map[string]string{"a": "x", "b": "x", "c": "y"}[name], name, uid, pick("annotation", "", "annotations=berth.dev/scale-in:spread"))
			},
			"delete set": func(*rapid.T) {
				line("delete-rs %s propagation=%s", set(), pick("propagation", "Background", "Foreground", "Orphan"))
			},
			"orphan": func(*rapid.T) {
				uid++
				line("pod p%d labels=app:%s %s", uid, pick("app", "x", "y", "z"), pick("node", "", "node=n1"))
			},
			"pod": func(t *rapid.T) {
				pods := w.pods()
				if len(pods) == 0 {
					return
				}
				pod := pods[rapid.IntRange(0, len(pods)-1).Draw(t, "pod")]
				w.befall(pod, pick("fate", "bound", "ready", "unready", "Failed", "removed", "delete", "relabel"), pick("app", "x", "y", "z"))
			},
			"replicasets":          func(*rapid.T) { line("replicasets") },
			"garbage":              func(*rapid.T) { line("garbage") },
			"replicasets go out":   func(*rapid.T) { line("replicasets under-way") },
			"garbage goes out":     func(*rapid.T) { line("garbage under-way") },
			"replicasets come in":  func(*rapid.T) { line("replicasets settle") },
			"garbage comes in":     func(*rapid.T) { line("garbage settle") },
			"replicasets get lost": func(*rapid.T) { line("replicasets fail") },
			"garbage gets lost":    func(*rapid.T) { line("garbage fail") },
			"late": func(*rapid.T) { // what an old leader proposed is applied under the new one
				late := append(w.sets.lost, w.garbage.lost...)
				line("lead")
				line("replicasets")
				for _, work := range late {
					w.apply(work.Commands...)
				}
			},
			"time": func(*rapid.T) { line("advance 1s") },
		})
		line("replicasets settle")
		line("garbage settle")
		for range 4 { // pods that end make others wait for them
			line("garbage until-quiet")
			line("replicasets until-quiet")
			for _, pod := range w.pods() {
				if pod.DeletionTimestamp != nil {
					w.befall(pod, "removed", "")
				}
			}
			line("advance 1s")
		}
		line("garbage until-quiet")
		line("replicasets until-quiet")
		w.converged(t)
	})
}

func (w *world) pods() []*corev1.Pod {
	var out []*corev1.Pod
	w.state.View().Pods.Scan("", func(_ string, pod *corev1.Pod) bool {
		out = append(out, pod)
		return true
	})
	return out
}

// befall does something to one pod.
func (w *world) befall(pod *corev1.Pod, fate, app string) {
	key := fsm.PodKey(pod.Namespace, pod.Name)
	report := func(status *corev1.PodStatus, removed bool) {
		w.apply(&fsm.ReportPods{Node: pod.Spec.NodeName, Reports: []fsm.PodReport{{Key: key, UID: string(pod.UID), Removed: removed, Status: fsm.PodStatusWire{Object: status}}}})
	}
	ready := func(status corev1.ConditionStatus) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	}
	switch fate {
	case "bound":
		w.apply(&fsm.BindPod{Key: key, Node: "n1"})
	case "ready":
		report(&corev1.PodStatus{Phase: corev1.PodRunning, Conditions: ready(corev1.ConditionTrue)}, false)
	case "unready":
		report(&corev1.PodStatus{Phase: corev1.PodRunning, Conditions: ready(corev1.ConditionFalse)}, false)
	case "Failed":
		report(&corev1.PodStatus{Phase: corev1.PodFailed}, false)
	case "removed":
		report(nil, true)
	case "delete":
		w.apply(&fsm.DeletePod{Key: key})
	case "relabel":
		next := pod.DeepCopy()
		next.Labels = map[string]string{"app": app}
		w.apply(&fsm.UpdatePod{Pod: fsm.PodWire{Object: next}})
	}
}

// converged fails unless there is nothing left to be done.
func (w *world) converged(t *rapid.T) {
	v := w.state.View()
	v.ScanReplicaSets("", func(rs *appsv1.ReplicaSet) bool {
		if rs.DeletionTimestamp != nil {
			t.Fatalf("%s is still being deleted: %v", rs.Name, rs.Finalizers)
		}
		selector := labels.SelectorFromSet(rs.Spec.Selector.MatchLabels)
		var active, ready int32
		for _, pod := range w.pods() {
			c := owners.ControllerOf(pod)
			mine := c != nil && c.UID == rs.UID
			switch {
			case !owners.Active(pod):
			case mine && !selector.Matches(labels.Set(pod.Labels)):
				t.Fatalf("%s keeps %s, which does not match", rs.Name, pod.Name)
			case mine:
				active++
				if model.Ready(pod) {
					ready++
				}
			case c == nil && selector.Matches(labels.Set(pod.Labels)):
				t.Fatalf("%s has not adopted %s", rs.Name, pod.Name)
			}
		}
		if s := rs.Status; active != fsm.ReplicasOf(rs) || s.Replicas != active || s.ReadyReplicas != ready || s.ObservedGeneration != rs.Generation {
			t.Fatalf("%s wants %d, has %d of which %d are ready, and says %+v at generation %d", rs.Name, fsm.ReplicasOf(rs), active, ready, s, rs.Generation)
		}
		return true
	})
	v.ScanDependents("", func(_ string, ref fsm.ObjectRef) bool {
		if v.Judge(ref) != fsm.Keep {
			t.Fatalf("%s/%s is left over", ref.Resource, ref.Name)
		}
		return true
	})
}

// TestEveryRuleIsShown: the rules about workloads are each named where a
// transcript shows them.
func TestEveryRuleIsShown(t *testing.T) {
	var text strings.Builder
	for _, pattern := range []string{"testdata/*.txt", "testdata/scale_in/*.txt"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(b)
		}
	}
	for _, rule := range strings.Fields("WC1 WC4 SI1 SI2 SI3 SI4 SI5 SI6 SI7 SI8 SI9 T9 T10") {
		if !strings.Contains(text.String(), "# "+rule) {
			t.Errorf("no transcript shows rule %s", rule)
		}
	}
}
