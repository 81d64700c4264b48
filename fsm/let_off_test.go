package fsm

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/model"
)

// letOffAnew is letOff that looks at all victims again for each.
func (tx *Tx) letOffAnew(victims []*corev1.Pod, d *PreemptDecision, c ruled, node *corev1.Node) []*corev1.Pod {
	for i := 0; i < len(victims); {
		if victims[i].Spec.NodeName != d.Node || !model.Terminating(victims[i]) {
			others := slices.Delete(slices.Clone(victims), i, i+1)
			if o := tx.view.obstacles(c, node, d.Key, others); o.none() {
				victims = others
				continue
			}
		}
		i++
	}
	return victims
}

// TestLetOffAgainstOneAtATime: those who may stay are the same, whatever keeps the
// pod away, and by the version before all was charged as it was then.
func TestLetOffAgainstOneAtATime(t *testing.T) {
	let, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := &hurried{t: t, state: NewState(), version: SinceOneByOne - 1}
		do := func(cs ...Command) { w.must(1<<20, cs...) }
		do(&PutNamespace{Create: true, Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}})
		do(&CreatePriorityClass{Class: PriorityClassWire{Object: words{"high", "value=100"}.class()}})
		upTo := func(n int, what string) int { return rapid.IntRange(0, n).Draw(t, what) }
		nodes := 1 + upTo(2, "nodes")
		for i := range nodes {
			n := benchNodeObject(i)
			n.Labels = map[string]string{"zone": fmt.Sprint(upTo(1, "zone")), "host": n.Name}
			n.Status.Allocatable["cpu"] = *apiresource.NewQuantity(int64(2+upTo(4, "cpu")), apiresource.DecimalSI)
			do(&PutNode{Create: true, Node: NodeWire{Object: n}})
		}
		labels := func() map[string]string { return map[string]string{"app": fmt.Sprint(upTo(2, "app"))} }
		key := func() string { return [...]string{"zone", "host"}[upTo(1, "key")] }
		terms := func() []corev1.PodAffinityTerm {
			if upTo(1, "rule") == 0 {
				return nil
			}
			return []corev1.PodAffinityTerm{{TopologyKey: key(), LabelSelector: &metav1.LabelSelector{MatchLabels: labels()}}}
		}
		pod := func(i int, change func(*corev1.Pod)) *corev1.Pod {
			p := benchPod(i)
			p.Labels = labels()
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": *apiresource.NewQuantity(int64(upTo(3, "asks")), apiresource.DecimalSI)}
			if upTo(3, "port") == 0 {
				p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
			}
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms()}}
			change(p)
			do(&AdmitPod{Pod: PodWire{Object: p}})
			return p
		}
		placed := 1 + upTo(6, "pods")
		for i := range placed {
			p := pod(i, func(p *corev1.Pod) { p.Spec.NodeName = benchNode(upTo(nodes-1, "node")) })
			if upTo(4, "ends") == 0 {
				do(&DeletePod{Key: PodKey(p.Namespace, p.Name)})
			}
		}
		waiting := pod(placed, func(p *corev1.Pod) {
			p.Spec.PriorityClassName = "high"
			p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms()}
			if upTo(1, "spread") == 1 {
				p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: key(), WhenUnsatisfiable: corev1.DoNotSchedule,
					LabelSelector: &metav1.LabelSelector{MatchLabels: labels()}}}
			}
		})
		var victims []*corev1.Pod
		for _, i := range rapid.Permutation(slices.Collect(func(yield func(int) bool) {
			for i := 0; i < placed && yield(i); i++ {
			}
		})).Draw(t, "order") {
			if p, ok := w.state.View().Pods.Get(PodKey("default", benchPod(i).Name)); ok && upTo(3, "is a victim") > 0 {
				victims = append(victims, p)
			}
		}
		for _, version := range []int{SinceOneByOne - 1, LogVersion} {
			tx := w.state.begin(w.state.View().Index()+1, 1, Header{Version: version, TimeUnixNano: w.now + 1})
			v := tx.view
			e, _ := v.Queue.Get(PodKey("default", waiting.Name))
			node, _ := v.Nodes.Get(benchNode(0))
			d := &PreemptDecision{Key: e.Key(), UID: string(e.UID), Node: node.Name}
			c := v.ruledClass(e.Class(), waiting)
			v.obstacles(c, node, d.Key, victims)
			told := len(v.cache.counters.told)
			cost := func(f func([]*corev1.Pod, *PreemptDecision, ruled, *corev1.Node) []*corev1.Pod) (names []types.UID, units int) {
				before := v.bill.units
				for _, p := range f(victims, d, c, node) {
					names = append(names, p.UID)
				}
				return names, v.bill.units - before
			}
			want, wantUnits := cost(tx.letOffAnew)
			got, units := cost(tx.letOff)
			if !slices.Equal(got, want) {
				t.Fatalf("version %d: %v have to go, one at a time %v", version, got, want)
			}
			if version < SinceOneByOne && units != wantUnits {
				t.Fatalf("%d units are billed, and were %d", units, wantUnits)
			}
			if len(v.cache.counters.told) != told {
				t.Fatal("the counters were not told that all is as it was")
			}
			let, all = let+len(victims)-len(got), all+len(victims)
			v.cache.counters.settle()
		}
	})
	t.Logf("of %d victims %d were let off", all, let)
}
