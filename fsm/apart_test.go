package fsm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/api/berthv1"
)

func budgetNamed(name string) *PutDisruptionBudget {
	one := intstr.FromInt32(1)
	return &PutDisruptionBudget{Create: true, Budget: BudgetWire{Object: &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("u-" + name)},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{}},
	}}}
}

// A budget whose counting panics, whatever is done, keeps no command from being carried out and no other budget from being
// counted. It is tried again a minute later.
func TestPanicInWhatIsPendingHoldsUpNobody(t *testing.T) {
	w := newTranscript(t)
	w.line("node n1 cpu=400")
	for i := range 8 {
		w.line(fmt.Sprintf("pod p%d cpu=1 uid=p%d", i, i))
	}
	h := &hurried{state: w.state, now: w.view().TimeUnixNano()}
	h.must(1, budgetNamed("poison"), budgetNamed("quiet"))
	const key = "budget/default/poison"
	if w.view().pending.Len() != 2 {
		t.Fatalf("%d are pending", w.view().pending.Len())
	}
	armed := true
	plant(t, pendingTable, func(_ *live, _, at string) {
		if armed && at == key {
			panic("exploded")
		}
	})
	w.index = w.view().Index()
	entry := func(after time.Duration) (parts []string) {
		t.Helper()
		h.now += int64(after)
		b, err := EncodeEntry(Header{Version: LogVersion, TimeUnixNano: h.now}, []Proposal{{User: "admin", Command: &PutNode{
			Node: NodeWire{Object: nodeNamed(fmt.Sprintf("n-%d", h.now))}, Create: true}}})
		if err != nil {
			t.Fatal(err)
		}
		w.index++
		rs, err := w.state.Apply(w.index, 1, b)
		if err != nil || rs[0].Refused() {
			t.Fatalf("the command beside it: %v, %+v", err, rs)
		}
		for _, f := range w.state.Faults() {
			parts = append(parts, f.Part)
		}
		return parts
	}
	pending := func(name string) bool { return w.view().isPending("budget/default/" + name) }
	if got := entry(0); len(got) != 1 || got[0] != apartPrefix+key {
		t.Fatalf("the first entry: %q", got)
	}
	if !pending("poison") || pending("quiet") {
		t.Error("the other budget is not counted")
	}
	if got := entry(apartAgain - 1); len(got) != 0 {
		t.Errorf("less than a minute later: %q", got)
	}
	if got := entry(1); len(got) != 1 {
		t.Errorf("a minute later: %q", got)
	}
	armed = false
	if entry(apartAgain); pending("poison") {
		t.Error("it is never counted")
	}
}

// A waiting pod that cannot be woken keeps nobody from what would wake it, and no other from being woken.
func TestPanicInAWakeHoldsUpNobody(t *testing.T) {
	w := newTranscript(t)
	w.line("node n1 cpu=1")
	w.line("pod a cpu=1 uid=a")
	w.line("pod m cpu=1 mem=1Mi uid=m")
	w.line("pod z cpu=1 mem=2Mi uid=z")
	if got := w.run("plan", nil, "bind a n1\nfail m\nfail z"); strings.Contains(got, "refused") {
		t.Fatal(got)
	}
	explode(t, queueTable, "default/m")
	now := int64(0)
	if rs := w.apply(&DeletePod{Key: "default/a", GraceSeconds: &now}); rs[0].Refused() {
		t.Fatalf("what would wake it: %+v", rs[0])
	}
	if f := w.state.Faults(); len(f) != 1 || f[0].Part != apartPrefix+"wake default/m" {
		t.Errorf("%+v", f)
	}
	if e, _ := w.view().Queue.Get("default/z"); e.State == berthv1.QueueUnschedulable {
		t.Errorf("the other one is %s", e.State)
	}
}
