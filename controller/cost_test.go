package controller_test

import (
	"fmt"
	"testing"

	"github.com/berth-dev/berth/controller"
)

// BenchmarkRound is one round of all controllers over 10,000 nodes, all of them
// tainted, and 100,000 pods that tolerate it: it must not walk over the pods.
func BenchmarkRound(b *testing.B) {
	w := newWorld(b)
	for i := range 10_000 {
		name := fmt.Sprintf("n%05d", i)
		w.run("worker", args{{Key: name}, {Key: "zone", Vals: []string{fmt.Sprintf("z%d", i%3)}}})
		w.run("node", args{{Key: name}, {Key: "taints", Vals: []string{"k:NoExecute"}}})
		w.beats[name] = w.now.UnixNano()
		for p := range 10 {
			w.run("pod", args{{Key: fmt.Sprintf("p%05d-%d", i, p)}, {Key: "node", Vals: []string{name}}, {Key: "tolerate", Vals: []string{"k:3600"}}})
		}
	}
	v, now, since := w.state.View(), w.now.UnixNano(), w.since.UnixNano()
	round := func() int {
		n := len(controller.Nominations(v, now)) + len(w.lifecycle.Reconcile(v, w.beats, since, now))
		n += len(w.taints.Reconcile(v, w.lifecycle.Held(now), now)) + len(w.namespaces.Reconcile(v, now))
		return n + len(w.gc.Reconcile(v, now)) + len(controller.Events(v, now))
	}
	if n := round(); n != 0 {
		b.Fatalf("%d commands are wanted", n)
	}
	b.ReportAllocs()
	for b.Loop() {
		round()
	}
}
