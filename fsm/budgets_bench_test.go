package fsm

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// BenchmarkReadiness is a report that a pod's readiness has changed, in a
// namespace of 20,000 pods of 200 applications. With budgets each application
// has one: of all of them, one covers the pod.
func BenchmarkReadiness(b *testing.B) {
	for _, budgets := range []int{0, 200, 10_000} {
		b.Run(fmt.Sprintf("budgets=%d", budgets), func(b *testing.B) {
			const pods, apps, nodes = 20_000, 200, 200
			s := newBenchState(b, nodes)
			for i := range budgets {
				least := intstr.FromInt32(1)
				s.apply(&PutDisruptionBudget{Create: true, Budget: BudgetWire{Object: &policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("app-%d", i), UID: types.UID(fmt.Sprintf("b%d", i))},
					Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least,
						Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprintf("app-%d", i)}}},
				}}})
			}
			for first := 0; first < pods; first += batch {
				s.applyEntry(s.admit(first, batch, func(p *corev1.Pod, i int) {
					p.Labels = map[string]string{"app": fmt.Sprintf("app-%d", i%apps), "pod-template-hash": "abcdef"}
				}))
				s.applyEntry(s.bindAll(first, batch, nodes))
			}
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += batch {
				b.StopTimer()
				entry := s.entry(readiness(n, min(batch, b.N-n), pods, nodes)...)
				b.StartTimer()
				s.applyEntry(entry)
			}
		})
	}
}

// BenchmarkAdmitUnderABudget: every pod has a controller of its own, and one
// budget, which counts what controllers want, covers all pods.
func BenchmarkAdmitUnderABudget(b *testing.B) {
	for _, controllers := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("controllers=%d", controllers), func(b *testing.B) {
			s := newBenchState(b, 1000)
			most := intstr.FromInt32(1)
			s.apply(&PutDisruptionBudget{Create: true, Budget: BudgetWire{Object: &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all", UID: "b"},
				Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &most, Selector: &metav1.LabelSelector{}},
			}}})
			owned := func(p *corev1.Pod, i int) {
				p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = fmt.Sprintf("job-%d", i), types.UID(fmt.Sprintf("j%d", i))
			}
			for first := 0; first < controllers; first += batch {
				s.applyEntry(s.admit(first, batch, owned))
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				s.measured(s.admit(controllers+i*batch, batch, owned))
			}
			s.report()
		})
	}
}

// readiness is one report a pod, each the other way round from the last.
func readiness(first, n, pods, nodes int) []Command {
	cs := make([]Command, n)
	for i := range cs {
		p := benchPod((first + i) % pods)
		status := corev1.ConditionTrue
		if (first+i)/pods%2 == 1 {
			status = corev1.ConditionFalse
		}
		cs[i] = &ReportPods{Node: benchNode((first + i) % pods % nodes), Reports: []PodReport{{Key: PodKey(p.Namespace, p.Name), UID: string(p.UID),
			Status: PodStatusWire{Object: &corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}}}}}}
	}
	return cs
}
