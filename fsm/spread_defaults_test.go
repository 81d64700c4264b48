package fsm

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"
)

// TestServicesOfAPod: those that a pod belongs to are the same whether they are looked for by the labels that services demand or
// by the pod's own.
func TestServicesOfAPod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := func(what string, most int) map[string]string {
			out := map[string]string{}
			for range rapid.IntRange(0, most).Draw(t, what) {
				out[rapid.StringMatching("[ab](-?[ab0])?").Draw(t, "label")] = rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "value")
			}
			return out
		}
		v := NewState().View().thaw()
		var all []*corev1.Service
		for i := range rapid.IntRange(0, 8).Draw(t, "services") {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"), Name: fmt.Sprint(i)},
				Spec: corev1.ServiceSpec{Selector: some("selector", 2)}}
			all = append(all, s)
			indexService(v, nil, &Object{Value: s})
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Labels: some("labels", 5)}}
		want := map[string]string{}
		for _, s := range all {
			if s.Namespace == "a" && len(s.Spec.Selector) > 0 && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
				maps.Copy(want, s.Spec.Selector)
			}
		}
		if got := v.serviceSelectors(pod); !maps.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}
