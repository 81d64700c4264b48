package quotas

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"pgregory.net/rapid"
)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func podOf(requests, limits corev1.ResourceList) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "main", Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}},
	}}}
}

// TestTotals: sums are exact beyond what any integer of the machine holds.
func TestTotals(t *testing.T) {
	most := total{lo: math.MaxUint64}
	if got := most.plus(most).minus(most); got != most {
		t.Errorf("%v", got)
	}
	sum := total{lo: 1 << 62}.plus(total{lo: 1 << 62}).plus(total{lo: 1 << 62})
	for milli, want := range map[bool]string{false: "13835058055282163712", true: "13835058055282163712m"} {
		if q := sum.quantity(milli, resource.DecimalSI); q.String() != want {
			t.Errorf("%s, want %s", q.String(), want)
		}
	}
	for _, tt := range []struct {
		q     string
		milli bool
		want  total
	}{
		{"1", false, total{lo: 1}}, {"1", true, total{lo: 1000}}, {"1500m", false, total{lo: 1}}, {"0.0001", true, total{}}, {"-1", true, total{}},
		{"16Ei", false, total{hi: 1}}, {"1e100", false, total{^uint64(0), ^uint64(0)}}, {"32Ei", false, total{hi: 2}},
	} {
		q := resource.MustParse(tt.q)
		if got := totalOf(q, tt.milli); got != tt.want && tt.q != "16Ei" && tt.q != "32Ei" && tt.q != "1e100" {
			t.Errorf("%s in thousandths %t: %v, want %v", tt.q, tt.milli, got, tt.want)
		}
	}
	big := sum.quantity(false, resource.DecimalSI)
	if got := totalOf(big, false); got != sum {
		t.Errorf("%v, want %v", got, sum)
	}
}

// TestNames: what a quota names is what Kubernetes' quota counts.
func TestNames(t *testing.T) {
	pod := podOf(list("cpu", "500m", "memory", "1Gi", "ephemeral-storage", "1Mi", "hugepages-2Mi", "4Mi", "example.com/gpu", "2"),
		list("cpu", "1", "memory", "2Gi", "ephemeral-storage", "2Mi", "hugepages-2Mi", "4Mi", "example.com/gpu", "2"))
	charge := ChargeOf(pod)
	for name, want := range map[string]string{
		"cpu": "500m", "requests.cpu": "500m", "limits.cpu": "1", "memory": "1Gi", "requests.memory": "1Gi", "limits.memory": "2Gi",
		"ephemeral-storage": "1Mi", "requests.ephemeral-storage": "1Mi", "limits.ephemeral-storage": "2Mi", "hugepages-2Mi": "4Mi",
		"requests.hugepages-2Mi": "4Mi", "requests.example.com/gpu": "2", "pods": "1", "count/pods": "1",
	} {
		own, ok := podResource(name)
		l := limit{name: name, own: own, pods: true, quantity: resource.MustParse("1Ti")}
		if q := l.quantityOf(charge.amounts.get(own)); !ok || q.String() != want {
			t.Errorf("%s: %s, want %s", name, q.String(), want)
		}
	}
	for _, name := range []string{"example.com/gpu", "limits.example.com/gpu", "requests.storage", "gpu", "requests.gpu", "requests.kubernetes.io/x", "count/secrets", "services"} {
		if own, ok := podResource(name); ok {
			t.Errorf("%s is taken for %s of pods", name, own)
		}
	}
}

