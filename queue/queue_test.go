package queue

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

var states = []berthv1.QueueState{
	berthv1.QueueActive, berthv1.QueueBackoff, berthv1.QueueSetAside, berthv1.QueueUnschedulable, berthv1.QueueNominated,
	berthv1.QueueGated,
}

func drawEntry(t *rapid.T, name string) *Entry {
	priority := rapid.Int32Range(-1, 2).Draw(t, "priority")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	pod.Spec.Priority = &priority
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		"cpu":    *apiresource.NewMilliQuantity(rapid.Int64Range(0, 4).Draw(t, "cpu")*100, apiresource.DecimalSI),
		"memory": *apiresource.NewQuantity(rapid.Int64Range(0, 4).Draw(t, "memory")<<20, apiresource.BinarySI),
	}}}}
	if rapid.Bool().Draw(t, "ruled") {
		app := map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")}
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: app}}}}}
	}
	e := NewEntry(pod, model.ClassOf(pod), rapid.Int64Range(1, 50).Draw(t, "enqueued"),
		rapid.Int64Range(0, 9).Draw(t, "at")*1e9)
	e.State = rapid.SampledFrom(states).Draw(t, "state")
	e.Errors = rapid.Int32Range(0, 1).Draw(t, "errors")
	e.KeptAway = rapid.Bool().Draw(t, "kept away")
	e.BackoffUntilUnixNano = rapid.Int64Range(0, 9).Draw(t, "backoff") * 1e9
	return e
}

func drawOrder(t *rapid.T) Order {
	c := berthv1.Default()
	c.Spec.Queue = rapid.SampledFrom([]berthv1.QueueOrder{berthv1.QueueByPriority, berthv1.QueueFIFO}).Draw(t, "queue")
	aging := rapid.Int32Range(0, 2).Draw(t, "aging")
	c.Spec.Aging.SecondsPerPoint = &aging
	return OrderOf(&c.Spec)
}

// The index answers as a walk over all entries would, at every moment, and a
// change of a fork does not reach what it was forked from.
func TestIndexAgainstAWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, all := new(Index), map[string]*Entry{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			before, was := x, dump(x)
			forked := x.Fork()
			x = &forked
			name := rapid.SampledFrom([]string{"p0", "p1", "p2", "p3", "p4", "p5"}).Draw(t, "name")
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				x.Put(all[name], nil)
				delete(all, name)
			case 1:
				x.Reorder(drawOrder(t))
			case 2:
				sortSome(t, x, all)
			default:
				e := drawEntry(t, name)
				x.Put(all[name], e)
				all[name] = e
			}
			if dump(before) != was {
				t.Fatal("a change of a fork reached what it was forked from")
			}
			again := new(Index)
			if again.now.order = x.now.order; x.sorting {
				again.Resume(x.now.order, x.next.order, x.sorted)
			}
			for _, e := range all {
				again.Put(nil, e)
			}
			if got, want := dump(x), dump(again); got != want {
				t.Fatalf("the index is\n%s\n--- made anew it is ---\n%s", got, want)
			}
			checkOrder(t, x, all, rapid.Int64Range(0, 9).Draw(t, "now")*1e9)
			checkCandidates(t, x, all)
		}
	})
}

// sortSome gives a few entries their place in the next order, and all of them in
// the end.
func sortSome(t *rapid.T, x *Index, all map[string]*Entry) {
	was, sorting := x.Sorting()
	if !sorting {
		return
	}
	next, most := x.next.order, rapid.IntRange(0, 3).Draw(t, "time")
	work := &Work{spent: maxWork/2 - most*costSort}
	_, done := x.Sort(work, func(from string, f func(key string, e *Entry) bool) {
		for _, key := range slices.Sorted(maps.Keys(byKey(all))) {
			if key >= from && !f(key, byKey(all)[key]) {
				return
			}
		}
	})
	now, sorting := x.Sorting()
	if done == sorting || done && now != next || !done && now != was {
		t.Fatalf("sorted: %t, the order is %+v, was %+v, will be %+v", done, now, was, next)
	}
}

func byKey(all map[string]*Entry) map[string]*Entry {
	out := map[string]*Entry{}
	for _, e := range all {
		out[e.Key()] = e
	}
	return out
}

func dump(x *Index) string {
	var b strings.Builder
	x.Describe(func(line string) { b.WriteString(line + "\n") })
	return b.String()
}

