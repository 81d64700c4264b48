package model

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"pgregory.net/rapid"
)

// TestNodeAffinityAgainstUpstreams compares what nodes match, and score, with Kubernetes' own library, also of what the API
// would refuse.
func TestNodeAffinityAgainstUpstreams(t *testing.T) {
	keys := rapid.SampledFrom([]string{"a", "b", "number", "not a key"})
	values := rapid.SampledFrom([]string{"", "x", "y", "z", "3", "-7", "9223372036854775807", "9223372036854775808", "not a value"})
	operators := rapid.SampledFrom([]corev1.NodeSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near"})
	rapid.Check(t, func(t *rapid.T) {
		requirements := func(name string, most int, keys *rapid.Generator[string]) (out []corev1.NodeSelectorRequirement) {
			for range rapid.IntRange(0, most).Draw(t, name) {
				r := corev1.NodeSelectorRequirement{Key: keys.Draw(t, "key"), Operator: operators.Draw(t, "operator")}
				most := 4
				if rapid.Bool().Draw(t, "right") { // else seldom any term would parse
					r.Key, most = rapid.SampledFrom([]string{"a", "b", "number"}).Draw(t, "right key"), 1
					if name == "fields" {
						r.Key, r.Operator = "metadata.name", rapid.SampledFrom([]corev1.NodeSelectorOperator{"In", "NotIn"}).Draw(t, "right operator")
					}
				}
				r.Values = rapid.SliceOfN(values, 0, most).Draw(t, "values")
				out = append(out, r)
			}
			return out
		}
		term := func() corev1.NodeSelectorTerm {
			return corev1.NodeSelectorTerm{
				MatchExpressions: requirements("labels", 2, keys),
				MatchFields:      requirements("fields", 1, rapid.SampledFrom([]string{"metadata.name", "metadata.uid"})),
			}
		}
		selector := func() *corev1.NodeSelector {
			s := &corev1.NodeSelector{}
			for range rapid.IntRange(0, 3).Draw(t, "terms") {
				s.NodeSelectorTerms = append(s.NodeSelectorTerms, term())
			}
			return s
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}}}
		asks := pod.Spec.Affinity.NodeAffinity
		if rapid.Bool().Draw(t, "labels") {
			pod.Spec.NodeSelector = map[string]string{keys.Draw(t, "label"): values.Draw(t, "value")}
		}
		if rapid.Bool().Draw(t, "required") {
			asks.RequiredDuringSchedulingIgnoredDuringExecution = selector()
		}
		for range rapid.IntRange(0, 2).Draw(t, "preferred") {
			asks.PreferredDuringSchedulingIgnoredDuringExecution = append(asks.PreferredDuringSchedulingIgnoredDuringExecution,
				corev1.PreferredSchedulingTerm{Weight: int32(rapid.IntRange(0, 3).Draw(t, "weight")), Preference: term()})
		}
		c, added, whole := ClassOf(pod), CompileAddedAffinity(asks), selector()
		required := nodeaffinity.GetRequiredNodeAffinity(pod)
		preferred, preferredErr := nodeaffinity.NewPreferredSchedulingTerms(asks.PreferredDuringSchedulingIgnoredDuringExecution)
		upstreams, wholeErr := nodeaffinity.NewNodeSelector(whole)
		for range 10 {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: values.Draw(t, "name"), Labels: map[string]string{}}}
			if n.Name == "" { // no node is without a name
				n.Name = "x"
			}
			for range rapid.IntRange(0, 3).Draw(t, "has") {
				n.Labels[keys.Draw(t, "label")] = values.Draw(t, "value")
			}
			want, err := required.Match(n)
			want = want && err == nil
			if got := matchesAffinity(c, n); got != want {
				t.Fatalf("%v matches %v %v: %t, upstream's says %t", n, pod.Spec.NodeSelector, asks, got, want)
			}
			score := int64(0)
			if preferredErr == nil {
				score = preferred.Score(n)
			}
			if got := c.PreferredAffinity(n); got != score {
				t.Fatalf("%v scores %d by %v, upstream's says %d", n, got, asks, score)
			}
			if got, want := compileWholeSelector(whole).match(n), wholeErr == nil && upstreams.Match(n); got != want {
				t.Fatalf("%v matches %v: %t, upstream's says %t", n, whole, got, want)
			}
			if got := added.admits(n); asks.RequiredDuringSchedulingIgnoredDuringExecution != nil {
				upstreams, err := nodeaffinity.NewNodeSelector(asks.RequiredDuringSchedulingIgnoredDuringExecution)
				if want := err == nil && upstreams.Match(n); got != want {
					t.Fatalf("%v is admitted by %v: %t, upstream's says %t", n, asks, got, want)
				}
			}
		}
	})
}
