package model

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"
)

// TestSelected: where the pods are that a selector selects is what a walk over all pods says, and what it takes to say so
// follows from the pods that there are.
func TestSelected(t *testing.T) {
	type standingPod struct {
		node, namespace string
		class           *Class
		leaving         bool
	}
	rapid.Check(t, func(t *rapid.T) {
		topo := NewTopology()
		var pods []standingPod
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			if len(pods) > 0 && rapid.IntRange(0, 3).Draw(t, "goes") == 0 {
				i := rapid.IntRange(0, len(pods)-1).Draw(t, "which")
				topo.RemovePod(pods[i].node, pods[i].class, pods[i].leaving)
				pods = slices.Delete(pods, i, i+1)
				continue
			}
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"),
				Labels:    map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app"), "rev": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "rev")},
			}}
			priority := rapid.Int32Range(0, 2).Draw(t, "priority")
			p.Spec.Priority = &priority
			s := standingPod{fmt.Sprint("n", rapid.IntRange(0, 4).Draw(t, "node")), p.Namespace, ClassOf(p), rapid.Bool().Draw(t, "leaving")}
			topo.AddPod(s.node, s.class, s.leaving)
			pods = append(pods, s)
		}
		selector, err := labels.Parse(rapid.SampledFrom([]string{"", "app=x", "app=x,rev=2", "app in (x,y)", "rev!=1", "app=z"}).Draw(t, "selector"))
		if err != nil {
			t.Fatal(err)
		}
		if rapid.IntRange(0, 9).Draw(t, "nobody") == 0 {
			selector = labels.Nothing()
		}
		most := rapid.IntRange(0, 5).Draw(t, "most nodes")
		want, nodes := Standing{Lowest: math.MaxInt32}, map[string]bool{}
		for _, p := range pods {
			if p.namespace == "a" && !p.leaving && selector.Matches(labels.Set(p.class.Labels)) {
				want.Lowest, nodes[p.node] = min(want.Lowest, p.class.Priority), true
			}
		}
		if len(nodes) <= most {
			want.Nodes = slices.Sorted(maps.Keys(nodes))
		}
		got, looks, ok := topo.Selected("a", selector, 100, most)
		if !ok || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v selects %+v (%t), want %+v", selector, got, ok, want)
		}
		again := NewTopology()
		for _, p := range slices.Backward(pods) {
			again.AddPod(p.node, p.class, p.leaving)
		}
		if other, takes, _ := again.Selected("a", selector, 100, most); takes != looks || !reflect.DeepEqual(other, got) {
			t.Fatalf("made anew it takes %d and not %d, and is %+v, not %+v", takes, looks, other, got)
		}
		if _, _, ok := topo.Selected("a", selector, looks-2, most); ok && looks > 1 {
			t.Fatalf("more kinds are looked at than are allowed")
		}
	})
}

// TestSelectedInManyPlaces: pods that are leaving in very many places are not looked at one by one, and more is said of them, not less.
func TestSelectedInManyPlaces(t *testing.T) {
	topo := NewTopology()
	c := ClassOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a"}})
	for i := range 3 * placesPerNode {
		topo.AddPod(fmt.Sprint("n", i), c, true)
	}
	if got, _, ok := topo.Selected("a", labels.Everything(), 10, 1); !ok || got.Lowest != c.Priority || got.Nodes != nil {
		t.Errorf("many places: %+v, %t", got, ok)
	}
	if got, _, ok := topo.Selected("a", labels.Everything(), 10, 2); !ok || got.Lowest != math.MaxInt32 || len(got.Nodes) != 0 {
		t.Errorf("few enough: %+v, %t", got, ok)
	}
}
