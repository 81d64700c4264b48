package fsm

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
)

// TestNodeDoesNotGrow: a worker that says something else each time cannot make
// its node's row grow for ever.
func TestNodeDoesNotGrow(t *testing.T) {
	for name, tt := range map[string]struct {
		say   func(n *corev1.Node, i int)
		field string
	}{
		"labels":     {func(n *corev1.Node, i int) { n.Labels = map[string]string{fmt.Sprint("l", i): "v"} }, "metadata.labels"},
		"annotation": {func(n *corev1.Node, i int) { n.Annotations = map[string]string{fmt.Sprint("a", i): "v"} }, "metadata.annotations"},
		"resources": {func(n *corev1.Node, i int) {
			n.Status.Capacity = corev1.ResourceList{corev1.ResourceName(fmt.Sprint("r", i)): apiresource.MustParse("1")}
		}, "status.capacity"},
		"conditions": {func(n *corev1.Node, i int) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeConditionType(fmt.Sprint("C", i)), Status: "True"}}
		}, "status.conditions"},
		"bytes": {func(n *corev1.Node, i int) {
			n.Annotations = map[string]string{fmt.Sprint("a", i): strings.Repeat("x", 100_000)}
		}, "Too long"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			refused := ""
			for i := range 300 {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
				tt.say(n, i)
				if r := w.apply(&RegisterNode{Node: NodeWire{Object: n}})[0]; r.Refused() {
					if refused = r.Message; r.Code != 422 {
						t.Fatalf("%+v", r)
					}
				}
			}
			if !strings.Contains(refused, tt.field) {
				t.Errorf("refused for %q, want %s", refused, tt.field)
			}
			// What it says that is known already is still taken.
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			tt.say(n, 0)
			if r := w.apply(&RegisterNode{Node: NodeWire{Object: n}})[0]; r.Refused() {
				t.Errorf("what is there is refused: %s", r.Message)
			}
		})
	}
}

// TestReportsAddNoConditions: a pod's conditions of others are not a worker's
// to add, one more in each report.
func TestReportsAddNoConditions(t *testing.T) {
	w := newTranscript(t)
	w.run("cluster", nil, "node n1 cpu=1\npod web cpu=1 uid=u\nbind web n1")
	for i := range 100 {
		w.apply(&ReportPods{Node: "n1", Reports: []PodReport{{Key: "default/web", UID: "u", Status: PodStatusWire{Object: &corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodConditionType(fmt.Sprint("C", i)), Status: "True"}}}}}}})
	}
	pod, _ := w.view().Pods.Get("default/web")
	if most := len(model.WorkerConditions()) + 2; len(pod.Status.Conditions) > most {
		t.Errorf("%d conditions", len(pod.Status.Conditions))
	}
}

// TestConditionOfRestartingAll: it is the worker's by the rules that know it, and by earlier ones nobody's to add.
func TestConditionOfRestartingAll(t *testing.T) {
	for version, want := range map[int]string{SinceRestarting - 1: "[]", SinceRestarting: "[True False]"} {
		w := newTranscriptBy(t, version)
		w.run("cluster", nil, "node n1 cpu=1\npod web cpu=1 uid=u\nbind web n1")
		pod, _ := w.view().Pods.Get("default/web")
		tx := w.state.begin(w.index+1, 1, Header{Version: version, TimeUnixNano: w.now.UnixNano()})
		got := []corev1.ConditionStatus{}
		for _, says := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, ""} {
			reported := &corev1.PodStatus{Phase: corev1.PodRunning}
			if says != "" {
				reported.Conditions = []corev1.PodCondition{{Type: corev1.AllContainersRestarting, Status: says}}
			}
			pod = pod.DeepCopy()
			pod.Status = tx.mergeStatus(pod, reported)
			if c := findCondition(&pod.Status, corev1.AllContainersRestarting); c != nil {
				got = append(got, c.Status)
			}
		}
		if fmt.Sprint(got) != want {
			t.Errorf("by version %d of the rules: %q, want %q", version, got, want)
		}
	}
}

// TestEffectiveClassesAreBounded: by what they hold, not by how many they are.
func TestEffectiveClassesAreBounded(t *testing.T) {
	x := new(effectiveClasses)
	for range 100 {
		x.get(effectiveKey{class: new(model.Class)}, 1<<20, func() *model.Class { return new(model.Class) })
		if x.bytes > maxEffectiveBytes || len(x.of) > maxEffectiveBytes>>20 {
			t.Fatalf("%d classes of %d bytes", len(x.of), x.bytes)
		}
	}
	owner := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "In", Values: []string{strings.Repeat("v", 10_000)}}}}
	if k := (effectiveKey{owner: owner}); k.bytes(2) < 20_000 {
		t.Error("what an owner selects by costs nothing")
	}
}
