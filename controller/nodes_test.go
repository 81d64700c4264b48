package controller_test

import (
	"fmt"
	"testing"

	"github.com/berth-dev/berth/fsm"
)

// TestLostNodesInPieces: nodes that are lost together come in commands of about
// equal cost, each node once.
func TestLostNodesInPieces(t *testing.T) {
	w := newWorld(t)
	const nodes, crowded = 700, 300
	seen := map[string]bool{}
	for i := range nodes {
		name := fmt.Sprintf("n%05d", i)
		w.run("worker", args{{Key: name}})
		w.beats[name] = w.now.UnixNano()
		if i == 0 {
			for p := range crowded {
				w.run("pod", args{{Key: fmt.Sprintf("p%05d", p)}, {Key: "node", Vals: []string{name}}})
			}
		}
	}
	later := w.now.Add(100 * 1e9).UnixNano()
	for _, c := range w.lifecycle.Reconcile(w.state.View(), w.beats, w.since.UnixNano(), later) {
		health, ok := c.(*fsm.SetNodeHealth)
		if !ok {
			t.Fatalf("%T", c)
		}
		things := 0
		for _, h := range health.Nodes {
			if seen[h.Name] {
				t.Errorf("node %s comes twice", h.Name)
			}
			seen[h.Name] = true
			things += 1 + int(w.state.View().Usage(h.Name).Requested.Pods)
		}
		if things > 250 && len(health.Nodes) > 1 {
			t.Errorf("a command is about %d nodes and pods", things)
		}
	}
	if len(seen) != nodes {
		t.Errorf("%d of %d lost nodes are told", len(seen), nodes)
	}
}
