package fsm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/docs"
	"github.com/berth-dev/berth/queue"
)

// TestTheTableOfWhatIsHeld: what docs/limits.md says that a server holds beside
// objects is bounded as it says.
func TestTheTableOfWhatIsHeld(t *testing.T) {
	equal := func(t *testing.T, r docs.Row, bounds ...int64) {
		t.Helper()
		said := r.Numbers(t, len(bounds))
		for i, bound := range bounds {
			if said[i] != bound {
				t.Errorf("the row says %d, and it is %d", said[i], bound)
			}
		}
		if len(said) != len(bounds) {
			t.Errorf("%q: %d numbers are tried", r.Says, len(bounds))
		}
	}
	docs.Hold(t, "../docs/limits.md", "## What a server holds beside objects", map[string]func(*testing.T, docs.Row){
		"the change feed": func(t *testing.T, r docs.Row) { // that it keeps to them is tried in store
			b := feedBounds()
			equal(t, r, int64(b.Changes), int64(b.Bytes), int64(b.LeastBytes), int64(b.QuietBytes))
			if b.Age != 5*time.Minute || !strings.HasSuffix(r.Says, "five minutes") {
				t.Errorf("%s: %q", b.Age, r.Says)
			}
		},
		"events": func(t *testing.T, r docs.Row) {
			equal(t, r, maxEventBytes, maxEventsBytes)
			eventsAreBounded(t, int(r.Numbers(t, 1)[0]))
		},
		"records of preemptions; decisions; failures of Apply": func(t *testing.T, r docs.Row) {
			equal(t, r, maxPreemptions, maxPreemptionBytes, maxDecisions, maxDecisionBytes, maxApplyFailures, maxCutBytes)
			failuresAreBounded(t, int(r.Numbers(t, 5)[4]))
		},
		"marks of pods": func(t *testing.T, r docs.Row) {
			n := r.Numbers(t, 2)
			equal(t, r, queue.MaxPodMarks, n[1])
			for more, kept := range map[int]bool{0: true, 1: false} {
				m := (&queue.PodMark{Labels: []string{strings.Repeat("k", int(n[1])-1+more)}}).Bounded()
				if (m.Labels != nil) != kept {
					t.Errorf("a mark of %d bytes is kept: %t", int(n[1])+more, !kept)
				}
				nodes := &queue.Victims{Nodes: []string{strings.Repeat("n", int(n[1])-1+more)}}
				if m := queue.MarkOfBudgets(&queue.Scope{Budgets: true, Victims: nodes}); (len(m.Victims.Nodes) > 0) != kept {
					t.Errorf("a mark with nodes of %d bytes is kept: %t", int(n[1])+more, !kept)
				}
			}
		},
		"pieces of a snapshot to restore": func(t *testing.T, r docs.Row) {
			equal(t, r, MaxStagedBytes)
			if StagedSeconds != 600 || !strings.HasSuffix(r.Says, "ten minutes") {
				t.Errorf("%d seconds: %q", StagedSeconds, r.Says)
			}
		},
		"views for comparing states": func(t *testing.T, r docs.Row) {
			n := r.Numbers(t, 1)[0]
			m := newMemory(t)
			for range n + 1 {
				m.apply(&Checkpoint{})
			}
			if kept := len(*m.state.checkpoints.Load()); kept != int(n) {
				t.Errorf("%d are kept", kept)
			}
			m.state.ForgetCheckpoint(m.index)
			if _, there := m.state.Checkpoint(m.index); there {
				t.Error("one that was compared is kept")
			}
		},
		"specs of pods, decoded; managed fields; diagnoses": func(t *testing.T, r docs.Row) {
			c := newCache()
			equal(t, r, int64(c.decoded.mostBytes), int64(c.fields.mostBytes), int64(c.diagnoses.mostBytes))
			for i := range 3 * c.diagnoses.mostBytes / 1024 {
				c.diagnosis(&Diagnosis{Message: fmt.Sprintf("%01000d", i)})
			}
			held := 0
			for _, kept := range []map[string]costing[*Diagnosis]{c.diagnoses.newer, c.diagnoses.older} {
				for _, d := range kept {
					held += d.bytes
				}
			}
			if held > 2*c.diagnoses.mostBytes || held < c.diagnoses.mostBytes {
				t.Errorf("%d bytes are held", held)
			}
		},
		"counts that took long to make, for rules between pods": func(t *testing.T, r docs.Row) {
			equal(t, r, maxCountedRules, maxCounted/costCountedKind*bytesCountedKind)
		},
		"signing keys": func(t *testing.T, r docs.Row) {
			equal(t, r, MaxSigningKeys, maxKeyBytes)
			w := newWorld(t)
			for i := range MaxSigningKeys + 1 {
				key := &AddSigningKey{ID: fmt.Sprint(i), Private: make([]byte, maxKeyBytes/2), Public: []byte("public")}
				if refused := w.apply(key)[0].Refused(); refused != (i == MaxSigningKeys) {
					t.Errorf("key %d is refused: %t", i, refused)
				}
			}
			large := &AddSigningKey{ID: "k", Revoke: true, Private: make([]byte, maxKeyBytes), Public: []byte("public")}
			if !w.apply(large)[0].Refused() {
				t.Error("a key that is too large is taken")
			}
		},
		"classes with default constraints": func(t *testing.T, r docs.Row) { equal(t, r, maxEffectiveBytes) },
		"what claims say; lists of the volumes that they can be given": func(t *testing.T, r docs.Row) {
			equal(t, r, maxVolumesBytes, maxOfferBytes) // TestWhatClaimsSayIsBounded
		},
	})
}

func eventsAreBounded(t *testing.T, bound int) {
	t.Helper()
	e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}}
	e.Message = strings.Repeat("x", bound-e.Size()-100)
	e.Message += strings.Repeat("x", bound-e.Size())
	if e.Size() != bound {
		t.Fatalf("%d bytes", e.Size())
	}
	if r, ok := checkEventSize(e); !ok {
		t.Errorf("an event of %d bytes: %s", bound, r.Message)
	}
	e.Message += "x"
	if r, ok := checkEventSize(e); ok || !strings.Contains(r.Message, fmt.Sprint(bound)) {
		t.Errorf("an event of %d bytes: %s", e.Size(), r.Message)
	}
	// Of those that the configuration allows the newest are kept.
	m, limit := newMemory(t), *berthv1.Default().Spec.EventLimit
	var cs []Command
	for i := range limit + 10 {
		cs = append(cs, &PutEvent{Create: true, Event: EventWire{Object: &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("e%d", i)}}}})
	}
	m.apply(cs...)
	if n := m.state.View().Events.Len(); n != int(limit) {
		t.Errorf("%d events are kept, of %d that may be", n, limit)
	}
}

func failuresAreBounded(t *testing.T, bound int) {
	t.Helper()
	v := newLive()
	tx := &Tx{view: v}
	for i := range bound + 10 {
		tx.recordFailure(&ApplyFailure{Index: uint64(i), Place: 1})
	}
	if n := v.ApplyFailures.Len(); n != bound {
		t.Errorf("%d failures are kept", n)
	}
	if n := len(cut(strings.Repeat("x", maxCutBytes+1))); n != maxCutBytes {
		t.Errorf("a name of %d bytes is kept", n)
	}
}