// checkOrder: who is ready, and who comes when.
func checkOrder(t *rapid.T, x *Index, all map[string]*Entry, now int64) {
	var tried, ready, early []*Entry
	for _, e := range all {
		if !e.IsTried() {
			continue
		}
		tried = append(tried, e)
		switch {
		case e.State == berthv1.QueueActive, e.BackoffUntilUnixNano <= now:
			ready = append(ready, e)
		case e.State == berthv1.QueueBackoff && e.Errors == 0:
			early = append(early, e)
		}
	}
	if len(ready) == 0 {
		ready = early
	}
	var gotTried, gotReady []*Entry
	x.InOrder(func(position int32, e *Entry) bool {
		gotTried = append(gotTried, e)
		return int(position) == len(gotTried)
	})
	x.Ready(now, func(e *Entry) bool {
		gotReady = append(gotReady, e)
		return true
	})
	if got, want := inOrder(x, gotTried, false), inOrder(x, tried, true); got != want {
		t.Fatalf("in order are %s, want %s", got, want)
	}
	if got, want := inOrder(x, gotReady, false), inOrder(x, ready, true); got != want {
		t.Fatalf("ready at %d are %s, want %s", now, got, want)
	}
}

func inOrder(x *Index, entries []*Entry, sort bool) string {
	if sort {
		slices.SortFunc(entries, func(a, b *Entry) int { return strings.Compare(x.now.order.key(a), x.now.order.key(b)) })
	}
	names := ""
	for _, e := range entries {
		names += " " + e.Name
	}
	return names
}

// checkCandidates: a node finds those who ask for no more than it has free.
func checkCandidates(t *rapid.T, x *Index, all map[string]*Entry) {
	free := model.Resources{
		Pods: 1, MilliCPU: rapid.Int64Range(0, 4).Draw(t, "free cpu") * 100,
		MemoryBytes: rapid.Int64Range(0, 4).Draw(t, "free memory") << 20,
	}
	want, got := map[string]bool{}, map[string]bool{}
	for _, e := range all {
		if r := e.Class().Request; e.Waits() && r.MilliCPU <= free.MilliCPU && r.MemoryBytes <= free.MemoryBytes {
			want[e.Group()] = true
		}
	}
	next := x.Candidates(new(Work), "", func(int32) model.Resources { return free }, func(g Group) { got[g.Key] = true })
	if next != "" || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("with %+v free %v are found (next %q), want %v", free, got, next, want)
	}
}

func TestOutcomes(t *testing.T) {
	spec := &berthv1.Default().Spec // backoffs of 1 s to 10 s
	const s = int64(1e9)
	e := &Entry{State: berthv1.QueueActive}
	failed := func(e *Entry) *Entry {
		return e.Attempted(Attempt{Revision: 7, UnixNano: 100 * s, Failed: true, State: berthv1.QueueBackoff}, spec)
	}
	found := func(e *Entry) *Entry {
		return e.Attempted(Attempt{Revision: 7, UnixNano: 100 * s, Diagnosis: &Diagnosis{},
			State: berthv1.QueueUnschedulable}, spec)
	}
	refused := func(e *Entry) *Entry { return e.Refused("why", 100*s, spec) }
	aside := func(e *Entry) *Entry { return e.PutAside(&SetAside{Kind: "Panic"}, 7, 100*s) }
	for _, c := range []struct {
		name  string
		e     *Entry
		state berthv1.QueueState
		until int64 // seconds
	}{
		{"no place", found(e), berthv1.QueueUnschedulable, 101},
		{"no place, thrice", found(found(found(e))), berthv1.QueueUnschedulable, 104},
		{"no place, often", found(found(found(found(found(found(e)))))), berthv1.QueueUnschedulable, 110},
		{"an error after it", failed(found(found(e))), berthv1.QueueBackoff, 101},
		{"errors in a row", failed(failed(e)), berthv1.QueueBackoff, 102},
		{"a refusal is free", refused(e), berthv1.QueueActive, 0},
		{"the second is not", refused(refused(e)), berthv1.QueueBackoff, 101},
		{"refusals are forgotten", refused(found(refused(e))), berthv1.QueueUnschedulable, 101},
		{"set aside", aside(e), berthv1.QueueSetAside, 110},
		{"again", aside(aside(e)), berthv1.QueueSetAside, 120},
		{"and again", aside(aside(aside(aside(aside(aside(aside(e))))))), berthv1.QueueSetAside, 400},
		{"not in a row", aside(found(aside(e))), berthv1.QueueSetAside, 110},
		{"woken", found(e).Woken(100 * s), berthv1.QueueBackoff, 101},
		{"woken late", found(e).Woken(101 * s), berthv1.QueueActive, 101},
		{"victims gone", found(e).AtOnce(), berthv1.QueueActive, 0},
	} {
		if c.e.State != c.state || c.e.BackoffUntilUnixNano != c.until*s {
			t.Errorf("%s: %s until %d s, want %s until %d s", c.name, c.e.State, c.e.BackoffUntilUnixNano/s, c.state, c.until)
		}
	}
	if e.Attempts+e.Errors+e.Refusals+e.TimesSetAside != 0 {
		t.Error("an outcome changed the entry that it is of")
	}
	long := refused(&Entry{})
	if long = long.Refused(strings.Repeat("é", maxTold), 0, spec); len(long.Refusal) > maxTold ||
		!strings.HasSuffix(long.Refusal, "é") {
		t.Errorf("%d bytes are kept of a refusal", len(long.Refusal))
	}
}

