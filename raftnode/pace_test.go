package raftnode

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// TestPace: as many commands are put into an entry as it may cost, by what those
// of their kind have cost before.
func TestPace(t *testing.T) {
	p := newPace()
	fits := func(c fsm.Command) (n int64) { return entryWork / p.expect(loadOf(c)) }
	admit, remove := &fsm.AdmitPod{}, &fsm.DeletePod{}
	usual := fits(admit)
	if usual != entryWork/int64(UsualCost) || fits(&fsm.AdmitPods{Count: 100}) != usual/100 {
		t.Fatalf("nothing is known, and %d fit", usual)
	}
	p.learn(loadOf(admit), fsm.Result{Work: entryWork / 2})
	if fits(admit) != 2 || fits(remove) != usual {
		t.Errorf("of the dear kind %d fit, of another %d", fits(admit), fits(remove))
	}
	last := fits(admit)
	for range 200 {
		p.learn(loadOf(admit), fsm.Result{Work: 100})
		if now := fits(admit); now < last {
			t.Fatalf("it was cheap, and fewer fit: %d, then %d", last, now)
		}
		last = fits(admit)
	}
	if last != entryWork/int64(leastCost) {
		t.Errorf("it is cheap by now, and %d fit", last)
	}
	for range 200 {
		p.learn(loadOf(remove), fsm.Result{Code: 404})
	}
	if fits(remove) != usual {
		t.Errorf("refusals were cheap, and %d fit", fits(remove))
	}
	p.learn(loadOf(remove), fsm.Result{Code: 429, Work: entryWork})
	if fits(remove) != 1 {
		t.Errorf("a refusal was dear, and %d fit", fits(remove))
	}
	p.learn(loadOf(&fsm.SetNodeHealth{Nodes: make([]fsm.NodeHealth, 10)}), fsm.Result{Work: 10 * entryWork})
	if got := p.expect(loadOf(&fsm.SetNodeHealth{Nodes: make([]fsm.NodeHealth, 3)})); got != 3*entryWork {
		t.Errorf("three dear nodes are expected to cost %d", got)
	}
}

// TestPaceOfPorts: pods with many host ports are taken for dear, however cheap those
// before them were.
func TestPaceOfPorts(t *testing.T) {
	p := newPace()
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{}}}}
	for i := range int32(128) {
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{HostPort: 1 + i})
	}
	admit := &fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}}
	for range 100 {
		p.learn(loadOf(&fsm.AdmitPod{}), fsm.Result{Work: 100})
	}
	if n := entryWork / p.expect(loadOf(admit)); n < 10 || n > 20 {
		t.Errorf("%d pods with 128 host ports fit", n)
	}
	if n := entryWork / p.expect(loadOf(&fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}})); n > 10 {
		t.Errorf("%d that may change their kind fit", n)
	}
	waiting := pod.DeepCopy()
	waiting.Spec.NodeName = ""
	if n := entryWork / p.expect(loadOf(&fsm.AdmitPod{Pod: fsm.PodWire{Object: waiting}})); n < 1000 {
		t.Errorf("%d that have no node yet fit", n)
	}
}

// TestPaceOfConditions: so are pods that ask much of a node.
func TestPaceOfConditions(t *testing.T) {
	p := newPace()
	term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn}}}
	for len(term.MatchExpressions[0].Values) < 500 {
		term.MatchExpressions[0].Values = append(term.MatchExpressions[0].Values, "z")
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}},
	}}}}
	for range 100 {
		p.learn(loadOf(&fsm.UpdatePod{}), fsm.Result{Work: 100})
	}
	for _, c := range []fsm.Command{&fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}}, &fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}}} {
		if n := entryWork / p.expect(loadOf(c)); n < 5 || n > 20 {
			t.Errorf("%d of %T with 500 conditions fit", n, c)
		}
	}
	if n := entryWork / p.expect(loadOf(&fsm.AdmitPods{Template: fsm.PodWire{Object: pod}, Count: 1000})); n < 1 {
		t.Errorf("a thousand of a template, whose conditions are worked out once, are taken for too dear: %d", n)
	}
}

// TestEntriesByCost: what waits is put into entries by what it will cost, and a
// call that one entry can hold is not split.
func TestEntriesByCost(t *testing.T) {
	p := &proposer{c: Config{}.withDefaults(), pace: newPace()}
	call := func(commands int) *Future {
		f := &Future{p: p, done: make(chan struct{})}
		for range commands {
			f.parts, f.loads = append(f.parts, []byte("x")), append(f.loads, loadOf(&fsm.DeletePod{}))
			f.bytes++
		}
		p.queue = append(p.queue, f)
		return f
	}
	most := int(entryWork / UsualCost)
	a, b, _ := call(most/2), call(most/2+1), call(3*most)
	var got [][]int
	for len(p.queue) > 0 {
		e, _ := p.take()
		var pieces []int
		for _, piece := range e.pieces {
			pieces = append(pieces, piece.to-piece.from)
		}
		got = append(got, pieces)
	}
	want := [][]int{{len(a.parts)}, {len(b.parts)}, {most}, {most}, {most}}
	if len(got) != len(want) {
		t.Fatalf("entries %v, want %v", got, want)
	}
	for i := range want {
		if len(got[i]) != 1 || got[i][0] != want[i][0] {
			t.Errorf("entries %v, want %v", got, want)
		}
	}
}

// TestWhatIsWithdrawnKeepsNoBytes: whoever gives up takes what he proposed with him, also while nothing is taken from the queue.
func TestWhatIsWithdrawnKeepsNoBytes(t *testing.T) {
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &proposer{c: Config{}.withDefaults(), pace: newPace(), metrics: m, wake: make(chan struct{}, 1), dead: make(chan struct{})}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var fs []*Future
	for range 3 {
		f := &Future{p: p, done: make(chan struct{}), parts: []store.Encoded{make([]byte, 1<<20)}, loads: []load{loadOf(&fsm.DeletePod{})}, bytes: 1 << 20}
		if err := p.enqueue(f); err != nil {
			t.Fatal(err)
		}
		fs = append(fs, f)
	}
	for _, f := range fs[:2] {
		if _, _, err := f.Wait(ended); !errors.Is(err, ErrNotProposed) {
			t.Fatal(err)
		}
		if f.parts != nil || f.loads != nil {
			t.Errorf("a proposal that was withdrawn keeps %d parts", len(f.parts))
		}
	}
	if p.len != 1 || p.bytes != 1<<20 {
		t.Errorf("%d commands of %d bytes count", p.len, p.bytes)
	}
	e, _ := p.take()
	if len(e.pieces) != 1 || e.pieces[0].f != fs[2] || len(p.queue) != 0 {
		t.Errorf("the entry has %d pieces, and %d wait", len(e.pieces), len(p.queue))
	}
}
