package fsm

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
)

// TestLedgerIsBounded: the oldest plans go, the ledger says how far back it
// reaches, and counts on without a gap.
func TestLedgerIsBounded(t *testing.T) {
	w := newWorld(t)
	if got := w.view().LedgerReach(); got != 0 {
		t.Fatalf("an empty ledger reaches back to %d", got)
	}
	const perPlan = 1000
	for i := range maxDecisions/perPlan + 3 {
		c := &ApplyPlan{Revision: w.view().Revision()}
		for j := range perPlan {
			c.Bindings = append(c.Bindings, BindDecision{Key: fmt.Sprintf("default/p%d", j), UID: fmt.Sprint(i), Node: "n1"})
		}
		// A change, so that every plan stands at a revision of its own.
		w.apply(&PutNamespace{Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("team-%d", i), UID: types.UID(fmt.Sprint(i))}}}, Create: true}, c)
	}
	v := w.view()
	total, next := 0, int64(-1)
	v.Decisions.Scan("", func(key string, r *PlanRecord) bool {
		if next >= 0 && r.Before != next || key != decisionsKey(r.Before) {
			t.Fatalf("row %s begins after %d decisions, want %d", key, r.Before, next)
		}
		next = r.after()
		total += len(r.Decisions)
		return true
	})
	if total > maxDecisions || total <= maxDecisions-perPlan {
		t.Errorf("the ledger holds %d decisions, its bound is %d", total, maxDecisions)
	}
	_, oldest, _ := v.Decisions.Min()
	if got := v.LedgerReach(); got != oldest.StartRevision+1 || got <= 1 {
		t.Errorf("the ledger says that it reaches back to revision %d, its oldest plan began after %d", got, oldest.StartRevision)
	}
	var seen []int64
	v.DecisionsAbout("default/p7", "", 0, func(_ *PlanRecord, d *Decision) bool {
		seen = append(seen, d.Revision)
		return true
	})
	if len(seen) != total/perPlan {
		t.Errorf("%d decisions about one pod, %d plans name it", len(seen), total/perPlan)
	}
	for i := 1; i < len(seen); i++ {
		if seen[i] >= seen[i-1] {
			t.Fatalf("not newest first: %v", seen)
		}
	}
	compareViews(t, "restored", v, restoredFrom(t, v).View())
}

// TestRecordsAreBoundedByBytes: what is remembered of decisions and of preemptions
// holds no more than it may, however much one says, and the newest stays.
func TestRecordsAreBoundedByBytes(t *testing.T) {
	const perPlan, plans, preemptions, victims = 100, 80, 40, 8000
	for _, version := range []int{SinceRememberedBytes - 1, LogVersion} {
		s := NewState()
		tx := s.begin(1, 1, Header{Version: version})
		v := tx.view
		for i := range plans {
			b := &book{tx: tx}
			for j := range perPlan {
				b.write(Decision{Kind: DecisionUnschedulable, Key: fmt.Sprintf("default/p%d-%d", i, j), Diagnosis: b.diagnosis(&Diagnosis{Message: fmt.Sprint(i, j, strings.Repeat("x", 16<<10))})})
			}
			b.close()
		}
		key := func(i int) string { return fmt.Sprintf("default/p.%x", i) }
		for i := range preemptions {
			p := &berthv1.Preemption{Status: berthv1.PreemptionStatus{Revision: v.Revision() + 1, Victims: make([]berthv1.Victim, victims)}}
			p.Namespace, p.Name = "default", fmt.Sprintf("p.%x", i)
			put(tx, v.Preemptions, key(i), p)
			tx.trimPreemptions()
		}
		_, newest, _ := v.Decisions.Max()
		_, last := v.Preemptions.Get(key(preemptions - 1))
		if newest.after() != plans*perPlan || !last {
			t.Errorf("version %d: the newest records are gone", version)
		}
		bounded := version >= SinceRememberedBytes
		_, oldest, _ := v.Decisions.Min()
		if kept := newest.after() - oldest.Before; bounded != (kept < plans*perPlan) || v.remembered.decisions > maxDecisionBytes == bounded {
			t.Errorf("version %d: %d decisions are kept, of %d bytes", version, kept, v.remembered.decisions)
		}
		if kept := v.Preemptions.Len(); bounded != (kept < preemptions) || v.remembered.preemptions > maxPreemptionBytes == bounded {
			t.Errorf("version %d: %d preemptions are kept, of %d bytes", version, kept, v.remembered.preemptions)
		}
		for v.Decisions.Len() > 0 {
			first, _, _ := v.Decisions.Min()
			remove(tx, v.Decisions, first)
		}
		for i := range preemptions {
			if _, ok := v.Preemptions.Get(key(i)); ok {
				remove(tx, v.Preemptions, key(i))
			}
		}
		if v.remembered != (remembered{}) {
			t.Errorf("version %d: nothing is left, and it counts as %+v", version, v.remembered)
		}
	}
}
