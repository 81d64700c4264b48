package fsm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a state holds in memory follows from what is in it, and not from what was
// once: it is compared with a state that is restored from its snapshot.

// liveBytes is what the heap holds that is still in use.
func liveBytes() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what only finalizers and pools had held
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

type memory struct {
	t       *testing.T
	base    int // before there was a state
	state   *State
	index   uint64
	elapsed time.Duration
}

func newMemory(t *testing.T) *memory {
	m := &memory{t: t, base: liveBytes(), state: NewState()}
	m.apply(&PutNamespace{Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}, Create: true})
	return m
}

func (m *memory) apply(cs ...Command) {
	m.t.Helper()
	ps := make([]Proposal, len(cs))
	for i, c := range cs {
		ps[i] = Proposal{User: "admin", Groups: []string{"system:masters"}, Command: c}
	}
	m.index++
	entry, err := EncodeEntry(Header{Version: LogVersion, TimeUnixNano: worldStart.Add(m.elapsed).UnixNano()}, ps)
	if err != nil {
		m.t.Fatal(err)
	}
	results, err := m.state.Apply(m.index, 1, entry)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, r := range results {
		if r.Refused() {
			m.t.Fatal(r.Message)
		}
	}
}

// live is what the state holds.
func (m *memory) live() int {
	n := liveBytes() - m.base
	runtime.KeepAlive(m.state)
	return n
}

// compare measures the state, and one restored from its snapshot.
func (m *memory) compare() (live, restored int) {
	m.t.Helper()
	var buf bytes.Buffer
	if err := m.state.View().Write(&buf); err != nil {
		m.t.Fatal(err)
	}
	m.t.Logf("snapshot: %d bytes", buf.Len())
	live = m.live()
	m.state = NewState()
	if err := m.state.Restore(bytes.NewReader(buf.Bytes())); err != nil {
		m.t.Fatal(err)
	}
	buf = bytes.Buffer{}
	return live, m.live()
}

const mebibyte = 1 << 20

// TestOldRowsAreBoundedByBytes: an object of 1 MiB that is replaced 500 times is
// not kept 500 times, but about as often as a small state may have old rows.
func TestOldRowsAreBoundedByBytes(t *testing.T) {
	m := newMemory(t)
	content := make([]byte, mebibyte)
	for i := range 500 {
		rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(content)
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "big", UID: "u"}, BinaryData: map[string][]byte{"x": content}}
		raw, err := object.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		m.apply(&PutObject{Resource: "configmaps", Raw: raw, Create: i == 0})
	}
	if live, most := m.live(), feedBounds().LeastBytes+40*mebibyte; live > most {
		t.Errorf("%d MiB are held, want at most %d", live/mebibyte, most/mebibyte)
	}
	m.elapsed = time.Hour
	m.apply(&Checkpoint{})
	m.apply(&PutEvent{Create: true, Event: EventWire{Object: &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}}}})
	live, restored := m.compare()
	if most := 2*restored + feedBounds().QuietBytes + 8*mebibyte; live > most {
		t.Errorf("an hour later %d MiB are held, %d by a restored state", live/mebibyte, restored/mebibyte)
	}
}

// TestEmptiedClusterGivesItsMemoryBack: pods of as many templates as there are
// pods, each with labels and an image of its own, come, are bound and go.
func TestEmptiedClusterGivesItsMemoryBack(t *testing.T) {
	const nodes, pods, atOnce = 100, 12_000, 1000
	m := newMemory(t)
	for i := range nodes {
		m.apply(&PutNode{Create: true, Node: NodeWire{Object: benchNodeObject(i)}})
	}
	for round := range 2 {
		for first := 0; first < pods; first += atOnce {
			m.elapsed += time.Second
			var admit, gone []Command
			plan := &ApplyPlan{Revision: m.state.View().Revision()}
			for i := first; i < first+atOnce; i++ {
				pod := benchPod(i)
				pod.UID = types.UID(fmt.Sprintf("%s-%d", pod.UID, round))
				pod.Labels = map[string]string{"app": fmt.Sprintf("app-%d-%d", round, i), "key-" + pod.Name: "x"}
				pod.Spec.Containers[0].Image = fmt.Sprintf("registry.example.com/%d/%d", round, i)
				pod.Spec.Containers[0].Args = []string{fmt.Sprintf("%01000d", i)}
				admit = append(admit, &AdmitPod{Pod: PodWire{Object: pod}})
				plan.Bindings = append(plan.Bindings, BindDecision{Key: PodKey(pod.Namespace, pod.Name), UID: string(pod.UID), Node: benchNode(i % nodes)})
				gone = append(gone, &DeletePod{Key: PodKey(pod.Namespace, pod.Name), GraceSeconds: new(int64)})
			}
			m.apply(admit...)
			m.apply(plan)
			m.apply(gone...)
		}
		t.Logf("round %d: %d MiB", round, m.live()/mebibyte)
	}
	m.elapsed += time.Hour
	m.apply(&DeleteEvents{BeforeUnixNano: worldStart.Add(m.elapsed).UnixNano(), Limit: 1 << 20})
	live, restored := m.compare()
	t.Logf("emptied: %d MiB, restored %d MiB", live/mebibyte, restored/mebibyte)
	if most := 2*restored + feedBounds().QuietBytes + 32*mebibyte; live > most {
		t.Errorf("%d MiB are held, %d by a restored state", live/mebibyte, restored/mebibyte)
	}
}
