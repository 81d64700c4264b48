// Package usage keeps what is used of nodes: which pods are there and what they
// have requested, what nodes offer, and which nominations keep room on them.
// What a nomination takes away, and from whom, is said here and nowhere else.
//
// The index knows rows by Put, and looks at no table.
package usage

import (
	"encoding/binary"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// Index is the index. Its zero value is empty and ready. Fork copies it in
// constant time; one that is written to is for one goroutine.
type Index struct {
	placed      store.Tree[placed] // node/namespace/name: pods on their nodes
	used        nodeSums
	offers      store.Tree[*model.Resources] // node: what it has for pods
	nominations store.Tree[*Nomination]      // node/namespace/name
	nominees    store.Tree[int]              // node: nominations to it
	ranked      store.Tree[*Nomination]      // rankKey and namespace/name
	waitedFor   store.Tree[string]           // victim's UID/namespace/name: key of nominations
	reserved    string                       // key of the nomination that is a reservation
	kinds       store.Tree[int]              // signature of a class: pods of it, placed or nominated
	guards      int                          // classes among them that keep others away
	wideGuards  int                          // of these, those of which a term demands no label
}

// placed is a pod on its node, with what it asks for.
type placed struct {
	pod   *corev1.Pod
	class *model.Class
}

// Fork returns an index that starts as a copy. From then on the index itself
// must not be written to, only the fork.
func (x *Index) Fork() Index {
	return Index{
		placed: x.placed.Fork(), used: x.used.fork(), offers: x.offers.Fork(),
		nominations: x.nominations.Fork(), nominees: x.nominees.Fork(), ranked: x.ranked.Fork(), waitedFor: x.waitedFor.Fork(),
		reserved: x.reserved, kinds: x.kinds.Fork(), guards: x.guards, wideGuards: x.wideGuards,
	}
}

// NodeOf is the node on which a pod occupies resources, or "": a pod that has
// ended is still on its node, but uses nothing. nil uses nothing.
func NodeOf(pod *corev1.Pod) string {
	if pod == nil || model.Terminal(pod) {
		return ""
	}
	return pod.Spec.NodeName
}

func placeOf(pod *corev1.Pod) string { return pod.Spec.NodeName + "/" + pod.Namespace + "/" + pod.Name }

// ClassOf is what a pod asks for that was put with a node; nil for another.
func (x *Index) ClassOf(pod *corev1.Pod) *model.Class {
	if pod == nil || pod.Spec.NodeName == "" {
		return nil
	}
	p, _ := x.placed.Get(placeOf(pod))
	return p.class
}

// PutPod takes in that a pod came, changed or went: nil stands for one that is
// not there. was is the class that it was put with (ClassOf), is that which it
// has now; they are asked only of pods with a node.
func (x *Index) PutPod(old, now *corev1.Pod, was, is *model.Class) {
	from, to := NodeOf(old), NodeOf(now)
	if from != to || from != "" && was != is {
		if from != "" {
			x.used.remove(from, was)
			x.count(was, -1)
		}
		if to != "" {
			x.used.add(to, is)
			x.count(is, 1)
		}
	} else if from != "" && !sameTolerations(old, now) {
		x.used.renew(from)
	}
	if old != nil && old.Spec.NodeName != "" && (now == nil || now.Spec.NodeName != old.Spec.NodeName) {
		x.placed.Delete(placeOf(old))
	}
	if now != nil && now.Spec.NodeName != "" {
		x.placed.Set(placeOf(now), placed{now, is})
	}
}

// sameTolerations says whether two states of a pod are driven away by the same taints, after the same time: what no class
// says.
func sameTolerations(a, b *corev1.Pod) bool {
	x, y := a.Spec.Tolerations, b.Spec.Tolerations
	if len(x) != len(y) || len(x) == 0 || &x[0] == &y[0] {
		return len(x) == len(y)
	}
	return equality.Semantic.DeepEqual(x, y)
}

// PutNode takes in what a node offers that came or changed; DropNode that it
// went.
func (x *Index) PutNode(n *corev1.Node) {
	offer := model.Allocatable(n)
	x.offers.Set(n.Name, &offer)
}

// DropNode takes in that a node went.
func (x *Index) DropNode(name string) { x.offers.Delete(name) }

// PutNomination takes in that a nomination came, changed or went.
func (x *Index) PutNomination(old, now *Nomination) {
	if old != nil {
		key := old.Key()
		if x.reserved == key {
			x.reserved = ""
		}
		x.count(old.class, -1)
		x.nominations.Delete(old.Node + "/" + key)
		x.countNominee(old.Node, -1)
		x.ranked.Delete(rankKey(old.Priority, old.FirstRevision) + key)
	}
	x.follow(old, now)
	if now != nil {
		key := now.Key()
		if now.Reserved {
			x.reserved = key
		}
		x.count(now.class, 1)
		x.nominations.Set(now.Node+"/"+key, now)
		x.countNominee(now.Node, 1)
		x.ranked.Set(rankKey(now.Priority, now.FirstRevision)+key, now)
	}
}

func (x *Index) countNominee(node string, by int) {
	n := x.Nominees(node) + by
	if n == 0 {
		x.nominees.Delete(node)
		return
	}
	x.nominees.Set(node, n)
}

// Nominees is how many pods are nominated to a node: so many Taken and TakenFrom look at.
func (x *Index) Nominees(node string) int {
	n, _ := x.nominees.Get(node)
	return n
}

// follow takes in who is waited for.
func (x *Index) follow(old, now *Nomination) {
	if old == nil || now == nil || !sameVictims(old, now) {
		x.followVictims(old, now)
	}
	if now != nil {
		for _, gone := range now.Gone {
			x.waitedFor.Delete(string(gone.UID) + "/" + now.Key())
		}
	}
}

// sameVictims says whether two nominations share one list, at one place.
func sameVictims(old, now *Nomination) bool {
	return old.Node == now.Node && old.Key() == now.Key() && len(old.Victims) == len(now.Victims) &&
		len(now.Victims) > 0 && &old.Victims[0] == &now.Victims[0]
}

// followVictims: mostly it is the same pods without some of them, and there may be thousands.
func (x *Index) followVictims(old, now *Nomination) {
	var was, is []VictimRef
	at := ""
	if now != nil {
		is, at = now.Victims, now.Node+"/"+now.Key()
	}
	if old != nil {
		was = old.Victims
	}
	same := old != nil && now != nil && old.Node == now.Node && old.Key() == now.Key()
	for _, victim := range was {
		if same && len(is) > 0 && is[0].UID == victim.UID {
			is = is[1:]
			continue
		}
		x.waitedFor.Delete(string(victim.UID) + "/" + old.Key())
	}
	if len(is) == 0 {
		return
	}
	for _, victim := range now.Victims { // there are others, or they are in another order
		x.waitedFor.Set(string(victim.UID)+"/"+now.Key(), at)
	}
}

// count counts the pods of a class.
func (x *Index) count(c *model.Class, by int) {
	was, _ := x.kinds.Get(c.Signature)
	is := was + by
	if is == 0 {
		x.kinds.Delete(c.Signature)
	} else {
		x.kinds.Set(c.Signature, is)
	}
	if (was == 0) == (is == 0) || !c.KeepsAway() {
		return
	}
	x.guards += by
	if c.KeepsAwayAny() {
		x.wideGuards += by
	}
}

// Kinds counts the classes of the pods that are placed or nominated, of these those
// that keep others away by required anti-affinity, and of these those of which a
// term demands no label.
func (x *Index) Kinds() (all, guards, wideGuards int) {
	return x.kinds.Len(), x.guards, x.wideGuards
}

// KeepAway says whether there are pods, placed or nominated, that keep others
// away by required anti-affinity.
func (x *Index) KeepAway() bool { return x.guards > 0 }

// Of is what the running pods of a node have requested. It must not be changed.
func (x *Index) Of(node string) *model.Usage { return x.used.of(node) }

// Offer is what a node that is there has for pods; nil for another. It must not
// be changed.
func (x *Index) Offer(node string) *model.Resources {
	o, _ := x.offers.Get(node)
	return o
}

// Taken is what a pod finds taken on a node: what the pods there have requested,
// and what nominations keep from it (NM4), but for its own (self is its key) and
// those that yield to it.
func (x *Index) Taken(node string, priority int32, runsAtMostSeconds int64, self string) model.Usage {
	return x.withNominations(*x.Of(node), node, priority, runsAtMostSeconds, self)
}

// From is what the running pods of at least a priority have requested on a node.
func (x *Index) From(node string, priority int32) model.Usage { return x.used.from(node, priority) }

// TakenFrom is Taken with those pods of the node left out that are below the
// priority.
func (x *Index) TakenFrom(node string, priority int32, runsAtMostSeconds int64, self string) model.Usage {
	return x.withNominations(x.From(node, priority), node, priority, runsAtMostSeconds, self)
}

func (x *Index) withNominations(u model.Usage, node string, priority int32, runsAtMostSeconds int64, self string) model.Usage {
	var own *Nomination
	if self != "" && x.nominations.Len() > 0 {
		own, _ = x.nominations.Get(node + "/" + self)
	}
	x.NominationsOn(node, func(n *Nomination) bool {
		if n != own && n.TakesFrom(priority, runsAtMostSeconds) && (own == nil || !n.YieldsTo(own)) {
			u = u.With(n.class)
		}
		return true
	})
	return u
}

// Yielding calls f for the nominations, to whatever node, that do not stand in
// the way of the pod of one of them: its own, and those that yield to it. It
// costs no more than there are of these.
func (x *Index) Yielding(own *Nomination, f func(n *Nomination)) {
	f(own)
	level := rankKey(own.Priority, 0)[:rankLevelLen]
	x.ranked.ScanFrom(level, rankKey(own.Priority, own.FirstRevision+1), func(_ string, n *Nomination) bool {
		f(n)
		return true
	})
}

// rankKey sorts nominations by priority, and those of one by when they were
// made.
func rankKey(priority int32, made int64) string {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, rankLevelLen+8), uint32(priority)^1<<31)
	return string(binary.BigEndian.AppendUint64(b, uint64(made)))
}

