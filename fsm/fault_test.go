package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// mine makes the state machine panic in the midst of commands: where a row is
// put or removed, after the table has changed and before the index has. When it
// does is a function of the state alone, as a mistake would be; or, where it
// stays, of the row alone, so that it comes each time. The returned function arms
// it.
func mine(t testing.TB, oneIn uint64, stays bool) (arm func(yes bool)) {
	armed := false
	step := func(v *live, table, key string) {
		if !armed {
			return
		}
		h := fnv.New64a()
		fmt.Fprint(h, table, key)
		if !stays {
			fmt.Fprint(h, v.Revision(), v.Queue.Len(), v.Pods.Len())
		}
		if h.Sum64()%oneIn == 0 && !strings.HasPrefix(key, "probe") {
			panic("mine on " + table + " " + key)
		}
	}
	plant(t, podTable, step)
	plant(t, nodeTable, step)
	plant(t, queueTable, step)
	plant(t, nominationTable, step)
	plant(t, budgetTable, step)
	plant(t, eventTable, step)
	plant(t, preemptionTable, step)
	plant(t, objectTable, step)
	plant(t, decisionTable, step)
	plant(t, markTable, step)
	return func(yes bool) { armed = yes }
}

func plant[T any](t testing.TB, def *tableDef[T], step func(v *live, table, key string)) {
	whole := def.Index
	def.Index = func(v *live, key string, old, now T, hadOld, hasNow bool) {
		step(v, def.Name, key)
		if whole != nil {
			whole(v, key, old, now, hadOld, hasNow)
		}
	}
	t.Cleanup(func() { def.Index = whole })
}

// TestPanicsInApplyAreRefusals: commands that panic anywhere leave nothing
// behind but their record, and all else is as sound as ever, on every replica,
// also on one that was restored.
func TestPanicsInApplyAreRefusals(t *testing.T) {
	for i := range 4 {
		rules, stays := i%2 == 1, i/2 == 1
		t.Run(fmt.Sprintf("rules=%t stays=%t", rules, stays), func(t *testing.T) {
			arm, faults, probes := mine(t, 40, stays), 0, 0
			rapid.Check(t, func(t *rapid.T) {
				arm(false)
				r := newRandom(t, false)
				r.rules = rules
				actions := r.actions()
				actions[""] = func(t *rapid.T) {
					arm(false)
					r.sound(t)
					r.counted(t)
					faults += len(r.state.Faults())
					arm(true)
				}
				// What has nothing to do with what panics is carried out, whatever is done beside it.
				actions["probe"] = func(t *rapid.T) {
					probes++
					name := fmt.Sprintf("probe-%d", probes)
					for _, c := range []Command{&PutNode{Node: NodeWire{Object: nodeNamed(name)}, Create: true}, deleteNode(name)} {
						if got := r.apply(c); got[0].Refused() {
							t.Fatalf("%T was refused: %s", c, got[0].Message)
						}
					}
				}
				actions["snapshot"] = func(t *rapid.T) {
					arm(false)
					r.run("snapshot", nil, "")
					arm(true)
				}
				t.Repeat(actions)
				arm(false)
			})
			if faults == 0 {
				t.Error("nothing panicked: the test shows nothing")
			}
		})
	}
}

// TestPanicUndoesItsCommandAlone: what stands beside it in the entry is done,
// before it and after it.
func TestPanicUndoesItsCommandAlone(t *testing.T) {
	w := newTranscript(t)
	w.line("node n1 cpu=4")
	explode(t, nodeTable, "bad")
	before := w.view()
	rs := w.apply(deleteNode("n1"), &PutNode{Node: NodeWire{Object: nodeNamed("bad")}, Create: true}, &PutNode{Node: NodeWire{Object: nodeNamed("good")}, Create: true})
	if rs[0].Refused() || rs[2].Refused() {
		t.Fatalf("those beside it were refused: %+v, %+v", rs[0], rs[2])
	}
	if rs[1].Code != 500 || !strings.Contains(rs[1].Message, "PutNode of log entry") {
		t.Fatalf("the one that panicked: %+v", rs[1])
	}
	v := w.view()
	if _, there := v.Nodes.Get("bad"); there || v.Nodes.Len() != 1 || v.Revision() != before.Revision()+2 {
		t.Fatalf("%d nodes at revision %d, after %d", v.Nodes.Len(), v.Revision(), before.Revision())
	}
	var rows []ApplyFailure
	v.ApplyFailures.Scan("", func(_ string, f *ApplyFailure) bool { rows = append(rows, *f); return true })
	want := ApplyFailure{Index: w.index, Place: 1, Command: "PutNode", User: "admin", TimeUnixNano: v.TimeUnixNano()}
	if len(rows) != 1 || rows[0] != want {
		t.Errorf("recorded %+v, want %+v", rows, want)
	}
	f := w.state.Faults()
	if len(f) != 1 || f[0].Value != "exploded" || !bytes.Contains(f[0].Stack, []byte("indexNode")) && !bytes.Contains(f[0].Stack, []byte("explode")) {
		t.Errorf("for the log: %+v", f)
	}
	if w.apply(deleteNode("good")); len(w.state.Faults()) != 0 {
		t.Error("the next entry still has the faults of the last")
	}
}

