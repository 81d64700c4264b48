package apiserver

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/store"
)

// nodeWatchers attaches a watcher to the hub for each of n nodes, as n workers
// would.
func nodeWatchers(b *testing.B, h *hub, n int) []*watcher {
	b.Helper()
	out := make([]*watcher, n)
	for i := range out {
		out[i] = &watcher{kind: podKind(), hub: h, scope: scope{node: fmt.Sprintf("node-%d", i)}}
		if !h.attach(out[i], h.at()) {
			b.Fatal("not attached")
		}
	}
	return out
}

func changesOf(table string, n int, node func(i int) string) []store.Change {
	changes := make([]store.Change, n)
	for i := range changes {
		name := fmt.Sprintf("pod-%d", i)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node(i)}}
		changes[i] = store.Change{Revision: int64(i + 1), Table: table, Key: "default/" + name, New: pod}
	}
	return changes
}

// TestAWatchIsToldWhereItEnds: once, two seconds before its end, and whoever asked for bookmarks.
func TestAWatchIsToldWhereItEnds(t *testing.T) {
	h := newHub(newDouble(t), newPins(time.Now))
	began := time.Unix(1_700_000_000, 0)
	watching := func(bookmarks bool, lasts time.Duration) *watcher {
		w := &watcher{kind: podKind(), hub: h, bookmarks: bookmarks}
		if !h.attach(w, h.at()) {
			t.Fatal("not attached")
		}
		if w.toldAt = began; lasts > 0 {
			w.endsAt = began.Add(lasts)
		}
		return w
	}
	ends, endless, silent := watching(true, bookmarkBefore+time.Second), watching(true, 0), watching(false, bookmarkBefore+time.Second)
	for _, c := range []struct {
		after time.Duration
		told  int // bookmarks so far
	}{{0, 0}, {time.Second - 1, 0}, {time.Second, 1}, {time.Second + tick, 1}, {time.Second + bookmarkBefore, 1}} {
		if c.after >= bookmarkEvery {
			t.Fatal("a bookmark is due anyway")
		}
		h.bookmark(began.Add(c.after))
		if told := len(ends.input); told != c.told {
			t.Errorf("%s after its beginning the watch has been told %d times, want %d", c.after, told, c.told)
		}
	}
	if b := (<-ends.input).bookmark; b != h.at() {
		t.Errorf("told %d, and it is at %d", b, h.at())
	}
	if len(endless.input)+len(silent.input) > 0 {
		t.Errorf("a watch without an end was told %d times, one without bookmarks %d", len(endless.input), len(silent.input))
	}
}

// BenchmarkRouteUnwatched: changes that nobody watches.
func BenchmarkRouteUnwatched(b *testing.B) {
	h := newHub(newDouble(b), newPins(time.Now))
	nodeWatchers(b, h, 10_000)
	changes := changesOf("events", 1000, func(int) string { return "" })
	b.ReportAllocs()
	for b.Loop() {
		h.route(changes)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/change")
}

// BenchmarkRouteByNode: each change concerns one of 10,000 workers.
func BenchmarkRouteByNode(b *testing.B) {
	h := newHub(newDouble(b), newPins(time.Now))
	ws := nodeWatchers(b, h, 10_000)
	changes := changesOf("pods", 1000, func(i int) string { return fmt.Sprintf("node-%d", i*7) })
	b.ReportAllocs()
	for b.Loop() {
		h.mu.Lock()
		h.position = 0
		h.mu.Unlock()
		h.route(changes)
		for i := range 1000 {
			w := ws[i*7]
			for len(w.input) > 0 {
				<-w.input
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/change")
}
