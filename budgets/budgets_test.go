package budgets

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

// rows are what an index is asked about.
type rows struct {
	budgets map[string]*policyv1.PodDisruptionBudget
	pods    map[string]*corev1.Pod
	scales  map[Owner]int32
	now     int64
}

func (r *rows) Budget(key string) (*policyv1.PodDisruptionBudget, bool) {
	b, ok := r.budgets[key]
	return b, ok
}

func (r *rows) Pod(key string) (*corev1.Pod, bool) {
	p, ok := r.pods[key]
	return p, ok
}

func (r *rows) Scale(o Owner) (int32, bool) {
	n, ok := r.scales[o]
	return n, ok
}

func (r *rows) TimeUnixNano() int64 { return r.now }

func (r *rows) all(namespace, from string, f func(pod *corev1.Pod) bool) {
	for _, key := range slices.Sorted(maps.Keys(r.pods)) {
		if p := r.pods[key]; p.Namespace == namespace && p.Name >= from && !f(p) {
			return
		}
	}
}

// count counts so many pods of a budget.
func (r *rows) count(x *Index, key string, most int) {
	x.Count(r, key, r.all, func(int) bool {
		most--
		return most >= 0
	})
}

func owner(name string) Owner { return Owner{"apps", "ReplicaSet", "ns", name, "uid-" + name} }

func drawPod(t *rapid.T, name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	p.Labels = map[string]string{"a": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "a"), "b": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "b")}
	if o := rapid.SampledFrom([]string{"", "r0", "r1", "r/2", "r0 and more"}).Draw(t, "owner"); o != "" {
		yes, uid := true, types.UID("uid-"+o)
		if name, more := strings.CutSuffix(o, " and more"); more {
			o, uid = name, types.UID("uid-"+name+rapid.SampledFrom([]string{"\x00x", "\x00ns/b0", "\x01x", "\x01\x01x"}).Draw(t, "more"))
		}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: o, UID: uid, Controller: &yes}}
	}
	if rapid.Bool().Draw(t, "ready") {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

func drawBudget(t *rapid.T, name string) *policyv1.PodDisruptionBudget {
	amount := rapid.SampledFrom([]intstr.IntOrString{intstr.FromInt32(1), intstr.FromString("50%")}).Draw(t, "amount")
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	b.Spec.Selector = rapid.SampledFrom([]*metav1.LabelSelector{
		nil, {}, {MatchLabels: map[string]string{"a": "1"}},
		{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In", Values: []string{"1", "2"}}, {Key: "b", Operator: "NotIn", Values: []string{"1"}}}},
	}).Draw(t, "selector")
	if rapid.Bool().Draw(t, "max") {
		b.Spec.MaxUnavailable = &amount
	} else {
		b.Spec.MinAvailable = &amount
	}
	if rapid.Bool().Draw(t, "announced") {
		b.Status.DisruptedPods = map[string]metav1.Time{"p0": metav1.Unix(rapid.Int64Range(1, 9).Draw(t, "announced at"), 0)}
	}
	return b
}

// The index answers as a walk over all pods would, at every moment, and a change
// of a fork does not reach what it was forked from.
func TestIndexAgainstAWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := new(Index)
		r := &rows{budgets: map[string]*policyv1.PodDisruptionBudget{}, pods: map[string]*corev1.Pod{}, scales: map[Owner]int32{}}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			before, was := x, dump(x)
			forked := x.Fork()
			x = &forked
			change(t, x, r)
			if dump(before) != was {
				t.Fatal("a change of a fork reached what it was forked from")
			}
			compare(t, x, r)
		}
	})
}

func change(t *rapid.T, x *Index, r *rows) {
	gone := rapid.IntRange(0, 3).Draw(t, "gone") == 0
	switch rapid.IntRange(0, 6).Draw(t, "what") {
	case 0:
		key := "ns/" + rapid.SampledFrom([]string{"b0", "b1"}).Draw(t, "budget")
		old := r.budgets[key]
		if delete(r.budgets, key); !gone {
			r.budgets[key] = drawBudget(t, key[3:])
		}
		if now := r.budgets[key]; old != nil || now != nil {
			x.Put(old, now)
		}
	case 2:
		r.count(x, "ns/"+rapid.SampledFrom([]string{"b0", "b1"}).Draw(t, "budget"), rapid.IntRange(0, 9).Draw(t, "time"))
	case 1:
		o := owner(rapid.SampledFrom([]string{"r0", "r1"}).Draw(t, "set"))
		var was, is *Scale
		if n, ok := r.scales[o]; ok {
			was = &Scale{o, n}
		}
		if delete(r.scales, o); !gone {
			r.scales[o] = rapid.Int32Range(0, 4).Draw(t, "scale")
			is = &Scale{o, r.scales[o]}
		}
		x.PutScale(was, is)
	default:
		key := "ns/" + rapid.SampledFrom([]string{"p0", "p1", "p2", "p3"}).Draw(t, "pod")
		old := r.pods[key]
		if delete(r.pods, key); !gone {
			r.pods[key] = drawPod(t, key[3:])
		}
		x.PutPod(r, old, r.pods[key])
	}
}

