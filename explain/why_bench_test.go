package explain

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
)

// BenchmarkWhy: one question about a pod that 100,000 others keep off 5,000
// nodes, asked for the sum and for each node.
func BenchmarkWhy(b *testing.B) {
	const nodes, perNode = 5000, 20
	state := fsm.NewState()
	must := func(c fsm.Command) {
		if r := state.Try(askedAtNano, fsm.Proposal{User: "test", Groups: []string{"system:masters"}, Command: c})[0]; r.Refused() {
			b.Fatalf("%T: %s", c, r.Message)
		}
	}
	must(&fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "ns"}}}})
	pod := func(name, node string, terms ...corev1.PodAffinityTerm) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"}}}
		p.Spec = corev1.PodSpec{SchedulerName: "default-scheduler", NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
		must(&fsm.AdmitPod{Pod: fsm.PodWire{Object: p}})
	}
	for i := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"zone": fmt.Sprint(i % 10), "host": fmt.Sprint(i)}}}
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("32"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110")}
		must(&fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: n}})
		for j := range perNode {
			pod(fmt.Sprintf("web-%d-%d", i, j), n.Name)
		}
	}
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	pod("asked", "", corev1.PodAffinityTerm{TopologyKey: "zone", LabelSelector: web}, corev1.PodAffinityTerm{TopologyKey: "host", LabelSelector: web})
	for _, each := range []bool{false, true} {
		b.Run(fmt.Sprintf("nodes=%v", each), func(b *testing.B) {
			for b.Loop() {
				q := Question{Namespace: "default", Pod: "asked", Nodes: each}
				a, err := Why(b.Context(), state.View(), q, func(string) bool { return true })
				if err != nil || a.Now.Refusals[0].InTheWay[0].Total != nodes*perNode {
					b.Fatal(err, a)
				}
			}
		})
	}
}
