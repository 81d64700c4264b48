package queue

import (
	"fmt"

	"github.com/berth-dev/berth/store"
)

// Index is the order of the queue, and under what those stand who wait. Its
// zero value is empty, in the order of no configuration: Reorder comes first.
// Fork copies it in constant time; one that is written to is for one goroutine.
type Index struct {
	now ordering
	// While the queue goes over to another order (Reorder): that order, and those
	// that have their place in it, which are the entries up to a key.
	next    ordering
	sorting bool
	sorted  string

	groups      store.Tree[Group]  // groupKey: by what their classes request
	ruledGroups store.Tree[Group]  // placePrefix and group: by the pods that their rules are about
	claims      store.Tree[Group]  // claimKey and group: by the claims of volumes
	podMarks    store.Tree[string] // markKey -> key of a PodMark
	nodeMarks   store.Tree[string] // markKey -> node
	ruled       int                // pods in the queue that have hard rules about others
}

// Fork returns an index that starts as a copy. From then on the index itself
// must not be written to, only the fork.
func (x *Index) Fork() Index {
	return Index{
		now: x.now.fork(), next: x.next.fork(), sorting: x.sorting, sorted: x.sorted,
		groups: x.groups.Fork(), ruledGroups: x.ruledGroups.Fork(), claims: x.claims.Fork(),
		podMarks: x.podMarks.Fork(), nodeMarks: x.nodeMarks.Fork(), ruled: x.ruled,
	}
}

// Put takes in that an entry came, changed or went: nil stands for one that is
// not there.
func (x *Index) Put(old, now *Entry) {
	if old != nil {
		x.countRuled(old, -1)
		x.leave(old)
		if old.Waits() {
			x.watch(old, -1)
		}
	}
	if now != nil {
		x.countRuled(now, 1)
		x.enter(now)
		if now.Waits() {
			x.watch(now, 1)
		}
	}
}

func (x *Index) countRuled(e *Entry, by int) {
	if e.class.HasHardTopology() {
		x.ruled += by
	}
}

// HasRules says whether any pod of the queue has a hard rule about others.
func (x *Index) HasRules() bool { return x.ruled > 0 }

// Lengths are how many pods there are, by state; those that wait for their
// victims count as waiting.
type Lengths struct{ Active, Backoff, Waiting, Gated int }

// Lengths counts the queue, of which all entries are given, without walking it.
func (x *Index) Lengths(all int) Lengths {
	l := Lengths{Active: x.now.active.Len(), Backoff: x.now.backoffs.Len(), Waiting: x.now.waiting.Len()}
	l.Gated = all - l.Active - l.Backoff - l.Waiting
	return l
}

// Blocked calls f, in queue order, for the entries for which no place was found
// and that wait for nobody's end, until f returns false.
func (x *Index) Blocked(f func(e *Entry) bool) {
	x.now.blocked.Scan("", func(_ string, e *Entry) bool { return f(e) })
}

// Describe calls f for everything that the index holds, in a fixed order, as
// text: two indexes of one state describe themselves alike.
func (x *Index) Describe(f func(line string)) {
	f(fmt.Sprintf("order %+v ruled %d, sorting %t up to %q", x.now.order, x.ruled, x.sorting, x.sorted))
	entries := func(name string, t store.Tree[*Entry]) {
		t.Scan("", func(at string, e *Entry) bool {
			f(fmt.Sprintf("%s %q: %s@%d %x", name, at, e.Key(), e.Revision, e.class.Signature))
			return true
		})
	}
	for _, q := range []*ordering{&x.now, &x.next} {
		f(fmt.Sprintf("by %+v", q.order))
		entries("active", q.active)
		entries("backoffs", q.backoffs)
		entries("waiting", q.waiting)
		entries("blocked", q.blocked)
	}
	groups := func(name string, t store.Tree[Group]) {
		t.Scan("", func(at string, g Group) bool {
			// Any class of the group may stand there: what all have in common.
			f(fmt.Sprintf("%s %q: %x %x %d", name, at, g.Class.Shape, g.Key, g.pods))
			return true
		})
	}
	groups("groups", x.groups)
	groups("ruled groups", x.ruledGroups)
	groups("claims", x.claims)
	marks := func(name string, t store.Tree[string]) {
		t.Scan("", func(at, of string) bool {
			f(fmt.Sprintf("%s %q: %q", name, at, of))
			return true
		})
	}
	marks("pod marks", x.podMarks)
	marks("node marks", x.nodeMarks)
}
