package fsm

import (
	"bytes"
	"slices"
	"testing"
)

// TestARestoredServerStopsWhereTheOthersDo: what an entry may do is bounded, and a
// server that was restored a moment ago has worked out nothing yet. It must come
// as far as the others, and no further.
func TestARestoredServerStopsWhereTheOthersDo(t *testing.T) {
	bounded := []string{"UpdatePod/labels", "DeletePod", "PutNode/grow", "ApplyPlan/bindings", "ApplyPlan/failures", "ApplyPlan/preemptions"}
	w := worstPlan{Nodes: 300, Zones: 3, NodeLabels: 4, Placed: 3000, Kinds: 3000, Waiting: 1000, Shapes: 300, Namespaces: 1, Labels: 2, Levels: 3,
		PlacedRules: worstRules{Anti: 1, Key: 1}, WaitingRules: worstRules{Anti: 4, About: 2, Key: 1}}.build(t)
	for _, c := range worstCases() {
		if !slices.Contains(bounded, c.name) {
			continue
		}
		var b bytes.Buffer
		if err := w.state.View().Write(&b); err != nil {
			t.Fatal(err)
		}
		restored := NewState()
		if err := restored.Restore(&b); err != nil {
			t.Fatal(err)
		}
		entry := w.entry(c.make(w, 0)...)
		w.index++
		for _, s := range []*State{w.state, restored} {
			if _, err := s.Apply(w.index, 1, entry); err != nil {
				t.Fatal(err)
			}
		}
		if w.state.View().Digest() != restored.View().Digest() {
			t.Errorf("%s: a restored server differs", c.name)
		}
	}
}