// rankLevelLen is how much of a rankKey is the priority.
const rankLevelLen = 4

// PodsOn calls f for every pod that is on a node, with what it asks for, in key
// order, until f returns false.
func (x *Index) PodsOn(node string, f func(pod *corev1.Pod, c *model.Class) bool) {
	x.placed.Scan(node+"/", func(_ string, p placed) bool { return f(p.pod, p.class) })
}

// Pods is PodsOn for all nodes.
func (x *Index) Pods(f func(pod *corev1.Pod, c *model.Class) bool) {
	x.PodsFrom("", func(_ string, pod *corev1.Pod, c *model.Class) bool { return f(pod, c) })
}

// PodsFrom is Pods that tells where each pod is, and begins at such a place.
func (x *Index) PodsFrom(from string, f func(at string, pod *corev1.Pod, c *model.Class) bool) {
	x.placed.ScanFrom("", from, func(at string, p placed) bool { return f(at, p.pod, p.class) })
}

// Nodes calls f for the name of every node that a pod is on, whether the node
// is there or not, until f returns false.
func (x *Index) Nodes(f func(node string) bool) {
	from := ""
	for {
		key, p, ok := x.placed.First(from)
		if !ok || !f(p.pod.Spec.NodeName) {
			return
		}
		from = store.After(key[:len(p.pod.Spec.NodeName)+1])
	}
}

