package fsm

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/berth-dev/berth/store"
)

// TestRulesThatPanicDoNotBegin: what rules ask of the whole state when they begin panics. The entry is carried out by those
// before, on servers that were there as on one that begins with a snapshot; a minute later they are tried again.
func TestRulesThatPanicDoNotBegin(t *testing.T) {
	w, broken, tried := newTranscriptBy(t, SinceItems-1), true, 0
	w.line("object persistentvolumeclaims one given=1Gi")
	w.line("object resourcequotas all hard=requests.storage:9Gi,gpu.deviceclass.resource.k8s.io/devices:1")
	plant(t, objectTable, func(v *live, _, key string) {
		if key == ResourceQuotas+"/default/all" && v.countsItems() && broken {
			tried++
			panic("no quota is counted")
		}
	})
	w.version = SinceItems
	for _, name := range []string{"n1", "n2"} {
		if got := w.line("node " + name + " cpu=4"); !strings.HasPrefix(got, "ok") {
			t.Fatalf("a command beside it: %s", got)
		}
		if v := w.view(); v.Version() != SinceItems-1 || v.Nodes.Len() == 0 {
			t.Fatalf("version %d, %d nodes", v.Version(), v.Nodes.Len())
		}
	}
	if tried != 4 { // twice in the first entry, on each of two servers
		t.Errorf("tried %d times", tried)
	}
	rows := w.view().LastApplyFailures(9)
	if len(rows) != 1 || rows[0].Command != "Entry" || rows[0].Part != rulesPart {
		t.Errorf("recorded %+v", rows)
	}
	restored := NewState()
	if err := restored.Restore(bytes.NewReader(snapshotOf(t, w.view()))); err != nil {
		t.Fatal(err)
	}
	compareViews(t, "a restored server", w.view(), restored.View())
	broken = false
	w.now = w.now.Add(apartAgain)
	w.line("node n3 cpu=4")
	if v := w.view(); v.Version() != SinceItems || v.ApplyFailures.Len() != 1 {
		t.Errorf("version %d, %d failures", v.Version(), v.ApplyFailures.Len())
	}
}

// spoiled panics, and cannot be undone.
func spoiled(tx *Tx) {
	remove(tx, tx.view.Nodes, "n1")
	tx.Undo(0)
	panic("spoiled")
}

// beside applies a command together with one that creates a node, directly to a state.
func beside(s *State, c Command, node string) []Result {
	again := func() []Proposal {
		return []Proposal{{Command: &PutNode{Node: NodeWire{Object: nodeNamed(node)}, Create: true}}, {Command: c}}
	}
	v := s.View()
	return s.apply(v.Index()+1, 1, Header{TimeUnixNano: v.TimeUnixNano() + 1, Version: v.Version()}, again(), again)
}

// TestEntryThatCannotBeUndoneInPartsIsRefused: it is refused whole, and recorded; where not even that can be done, it is refused. What comes
// after goes on from the entry before.
func TestEntryThatCannotBeUndoneInPartsIsRefused(t *testing.T) {
	for _, recorded := range []bool{true, false} {
		w, broken := newTranscript(t), !recorded
		w.line("node n1 cpu=4")
		plant(t, applyFailureTable, func(*live, string, string) {
			if broken {
				panic("nothing is recorded")
			}
		})
		before := w.view()
		rs := beside(w.state, anything(spoiled), "n2")
		v := w.view()
		if rs[0].Code != 500 || rs[1].Code != 500 || rs[1].Index != before.Index()+1 || rs[1].Revision != before.Revision() {
			t.Fatalf("%+v", rs)
		}
		if _, there := v.Nodes.Get("n1"); !there || v.Nodes.Len() != 1 || v.Revision() != before.Revision() || v.Index() != before.Index()+1 {
			t.Fatalf("%d nodes at revision %d of %d", v.Nodes.Len(), v.Revision(), v.Index())
		}
		if len(w.state.Faults()) != 1 || w.state.Faults()[0].Command != "Entry" || (v.ApplyFailures.Len() == 1) != recorded {
			t.Errorf("faults %+v, %d recorded", w.state.Faults(), v.ApplyFailures.Len())
		}
		broken = false
		if rs := beside(w.state, anything(func(*Tx) {}), "n2"); rs[0].Refused() || rs[1].Refused() || w.view().Nodes.Len() != 2 {
			t.Errorf("the next: %+v", rs)
		}
		if d := w.view().Fork().View().Digest(); d != w.view().Digest() {
			t.Error("a fork differs")
		}
	}
}