// TestCandidatesGoOnByMemory: who is asked by memory, for there are fewer of them,
// is gone on with as well when the time of an entry is over.
func TestCandidatesGoOnByMemory(t *testing.T) {
	x := new(Index)
	x.Reorder(OrderOf(&berthv1.Default().Spec))
	const little, much = 1200, 3000
	for i := range little + much {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p%05d", i),
			UID: types.UID(fmt.Sprint(i))}}
		memory := int64(1 + i)
		if i >= little {
			memory += 1 << 40
		}
		pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			"cpu":    *apiresource.NewMilliQuantity(1, apiresource.DecimalSI),
			"memory": *apiresource.NewQuantity(memory, apiresource.BinarySI),
		}}}}
		e := NewEntry(pod, model.ClassOf(pod), int64(i+1), 0)
		e.State = berthv1.QueueUnschedulable
		x.Put(nil, e)
	}
	free := func(int32) model.Resources { return model.Resources{Pods: 9, MilliCPU: 1000, MemoryBytes: 1 << 30} }
	asked, entries := map[string]int{}, 0
	for from := ""; entries == 0 || from != ""; entries++ {
		work := new(Work)
		from = x.Candidates(work, from, free, func(g Group) {
			asked[g.Key]++
			work.Wake()
		})
		if spent := work.Spent(); spent > maxWork+2*costWake {
			t.Fatalf("an entry spent %d", spent)
		}
	}
	if entries < 2 || len(asked) != little {
		t.Errorf("%d groups were asked in %d entries", len(asked), entries)
	}
	for key, times := range asked {
		if times != 1 {
			t.Fatalf("%q was asked %d times", key, times)
		}
	}
}

// TestAging (QU2, ours): a point of priority is worth so many seconds of waiting, to the millisecond, whatever the two
// are; who is worth the same goes by when he came, and then by UID. Of two pods the first stays the first, however long
// they wait.
func TestAging(t *testing.T) {
	entry := func(priority int32, seconds float64, revision int64) *Entry {
		return &Entry{
			UID: types.UID(fmt.Sprint("uid-", revision)), Priority: priority, EnqueuedRevision: revision,
			EnqueuedUnixNano: 1_700_000_000e9 + int64(seconds*1e9),
		}
	}
	for _, c := range []struct {
		what            string
		secondsPerPoint int64
		first, second   *Entry
	}{
		{"without aging no time makes up for priority", 0, entry(1, 1e9, 2), entry(0, 0, 1)},
		{"just not waited for long enough", 60, entry(10, 599.999, 2), entry(0, 0, 1)},
		{"waited for as long as the points are worth", 60, entry(0, 0, 1), entry(10, 600, 2)},
		{"waited for longer", 60, entry(0, 0, 1), entry(10, 600.001, 2)},
		{"of one priority", 60, entry(5, 0, 1), entry(5, 0.001, 2)},
		{"of one priority, at one time", 60, entry(5, 0, 1), entry(5, 0, 2)},
		{"less than a millisecond is none", 60, entry(5, 0.0005, 1), entry(5, 0, 2)},
		{"below zero", 60, entry(0, 59.999, 2), entry(-1, 0, 1)},
		{"below zero, waited for", 60, entry(-1, 0, 1), entry(0, 60, 2)},
		{"the most that there is", 24 * 60 * 60, entry(model.SystemCriticalPriority+1000, 1e9, 2), entry(-1<<31, 0, 1)},
		{"the most, and waited for a little", 24 * 60 * 60, entry(1<<31-1, 0, 1), entry(1<<31-1, 1, 2)},
	} {
		o := Order{SecondsPerPoint: c.secondsPerPoint}
		if o.key(c.first) >= o.key(c.second) {
			t.Errorf("%s: the second is first", c.what)
		}
	}
	o := Order{SecondsPerPoint: 1, FIFO: true}
	if o.key(entry(0, 0, 1)) >= o.key(entry(100, 0, 2)) {
		t.Error("first come, first served has no use for priority, nor for aging")
	}
	rapid.Check(t, func(t *rapid.T) {
		o := Order{SecondsPerPoint: rapid.Int64Range(1, 24*60*60).Draw(t, "seconds per point")}
		draw := func(revision int64) *Entry {
			return entry(rapid.Int32().Draw(t, "priority"), float64(rapid.IntRange(0, 1<<30).Draw(t, "seconds")), revision)
		}
		a, b := draw(1), draw(2)
		// How much longer than the other one the first waits, and how much that has to be.
		waits := new(big.Int).Mul(big.NewInt(o.SecondsPerPoint), big.NewInt(int64(b.Priority)-int64(a.Priority)))
		waited := big.NewInt((b.EnqueuedUnixNano - a.EnqueuedUnixNano) / 1e9)
		if first := waited.Cmp(waits) >= 0; first != (o.key(a) < o.key(b)) {
			t.Fatalf("%d points of %d s, waited for %s s longer, of %s: first %t", a.Priority-b.Priority, o.SecondsPerPoint, waited, waits, !first)
		}
	})
}