// compare holds the index against one that is made anew, which counts what it
// is given in another order, and against the selectors.
func compare(t *rapid.T, x *Index, r *rows) {
	again := new(Index)
	for key, b := range r.budgets {
		again.Put(nil, b)
		c, _ := x.coverages.Get(key)
		again.Resume(key, c.upTo, !c.counting)
	}
	for _, p := range r.pods {
		again.PutPod(r, nil, p)
	}
	now := x.Fork()
	now.Untouch()
	again.Untouch()
	if got, want := dump(&now), dump(again); got != want {
		t.Fatalf("the index is\n%s\n--- made anew it is ---\n%s", got, want)
	}
	for _, p := range r.pods {
		var got, want []string
		x.Of(r, p.Namespace, p.Labels, func(b *policyv1.PodDisruptionBudget) bool {
			got = append(got, b.Name)
			return true
		})
		for _, b := range r.budgets {
			if Selector(&b.Spec).Matches(labels.Set(p.Labels)) {
				want = append(want, b.Name)
			}
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%s is covered by %v, the selectors say %v", p.Name, got, want)
		}
	}
	for _, b := range r.budgets {
		h := x.HealthOf(r, b)
		if h.failed == "" && h.Allowed != 0 && h.Allowed != h.Current-h.Desired {
			t.Fatalf("%s: %+v", b.Name, h)
		}
		if counting(x, keyOf(b)) && (h.Allowed != 0 || Lenient(&b.Spec, h.Desired, h.Current)) {
			t.Fatalf("%s allows something, and its pods are being counted: %+v", b.Name, h)
		}
	}
}

// counting says whether the pods of a budget are being counted.
func counting(x *Index, key string) bool {
	c, ok := x.coverages.Get(key)
	return ok && c.counting
}

func dump(x *Index) string {
	var b strings.Builder
	x.Describe(func(line string) { b.WriteString(line + "\n") })
	return b.String()
}

// TestTouched: those are told whose pods changed, once and by name, and those
// whose announcements run out.
func TestTouched(t *testing.T) {
	x, r := new(Index), &rows{}
	least := intstr.FromInt32(1)
	for _, name := range []string{"b1", "b0"} {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		b.Spec = policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"in": name}}}
		if name == "b1" {
			b.Status.DisruptedPods = map[string]metav1.Time{"p": metav1.Unix(60, 0)}
		}
		x.Put(nil, b)
		r.count(x, keyOf(b), 1)
	}
	touched := func(nowSeconds int64) string {
		var keys []string
		x.Touched(nowSeconds*1e9, func(key string, before *Coverage) {
			keys = append(keys, fmt.Sprintf("%s %t", key, before != nil))
			x.touch(key) // as the status that is written does
		})
		return strings.Join(keys, ", ")
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{"in": "b0"}}}
	for _, c := range []struct {
		what string
		do   func()
		now  int64
		want string
	}{
		{"new", func() {}, 0, "ns/b0 false, ns/b1 false"},
		{"nothing", func() {}, 179, ""},
		{"a pod", func() { x.PutPod(r, nil, pod) }, 179, "ns/b0 true"},
		{"the same pod", func() { x.PutPod(r, pod, pod) }, 180, ""},
		{"two minutes after an announcement", func() {}, 181, "ns/b1 true"},
		{"and not again", func() {}, 500, ""},
	} {
		c.do()
		if got := touched(c.now); got != c.want {
			t.Errorf("%s: touched are %q, want %q", c.what, got, c.want)
		}
	}
}

func TestSpares(t *testing.T) {
	always := policyv1.AlwaysAllow
	ready := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	for _, c := range []struct {
		what             string
		spec             policyv1.PodDisruptionBudgetSpec
		status           corev1.PodStatus
		desired, current int64
		want             bool
	}{
		{"ready", policyv1.PodDisruptionBudgetSpec{UnhealthyPodEvictionPolicy: &always}, ready, 1, 5, false},
		{"pending", policyv1.PodDisruptionBudgetSpec{}, corev1.PodStatus{Phase: corev1.PodPending}, 1, 0, true},
		{"not ready, enough are", policyv1.PodDisruptionBudgetSpec{}, corev1.PodStatus{Phase: corev1.PodRunning}, 1, 1, true},
		{"not ready, too few are", policyv1.PodDisruptionBudgetSpec{}, corev1.PodStatus{Phase: corev1.PodRunning}, 2, 1, false},
		{"not ready, none desired", policyv1.PodDisruptionBudgetSpec{}, corev1.PodStatus{Phase: corev1.PodRunning}, 0, 0, false},
		{"not ready, always allowed", policyv1.PodDisruptionBudgetSpec{UnhealthyPodEvictionPolicy: &always}, corev1.PodStatus{Phase: corev1.PodRunning}, 2, 1, true},
	} {
		if got := Spares(&c.spec, &corev1.Pod{Status: c.status}, c.desired, c.current); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}
