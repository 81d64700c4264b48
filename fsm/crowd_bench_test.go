package fsm

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/berthv1"
)

// BenchmarkPreemptCrowd: one pod needs all of a node that thousands of small ones share, without rules between pods
// and with one.
func BenchmarkPreemptCrowd(b *testing.B) {
	for _, c := range []struct {
		victims int
		rules   bool
	}{{1000, false}, {7000, false}, {1000, true}, {7000, true}} {
		b.Run(fmt.Sprintf("%d/rules=%t", c.victims, c.rules), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s, d := crowd(b, c.victims, c.rules)
				entry := s.entry(&ApplyPlan{Revision: s.View().Revision(), Preemptions: []PreemptDecision{d}})
				b.StartTimer()
				s.applyEntry(entry)
			}
		})
	}
}

// crowd is a node that so many small pods share, and the decision that all of them go
// for one that needs all of it.
func crowd(b *testing.B, victims int, rules bool) (*benchState, PreemptDecision) {
	s := newBenchState(b, 0)
	n := benchNodeObject(0)
	n.Status.Allocatable["pods"] = apiresource.MustParse("8000")
	s.apply(&PutNode{Create: true, Node: NodeWire{Object: n}})
	s.apply(&CreatePriorityClass{Class: PriorityClassWire{Object: words{"high", "value=100"}.class()}})
	d := PreemptDecision{Node: benchNode(0), Diagnosis: &Diagnosis{Nodes: 1, Message: "no room"}, Alternatives: &berthv1.PreemptionAlternatives{}}
	each := apiresource.NewMilliQuantity(int64(100_000/victims), apiresource.DecimalSI)
	for first := 0; first < victims; first += batch {
		s.applyEntry(s.admit(first, min(batch, victims-first), func(p *corev1.Pod, j int) {
			p.Spec.NodeName = benchNode(0)
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": *each}
			d.Victims = append(d.Victims, PlannedVictim{Key: PodKey("default", p.Name), UID: string(p.UID)})
		}))
	}
	s.applyEntry(s.admit(1_000_000, 1, func(p *corev1.Pod, _ int) {
		p.Spec.PriorityClassName = "high"
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": apiresource.MustParse("100")}
		if rules {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}}}
		}
		d.Key, d.UID = PodKey("default", p.Name), string(p.UID)
	}))
	return s, d
}

// BenchmarkCrowdGoes: the victims of one pod leave their node, a hundred in an entry.
func BenchmarkCrowdGoes(b *testing.B) {
	for _, victims := range []int{100, 1000, 7000} {
		b.Run(fmt.Sprint(victims), func(b *testing.B) {
			s, d := crowd(b, victims, false)
			s.apply(&ApplyPlan{Revision: s.View().Revision(), Preemptions: []PreemptDecision{d}})
			zero := int64(0)
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				var cs []Command
				for j := range 100 {
					cs = append(cs, &DeletePod{Key: d.Victims[(i*100+j)%victims].Key, GraceSeconds: &zero})
				}
				entry := s.entry(cs...)
				b.StartTimer()
				if _, err := s.Apply(s.index+1, 1, entry); err != nil {
					b.Fatal(err)
				}
				s.index++
			}
		})
	}
}
