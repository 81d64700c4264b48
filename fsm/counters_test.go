package fsm

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPanicKeepsTheCounters: what a panic undoes is taken back from the counters
// of rules between pods; they are made anew only where it came out of them.
func TestPanicKeepsTheCounters(t *testing.T) {
	w := newTranscript(t)
	w.run("cluster", nil, "node n1 cpu=4 labels=zone:a\npod a cpu=1 label=app:a node=n1\npod b cpu=1 anti=zone:app:a")
	held := func() int32 {
		t.Helper()
		own, fresh := w.state.live, w.view().Fork().live
		pod, _ := own.Pods.Get("default/b")
		c := own.cache.class(pod)
		got, want := own.topology().Judge(c).Fails("n1"), fresh.topology().Judge(c).Fails("n1")
		if got != want || len(own.cache.counters.told) != 0 {
			t.Fatalf("the counters say %b, new ones %b; %d things to take back", got, want, len(own.cache.counters.told))
		}
		return int32(got)
	}
	before := held()
	for name, c := range map[string]struct {
		do   func(tx *Tx)
		kept bool
	}{
		"outside": {func(tx *Tx) {
			remove(tx, tx.view.Pods, "default/a")
			remove(tx, tx.view.Nodes, "n1")
			panic("outside")
		}, true},
		"in a look": {func(tx *Tx) {
			class := tx.view.usage.ClassOf(podOf(tx, "default/a"))
			tx.view.cache.counters.peek([]told{{sign: -1, node: "n1", class: class}}, func() { panic("in a look") })
		}, true},
		"inside": {func(tx *Tx) {
			remove(tx, tx.view.Pods, "default/a")
			tx.view.topology().AddPod("n1", nil, false)
		}, false},
		"when it is taken back": {func(tx *Tx) {
			tx.view.cache.counters.told = append(tx.view.cache.counters.told, told{sign: 1, node: "n1"})
			panic("outside")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			counted := w.state.live.cache.counters
			again := func() []Proposal { return []Proposal{{Command: anything(c.do)}} }
			rs := w.state.apply(w.index+1, 1, Header{}, again(), again)
			w.index++
			if rs[0].Code != 500 {
				t.Fatalf("%+v", rs[0])
			}
			if kept := w.state.live.cache.counters == counted; kept != c.kept {
				t.Errorf("kept: %t", kept)
			}
			if held() != before {
				t.Error("they count otherwise")
			}
		})
	}
}

type anything func(tx *Tx)

func (f anything) Apply(tx *Tx) Result {
	f(tx)
	return Result{}
}

func podOf(tx *Tx, key string) *corev1.Pod {
	pod, ok := tx.view.Pods.Get(key)
	if !ok {
		panic(fmt.Sprintf("%s is not there", key))
	}
	return pod
}