// TestClassesAreSelectedAsLabelsAre: any list of demands on the class means what label
// selectors mean, all together.
func TestClassesAreSelectedAsLabelsAre(t *testing.T) {
	operators := map[corev1.ScopeSelectorOperator]selection.Operator{
		corev1.ScopeSelectorOpIn: selection.In, corev1.ScopeSelectorOpNotIn: selection.NotIn,
		corev1.ScopeSelectorOpExists: selection.Exists, corev1.ScopeSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	rapid.Check(t, func(t *rapid.T) {
		spec := &corev1.ResourceQuotaSpec{ScopeSelector: &corev1.ScopeSelector{}}
		selector := labels.NewSelector()
		for range rapid.IntRange(0, 4).Draw(t, "demands") {
			op := rapid.SampledFrom([]corev1.ScopeSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator")
			var values []string
			if op == "In" || op == "NotIn" {
				values = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 1, 3, rapid.ID[string]).Draw(t, "values")
			}
			spec.ScopeSelector.MatchExpressions = append(spec.ScopeSelector.MatchExpressions,
				corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: op, Values: values})
			r, err := labels.NewRequirement("class", operators[op], values)
			if err != nil {
				t.Fatal(err)
			}
			selector = selector.Add(*r)
		}
		s := compileScopes(spec)
		for _, class := range []string{"", "a", "b", "c", "d", "e"} {
			set := labels.Set{}
			if class != "" {
				set["class"] = class
			}
			if got, want := s.has(&Pod{charge: &Charge{}, class: class}), selector.Matches(set); got != want {
				t.Fatalf("%v: class %q: %t, want %t", spec.ScopeSelector.MatchExpressions, class, got, want)
			}
		}
	})
}

// TestANewQuotaIsCountedFromSums: what a quota uses does not depend on whether it or the
// pods came first.
func TestANewQuotaIsCountedFromSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var before, after Index
		q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "q"}, Spec: corev1.ResourceQuotaSpec{
			Hard:   list("pods", "1", "cpu", "1", "count/pods", "1"),
			Scopes: rapid.SliceOfDistinct(rapid.SampledFrom([]corev1.ResourceQuotaScope{"BestEffort", "NotBestEffort", "Terminating", "NotTerminating", "CrossNamespacePodAffinity", "Other"}), rapid.ID[corev1.ResourceQuotaScope]).Draw(t, "scopes"),
		}}
		if rapid.Bool().Draw(t, "selects") {
			q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{ScopeName: "PriorityClass",
				Operator: rapid.SampledFrom([]corev1.ScopeSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator"), Values: []string{"a", "b"}}}}
		}
		before.Put(nil, q, true)
		there := map[int]*Pod{}
		for range rapid.IntRange(0, 30).Draw(t, "changes") {
			at := rapid.IntRange(0, 5).Draw(t, "pod")
			var is *Pod
			if rapid.IntRange(0, 3).Draw(t, "is") > 0 {
				charge := ChargeOf(podOf(list("cpu", rapid.SampledFrom([]string{"0", "1"}).Draw(t, "cpu")), nil))
				charge.crossNamespace = rapid.Bool().Draw(t, "cross")
				is = &Pod{charge, rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "class"), rapid.Bool().Draw(t, "terminating"), rapid.Bool().Draw(t, "ended")}
			}
			before.PutPod("default", there[at], is)
			after.PutPod("default", there[at], is)
			there[at] = is
		}
		after.Put(nil, q, true)
		if a, b := fmt.Sprint(before.Status("default/q")), fmt.Sprint(after.Status("default/q")); a != b {
			t.Fatalf("%s\n%s", a, b)
		}
		for _, p := range there {
			before.PutPod("default", p, nil)
		}
		var left []string
		before.Describe(func(line string) { left = append(left, line) })
		if slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(l, "sum") }) {
			t.Fatalf("of no pods is left %v", left)
		}
	})
}

// TestRoom is how many can be admitted one after the other.
func TestRoom(t *testing.T) {
	var x Index
	for name, hard := range map[string]corev1.ResourceList{"cpu": list("cpu", "2500m"), "pods": list("pods", "9"), "objects": list("configmaps", "0")} {
		x.Put(nil, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, true)
	}
	pod := podOf(list("cpu", "600m"), nil)
	use := PodOf(pod, ChargeOf(pod))
	for n, want := range map[int64]int64{1: 1, 4: 4, 5: 4, 1000: 4} {
		if got := x.Room("default", use, n); got != want {
			t.Errorf("of %d there is room for %d, want %d", n, got, want)
		}
	}
	if why := x.RefuseManyPods(pod, use, 5); why != "exceeded quota: cpu, requested: cpu=3, used: cpu=0, limited: cpu=2500m" {
		t.Error(why)
	}
	if why := x.RefuseManyPods(pod, use, 4); why != "" {
		t.Error(why)
	}
}