// NominationsOn calls f for every nomination to a node, in key order, until f
// returns false.
func (x *Index) NominationsOn(node string, f func(n *Nomination) bool) {
	if x.nominations.Len() > 0 {
		x.nominations.Scan(node+"/", func(_ string, n *Nomination) bool { return f(n) })
	}
}

// WaitingFor are the nominations that wait for a victim.
func (x *Index) WaitingFor(victim types.UID) (out []*Nomination) {
	x.waitedFor.Scan(string(victim)+"/", func(_, at string) bool {
		if n, ok := x.nominations.Get(at); ok {
			out = append(out, n)
		}
		return true
	})
	return out
}

// Reserved is the key of the nomination that is a reservation, or "".
func (x *Index) Reserved() string { return x.reserved }

// Describe calls f for everything that the index holds, in a fixed order, as
// text: two indexes of one state describe themselves alike.
func (x *Index) Describe(f func(line string)) {
	x.kinds.Scan("", func(at string, pods int) bool {
		f(fmt.Sprintf("kind %x: %d", at, pods))
		return true
	})
	f(fmt.Sprintf("reserved %q guards %d wide %d", x.reserved, x.guards, x.wideGuards))
	x.placed.Scan("", func(at string, p placed) bool {
		f(fmt.Sprintf("placed %q: @%s %x", at, p.pod.ResourceVersion, p.class.Signature))
		return true
	})
	x.used.total.Scan("", func(at string, s nodeSum) bool {
		f(fmt.Sprintf("used %q: %+v of %d priorities, only %d", at, *s.all, s.levels, s.only))
		return true
	})
	x.used.levels.Scan("", func(at string, u *model.Usage) bool {
		f(fmt.Sprintf("used by level %q: %+v", at, *u))
		return true
	})
	x.offers.Scan("", func(at string, o *model.Resources) bool {
		f(fmt.Sprintf("offer %q: %+v", at, *o))
		return true
	})
	nominations := func(name string, t store.Tree[*Nomination]) {
		t.Scan("", func(at string, n *Nomination) bool {
			f(fmt.Sprintf("%s %q: %s@%d %x", name, at, n.Key(), n.Revision, n.class.Signature))
			return true
		})
	}
	nominations("nomination", x.nominations)
	x.nominees.Scan("", func(node string, n int) bool {
		f(fmt.Sprintf("nominees %q: %d", node, n))
		return true
	})
	x.waitedFor.Scan("", func(at, by string) bool {
		f(fmt.Sprintf("waited for %q: %s", at, by))
		return true
	})
}
