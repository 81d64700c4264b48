package usage

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/model"
)

var nodes = []string{"n", "n1"}

func drawPod(t *rapid.T, name string) *corev1.Pod {
	priority := rapid.Int32Range(-1, 2).Draw(t, "priority")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	p.Spec.Priority = &priority
	p.Spec.NodeName = rapid.SampledFrom([]string{"", "n", "n1"}).Draw(t, "node")
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		"cpu": *apiresource.NewMilliQuantity(rapid.Int64Range(0, 4).Draw(t, "cpu")*100, apiresource.DecimalSI)}}}}
	if rapid.Bool().Draw(t, "ended") {
		p.Status.Phase = corev1.PodFailed
	}
	if rapid.Bool().Draw(t, "keeps away") {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{}}}}}
	}
	return p
}

func drawNomination(t *rapid.T, name string) *Nomination {
	p := drawPod(t, name)
	n := &Nomination{
		Namespace: "ns", Name: name, UID: p.UID, Node: rapid.SampledFrom(nodes).Draw(t, "to"), Priority: model.Priority(p),
		FirstRevision: rapid.Int64Range(1, 3).Draw(t, "made"), BackfillSeconds: rapid.Int64Range(0, 2).Draw(t, "backfill") * 10,
	}
	for _, victim := range rapid.SliceOfNDistinct(rapid.SampledFrom([]types.UID{"v0", "v1"}), 0, 2, rapid.ID).Draw(t, "victims") {
		n.Victims = append(n.Victims, VictimRef{UID: victim})
	}
	n.SetClass(model.ClassOf(p))
	return n
}

type world struct {
	pods        map[string]*corev1.Pod
	nominations map[string]*Nomination
}

func (w *world) change(t *rapid.T, x *Index) {
	name := rapid.SampledFrom([]string{"p0", "p1", "p2", "p3"}).Draw(t, "name")
	gone := rapid.IntRange(0, 3).Draw(t, "gone") == 0
	if rapid.Bool().Draw(t, "nomination") {
		old := w.nominations[name]
		if delete(w.nominations, name); !gone {
			w.nominations[name] = drawNomination(t, name)
		}
		x.PutNomination(old, w.nominations[name])
		return
	}
	old := w.pods[name]
	var is *model.Class
	if delete(w.pods, name); !gone {
		p := drawPod(t, name)
		w.pods[name] = p
		if p.Spec.NodeName != "" {
			is = model.ClassOf(p)
		}
	}
	x.PutPod(old, w.pods[name], x.ClassOf(old), is)
}

// The index answers as a walk over all pods and nominations would, at every
// moment, and a change of a fork does not reach what it was forked from.
func TestIndexAgainstAWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, w := new(Index), &world{map[string]*corev1.Pod{}, map[string]*Nomination{}}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			before, was := x, dump(x)
			forked := x.Fork()
			x = &forked
			w.change(t, x)
			if dump(before) != was {
				t.Fatal("a change of a fork reached what it was forked from")
			}
			again := new(Index)
			for _, p := range w.pods {
				var c *model.Class
				if p.Spec.NodeName != "" {
					c = model.ClassOf(p)
				}
				again.PutPod(nil, p, nil, c)
			}
			for _, n := range w.nominations {
				again.PutNomination(nil, n)
			}
			if got, want := dump(x), dump(again); got != want {
				t.Fatalf("the index is\n%s\n--- made anew it is ---\n%s", got, want)
			}
			w.compare(t, x)
		}
	})
}

func (w *world) compare(t *rapid.T, x *Index) {
	node, self := rapid.SampledFrom(nodes).Draw(t, "asked"), rapid.SampledFrom([]string{"p0", "p9"}).Draw(t, "self")
	priority, runs := rapid.Int32Range(-1, 2).Draw(t, "asked of"), rapid.Int64Range(0, 2).Draw(t, "runs")*7
	var all, taken, from model.Usage
	for _, p := range w.pods {
		if NodeOf(p) == node {
			all, taken = all.With(model.ClassOf(p)), taken.With(model.ClassOf(p))
			if model.Priority(p) >= priority {
				from = from.With(model.ClassOf(p))
			}
		}
	}
	own := w.nominations[self]
	if own != nil && own.Node != node {
		own = nil
	}
	for _, n := range w.nominations {
		yields := n == own || own != nil && n.Priority == own.Priority && n.FirstRevision > own.FirstRevision
		brief := runs > 0 && n.BackfillSeconds > 0 && runs <= n.BackfillSeconds
		if n.Node == node && n.Priority >= priority && !yields && !brief {
			taken = taken.With(n.Class())
		}
	}
	if own != nil {
		var got, want []string
		x.Yielding(own, func(n *Nomination) { got = append(got, n.Key()) })
		for _, n := range w.nominations {
			if n == own || n.YieldsTo(own) {
				want = append(want, n.Key())
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%v yield to %s, want %v", got, own.Key(), want)
		}
	}
	for what, c := range map[string][2]model.Usage{
		"of": {*x.Of(node), all}, "from": {x.From(node, priority), from}, "taken": {x.Taken(node, priority, runs, "ns/"+self), taken},
	} {
		if !c[0].Requested.Equal(c[1].Requested) {
			t.Fatalf("%s %s: %+v, want %+v", what, node, c[0].Requested, c[1].Requested)
		}
	}
}

func dump(x *Index) string {
	var lines []string
	x.Describe(func(line string) { lines = append(lines, line) })
	return strings.Join(lines, "\n")
}

func TestClaims(t *testing.T) {
	c := model.ClassOf(&corev1.Pod{})
	n := &Nomination{Namespace: "ns", Name: "p", UID: "u", Node: "n", Priority: 5, FirstRevision: 7, BackfillSeconds: 60}
	n.SetClass(c)
	claim := n.Claim()
	for _, f := range []func(o *Claim){
		func(o *Claim) { o.UID = "v" }, func(o *Claim) { o.Key = "ns/q" }, func(o *Claim) { o.Node = "m" }, func(o *Claim) { o.Priority = 6 },
		func(o *Claim) { o.Made = 8 }, func(o *Claim) { o.Reserved = true }, func(o *Claim) { o.BackfillSeconds = 61 },
		func(o *Claim) { o.Class = model.ClassOf(&corev1.Pod{Spec: corev1.PodSpec{SchedulerName: "other"}}) },
	} {
		other := n.Claim()
		if !claim.Same(other) {
			t.Fatal("a claim is not the same as itself")
		}
		if f(&other); claim.Same(other) {
			t.Errorf("%+v is said to be the same as %+v", other, claim)
		}
	}
	var takes []string
	for _, priority := range []int32{4, 5, 6} {
		for _, runs := range []int64{0, 60, 61} {
			if claim.TakesFrom(priority, runs) {
				takes = append(takes, fmt.Sprintf("%d/%d", priority, runs))
			}
		}
	}
	if want := []string{"4/0", "4/61", "5/0", "5/61"}; !slices.Equal(takes, want) {
		t.Errorf("takes from %v, want %v", takes, want)
	}
	later, higher := n.Claim(), n.Claim()
	later.Made, higher.Made, higher.Priority = 8, 8, 6
	if !later.YieldsTo(&claim) || claim.YieldsTo(&later) || claim.YieldsTo(&claim) || higher.YieldsTo(&claim) {
		t.Error("a nomination yields to the earlier ones of its priority, and to no others")
	}
}