// TestPanicTakesOneDecisionOfAPlan: the others are carried out.
func TestPanicTakesOneDecisionOfAPlan(t *testing.T) {
	w := newTranscript(t)
	w.run("cluster", nil, "node n1 cpu=4\npod a cpu=1 uid=a\npod b cpu=1 uid=b\npod c cpu=1 uid=c")
	explode(t, podTable, "default/b")
	got := w.run("plan", nil, "bind a n1\nbind b n1\nbind c n1")
	if !strings.Contains(got, "refused default/b: "+failedPart) {
		t.Fatal(got)
	}
	for name, node := range map[string]string{"a": "n1", "b": "", "c": "n1"} {
		if pod, _ := w.view().Pods.Get("default/" + name); pod.Spec.NodeName != node {
			t.Errorf("%s is on %q", name, pod.Spec.NodeName)
		}
	}
}

// TestPanicsInAnEntryAreBounded: a whole entry of them costs no more than so
// many, and is refused whole.
func TestPanicsInAnEntryAreBounded(t *testing.T) {
	w := newTranscript(t)
	explode(t, nodeTable, "bad")
	commands := make([]Command, 10*maxFaults)
	for i := range commands {
		commands[i] = &PutNode{Node: NodeWire{Object: nodeNamed("bad")}, Create: true}
	}
	for _, r := range w.apply(commands...) {
		if r.Code != 500 {
			t.Fatalf("%+v", r)
		}
	}
	if n := len(w.state.Faults()); n != maxFaults {
		t.Errorf("%d were tried", n)
	}
	for range 2 * maxApplyFailures / maxFaults {
		w.apply(commands...)
	}
	if n := w.view().ApplyFailures.Len(); n != maxApplyFailures {
		t.Errorf("%d are kept", n)
	}
}

// TestRefusalThatChangedSomethingIsUndone: a command that breaks its word is
// treated as one that panics.
func TestRefusalThatChangedSomethingIsUndone(t *testing.T) {
	s := inhabited(t)
	before := s.View()
	f := before.Fork()
	r := f.Try(0, Proposal{Command: liar{}})
	if r[0].Code != 500 || f.View().Digest() == "" || f.View().Revision() != before.Revision() {
		t.Errorf("%+v at revision %d, before %d", r[0], f.View().Revision(), before.Revision())
	}
	if _, there := f.View().Nodes.Get("n1"); !there {
		t.Error("what it changed is still changed")
	}
}

type liar struct{}

func (liar) Apply(tx *Tx) Result {
	remove(tx, tx.view.Nodes, "n1")
	return refuseBadRequest("no")
}

// TestPanicInADecoderIsARefusal: the bytes of one command take none of the
// others with them.
func TestPanicInADecoderIsARefusal(t *testing.T) {
	w := newTranscript(t)
	rs := w.state.apply(w.index+1, 1, Header{}, []Proposal{{User: "bob", Command: &unreadable{22, errors.New("index out of range")}}}, func() []Proposal {
		return []Proposal{{User: "bob", Command: &unreadable{22, errors.New("index out of range")}}}
	})
	f := w.state.Faults()
	if rs[0].Code != 500 || len(f) != 1 || f[0].Command != "PutEvent" || f[0].Value != "index out of range" {
		t.Errorf("%+v, %+v", rs, f)
	}
}

// explode makes every change of one row panic.
func explode[T any](t testing.TB, def *tableDef[T], at string) {
	plant(t, def, func(_ *live, _, key string) {
		if key == at {
			panic("exploded")
		}
	})
}

func deleteNode(name string) Command { return &DeleteNode{Name: name} }

func nodeNamed(name string) *corev1.Node {
	n := new(corev1.Node)
	n.Name, n.UID = name, "u-"+"node"
	return n
}
