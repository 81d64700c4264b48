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

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/usage"
)

// goneWorld is a node that a pod needs all of, whose many small ones leave it in any order.
type goneWorld struct {
	hurried
	victims []*corev1.Pod
	goneAt  map[types.UID]int64
	record  string
	ended   bool
}

func newGoneWorld(t *rapid.T, victims int) *goneWorld {
	w := &goneWorld{hurried: hurried{t: t, state: NewState()}, goneAt: map[types.UID]int64{}}
	do := func(cs ...Command) { w.must(1<<20, cs...) }
	do(&PutNamespace{Create: true, Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}})
	do(&CreatePriorityClass{Class: PriorityClassWire{Object: words{"high", "value=100"}.class()}})
	n := benchNodeObject(0)
	n.Status.Allocatable["cpu"] = *apiresource.NewQuantity(int64(victims), apiresource.DecimalSI)
	n.Status.Allocatable["pods"] = apiresource.MustParse("1000")
	do(&PutNode{Create: true, Node: NodeWire{Object: n}})
	d := PreemptDecision{Node: benchNode(0), Diagnosis: &Diagnosis{Nodes: 1, Message: "no room"}, Alternatives: &berthv1.PreemptionAlternatives{}}
	admit := func(i int, cpu int64, change func(p *corev1.Pod)) *corev1.Pod {
		p := benchPod(i)
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": *apiresource.NewQuantity(cpu, apiresource.DecimalSI)}
		change(p)
		do(&AdmitPod{Pod: PodWire{Object: p}})
		stored, _ := w.state.View().Pods.Get(PodKey("default", p.Name))
		return stored
	}
	for i := range victims {
		p := admit(i, 1, func(p *corev1.Pod) { p.Spec.NodeName = benchNode(0) })
		w.victims = append(w.victims, p)
		d.Victims = append(d.Victims, PlannedVictim{Key: PodKey(p.Namespace, p.Name), UID: string(p.UID)})
	}
	p := admit(victims, int64(victims), func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })
	d.Key, d.UID = PodKey("default", p.Name), string(p.UID)
	if r := w.apply(1<<20, &ApplyPlan{Revision: w.state.View().Revision(), Preemptions: []PreemptDecision{d}}); len(r[0].Plan.Refused) > 0 {
		t.Fatalf("%+v", r[0].Plan)
	}
	nomination, _ := w.state.View().Nominations.Get(d.Key)
	w.record = nomination.Preemption
	return w
}

// leave lets some of those that are still there leave, all in one entry.
func (w *goneWorld) leave(n int) {
	var cs []Command
	zero := int64(0)
	for _, p := range rapid.Permutation(w.victims).Draw(w.t, "who") {
		if _, gone := w.goneAt[p.UID]; !gone && len(cs) < n {
			cs = append(cs, &DeletePod{Key: PodKey(p.Namespace, p.Name), GraceSeconds: &zero})
			w.goneAt[p.UID] = w.now + 1e9
		}
	}
	w.must(1<<20, cs...)
}

// check: whoever has gone is waited for no longer and is in the record, at once or when others have gone too, with its time;
// the pod is tried when the last has gone, and not before.
func (w *goneWorld) check() {
	v := w.state.View()
	record, _ := v.Preemptions.Get(w.record)
	told := map[types.UID]int64{}
	for _, victim := range record.Status.Victims {
		if victim.GoneAt != nil {
			told[victim.UID] = victim.GoneAt.UnixNano()
		}
	}
	key := PodKey("default", benchPod(len(w.victims)).Name)
	n, nominated := v.Nominations.Get(key)
	if nominated == w.ended {
		w.t.Fatalf("nominated: %t", nominated)
	}
	if nominated {
		if len(n.Gone) >= usage.GoneTogether || len(n.Gone) > 0 && !n.Waits() {
			w.t.Fatalf("%d are not struck, of %d", len(n.Gone), len(n.Victims))
		}
		for _, g := range n.Gone {
			if _, twice := told[g.UID]; twice {
				w.t.Fatalf("%s is struck already", g.UID)
			}
			told[g.UID] = g.AtUnixNano
		}
	}
	for _, p := range w.victims {
		at, gone := w.goneAt[p.UID]
		if is, ok := told[p.UID]; ok != gone || is != at {
			w.t.Fatalf("%s: gone %t at %d, told %t %d", p.Name, gone, at, ok, is)
		}
		if waits := len(v.usage.WaitingFor(p.UID)) > 0; waits == (gone || w.ended) {
			w.t.Fatalf("%s: gone %t, waited for %t", p.Name, gone, waits)
		}
	}
	if left := len(w.victims) - len(w.goneAt); nominated {
		e, _ := v.Queue.Get(key)
		if n.Waits() != (left > 0) || len(n.Victims)-len(n.Gone) != left || (e.State == berthv1.QueueActive) != (left == 0) {
			w.t.Fatalf("%d are left of %d, the pod is %s", left, len(n.Victims), e.State)
		}
	}
	w.restart()
}

// TestVictimsGoTogether: of many victims those that go are struck many at a time, and nobody who asks notices.
func TestVictimsGoTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newGoneWorld(t, rapid.SampledFrom([]int{1, 3, usage.GoneTogether, usage.GoneTogether + 1, 2 * usage.GoneTogether, 150}).Draw(t, "victims"))
		w.check()
		for !w.ended && len(w.goneAt) < len(w.victims) {
			if rapid.IntRange(0, 9).Draw(t, "ends") == 0 {
				preemptor := benchPod(len(w.victims))
				w.must(1<<20, &DeletePod{Key: PodKey("default", preemptor.Name)})
				w.ended = true
			} else {
				w.leave(rapid.SampledFrom([]int{1, 2, 40, 100}).Draw(t, "how many"))
			}
			w.check()
		}
	})
}

// A nomination is not changed by who strikes from it.
func TestStrikeLeavesTheOldOne(t *testing.T) {
	n := &Nomination{}
	for i := range 100 {
		n.Victims = append(n.Victims, VictimRef{UID: types.UID(fmt.Sprint(i))})
	}
	at := n
	for i := range 100 {
		before := slices.Clone(at.Gone)
		next, _ := at.Strike(usage.GoneVictim{UID: types.UID(fmt.Sprint(i))}, true)
		other, _ := at.Strike(usage.GoneVictim{UID: "another"}, true)
		if !slices.Equal(at.Gone, before) || len(next.Gone) > 0 && next.Gone[len(next.Gone)-1].UID == other.Gone[len(other.Gone)-1].UID {
			t.Fatalf("after %d they share what is gone", i)
		}
		at = next
	}
	if at.Waits() || len(at.Victims) > 0 {
		t.Errorf("%+v", at)
	}
}
