package fsm

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkNodeOfANominee is a change of a node to which a pod is nominated,
// when so many are nominated, all of one priority and kept off each other's
// nodes by required anti-affinity; "apart" where it is each of another kind.
func BenchmarkNodeOfANominee(b *testing.B) {
	for _, c := range []struct {
		kind     string
		nominees int
	}{{"alike", 100}, {"alike", 10_000}, {"apart", 100}, {"apart", 2000}} {
		b.Run(fmt.Sprintf("%s/nominees=%d", c.kind, c.nominees), func(b *testing.B) {
			s := nominatedAll(b, c.nominees, c.kind == "apart")
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				old, _ := s.View().Nodes.Get(benchNode(0))
				next := old.DeepCopy()
				next.Labels["unrelated"] = fmt.Sprint(i)
				entry := s.entry(&PutNode{Node: NodeWire{Object: next}})
				b.StartTimer()
				s.applyEntry(entry)
			}
		})
	}
}

// nominatedAll has so many nodes, each with a victim of the pod that is
// nominated to it.
func nominatedAll(b *testing.B, nominees int, apart bool) *benchState {
	s := newBenchState(b, nominees)
	s.apply(&CreatePriorityClass{Class: PriorityClassWire{Object: words{"high", "value=100"}.class()}})
	for i := range nominees {
		n := benchNodeObject(i)
		n.Labels = map[string]string{"zone": n.Name}
		s.apply(&PutNode{Node: NodeWire{Object: n}})
	}
	whole := corev1.ResourceList{"cpu": apiresource.MustParse("100")}
	for first := 0; first < nominees; first += batch {
		most := min(batch, nominees-first)
		s.applyEntry(s.admit(first, most, func(p *corev1.Pod, i int) {
			p.Spec.NodeName = benchNode(i)
			p.Spec.Containers[0].Resources.Requests = whole
		}))
		s.applyEntry(s.admit(nominees+first, most, func(p *corev1.Pod, i int) {
			p.Spec.PriorityClassName = "high"
			p.Spec.Containers[0].Resources.Requests = whole
			app := "app"
			if apart {
				app = fmt.Sprintf("app-%d", i)
			}
			p.Labels = map[string]string{"app": app}
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}}}}}
		}))
		for i := first; i < first+most; i++ {
			high, low := benchPod(nominees+i), benchPod(i)
			r := s.apply(&ApplyPlan{Revision: s.View().Revision(), Preemptions: []PreemptDecision{{
				Key: PodKey(high.Namespace, high.Name), UID: string(high.UID), Node: benchNode(i % nominees),
				Victims: []PlannedVictim{{Key: PodKey(low.Namespace, low.Name), UID: string(low.UID)}}, Diagnosis: &Diagnosis{},
			}}})
			if len(r[0].Plan.Refused) > 0 {
				b.Fatalf("refused: %+v", r[0].Plan.Refused[0])
			}
		}
	}
	return s
}