// TestPanicThatDoesNotComeAgainIsTold: what panicked once, and not when the entry was carried out again, came of this server alone. The
// entry is done, nothing is recorded in the state, and the server tells it.
func TestPanicThatDoesNotComeAgainIsTold(t *testing.T) {
	w, once := newTranscript(t), true
	rs := beside(w.state, anything(func(*Tx) {
		if once {
			once = false
			panic("what this server alone keeps is wrong")
		}
	}), "n1")
	if rs[0].Refused() || rs[1].Refused() || w.view().Nodes.Len() != 1 || w.view().ApplyFailures.Len() != 0 {
		t.Errorf("%+v, %d recorded", rs, w.view().ApplyFailures.Len())
	}
	if f := w.state.Faults(); len(f) != 1 || !f[0].Once || f[0].Index != w.view().Index() || f[0].Value != "what this server alone keeps is wrong" {
		t.Errorf("faults %+v", f)
	}
	beside(w.state, anything(func(*Tx) {}), "n2")
	if f := w.state.Faults(); len(f) != 0 {
		t.Errorf("then %+v", f)
	}
}

// TestFeedThatPanicsBeginsAnew: the entry is done, its view is there, and who follows the feed starts again from it.
func TestFeedThatPanicsBeginsAnew(t *testing.T) {
	w := newTranscript(t)
	w.line("node n1 cpu=4")
	from := w.view().Revision()
	setField(w.state.Feed(), "chunks", nil)
	setField(w.state.Feed(), "bounds", store.FeedBounds{Changes: 1})
	rs := beside(w.state, anything(func(*Tx) {}), "n2")
	if rs[0].Refused() || w.view().Nodes.Len() != 2 || w.view().Index() != rs[0].Index {
		t.Fatalf("%+v, %d nodes", rs, w.view().Nodes.Len())
	}
	f := w.state.Faults()
	if len(f) != 1 || f[0].Part != "feed" || !f[0].Shown || w.view().ApplyFailures.Len() != 0 {
		t.Errorf("faults %+v", f)
	}
	if _, err := w.state.Feed().After(from, 1); err != store.ErrCompacted {
		t.Errorf("a reader from before: %v", err)
	}
	at := w.view().Revision()
	if changes, err := w.state.Feed().After(at, 1); err != nil || len(changes) != 0 {
		t.Errorf("one from now: %v, %v", changes, err)
	}
	setField(w.state.Feed(), "bounds", feedBounds())
	beside(w.state, anything(func(*Tx) {}), "n3")
	if changes, err := w.state.Feed().After(at, 1); err != nil || len(changes) != 1 {
		t.Errorf("then: %v, %v", changes, err)
	}
}

// setField sets a field that its package keeps to itself.
func setField(of any, name string, to any) {
	f := reflect.ValueOf(of).Elem().FieldByName(name)
	f = reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
	if to == nil {
		f.SetZero()
		return
	}
	f.Set(reflect.ValueOf(to))
}

// TestRestoreThatPanicsIsAnError: the state is as it was.
func TestRestoreThatPanicsIsAnError(t *testing.T) {
	w := newTranscript(t)
	w.line("node n1 cpu=4")
	snapshot, s := snapshotOf(t, w.view()), NewState()
	digest := s.View().Digest()
	broken := true
	plant(t, nodeTable, func(*live, string, string) {
		if broken {
			panic("no node is read")
		}
	})
	err := s.Restore(bytes.NewReader(snapshot))
	if !errors.Is(err, ErrRestoreBroke) || !strings.Contains(err.Error(), "no node is read") || s.View().Digest() != digest {
		t.Fatalf("%v", err)
	}
	if rs := beside(s, anything(func(*Tx) {}), "n2"); !rs[1].Refused() && rs[0].Refused() != broken {
		t.Errorf("then: %+v", rs)
	}
	broken = false
	if err := s.Restore(bytes.NewReader(snapshot)); err != nil || s.View().Digest() != w.view().Digest() {
		t.Errorf("again: %v", err)
	}
}
