package sched

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/victims"
	"github.com/berth-dev/berth/usage"
)

// View is the cluster as the scheduler sees it: what the state holds, with the scheduler's own unsettled decisions laid
// over it. Nodes live in dense slots. Every change of a node that can matter to a decision is in the log, so that
// whatever is derived from nodes is recomputed for the changed ones alone.
type View struct {
	nodes  []node
	byName map[string]int32
	gone   int // slots of nodes that were removed
	live   int // nodes that are there

	pods map[types.UID]*pod
	bare map[types.UID]barePod // those that panicked
	noms map[types.UID]*hold

	ring ring
	log  changeLog

	classes model.Classes

	// topo counts what is in the view, nominations included, by topology domains.
	topo    *model.Topology
	charged int64 // of topo's work
	work    int   // of other changes, not charged yet
	images  imageStore

	openGroups []*group // of the decision under way
}

// node is one slot. A slot outlives its node object while pods are still bound to it.
type node struct {
	name string
	slot int32
	hash uint64
	rank int32

	obj   *corev1.Node // nil: there is no such node
	plain bool         // obj has no taints and is not cordoned
	alloc model.Resources
	usage model.Usage // of pods
	pods  []*pod      // most important first (PR7)
	noms  []*nomination

	gone      bool   // there was a node and it was removed
	changedAt uint64 // the newest entry of the log that names this slot
	staticAt  uint64 // the newest that says that the node object itself changed
	unsettled int32  // decisions laid over this node that the state does not show yet
}

// pod is a pod that occupies a node.
type pod struct {
	victims.Pod
	key      string
	obj      *corev1.Pod // nil while the state does not show the binding
	class    *model.Class
	leaving  bool  // deletion has begun
	evicting int32 // unsettled preemptions that evict it

	coverage *coverage // nil until somebody asks
	charged  []*Budget // those that count it as spent by an unsettled preemption
}

func (p *pod) isLeaving() bool { return p.leaving || p.evicting > 0 }

func newPod(obj *corev1.Pod, c *model.Class) *pod {
	return &pod{
		Pod: victims.Pod{UID: obj.UID, Priority: model.Priority(obj), StartUnixNano: model.StartUnixNano(obj)},
		key: fsm.PodKey(obj.Namespace, obj.Name), obj: obj, class: c, leaving: model.Terminating(obj),
	}
}

// moreImportant orders the pods of a node (PR7).
func moreImportant(a, b *pod) int { return victims.MoreImportant(&a.Pod, &b.Pod) }

// nomination keeps room on a node for a pod (NM4). It is made notYet while no state shows it.
type nomination struct {
	usage.Claim
	slot int32 // of the node
}

// notYet is later than every revision.
const notYet int64 = math.MaxInt64

// hold is what is known of one pod's nomination: what the state says, and what unsettled decisions make of it.
type hold struct {
	base    *nomination // in the state
	assumed *nomination // by an unsettled preemption; goes before base
	hidden  int32       // unsettled decisions that end base
	away    int32       // out of sight for the decision being made
	placed  *nomination // the one that counts now
}

func newView() *View {
	v := &View{
		byName: map[string]int32{}, pods: map[types.UID]*pod{}, noms: map[types.UID]*hold{},
		log: changeLog{keep: 1024}, topo: model.NewTopology(),
	}
	v.topo.Track()
	return v
}

// slot returns the node's slot and makes an empty one for a name not seen before.
func (v *View) slot(name string) int32 {
	if i, ok := v.byName[name]; ok {
		return i
	}
	i := int32(len(v.nodes))
	v.nodes = append(v.nodes, node{name: name, slot: i, hash: hash64(name)})
	v.byName[name] = i
	v.ring.stale = true
	v.touchStatic(i)
	return i
}

func (v *View) touch(slot int32) { v.nodes[slot].changedAt = v.log.add(slot, len(v.nodes)) }

func (v *View) touchStatic(slot int32) {
	v.touch(slot)
	v.nodes[slot].staticAt = v.nodes[slot].changedAt
}

// putNode takes in a node object that was created or changed; nil says that it is gone.
func (v *View) putNode(name string, obj *corev1.Node) {
	i := v.slot(name)
	n := &v.nodes[i]
	old := n.obj
	n.obj = obj
	n.plain = obj != nil && len(obj.Spec.Taints) == 0 && !obj.Spec.Unschedulable
	switch {
	case old == nil && obj != nil:
		v.live++
	case old != nil && obj == nil:
		v.live--
	}
	if obj != nil {
		v.topo.PutNode(obj)
	} else {
		v.topo.RemoveNode(name)
	}
	if v.images.put(i, old, obj) {
		v.touchStatic(i)
	}
	switch {
	case obj == nil && !n.gone:
		n.gone = true
		v.gone++
	case obj != nil && n.gone:
		n.gone = false
		v.gone--
	}
	switch {
	case obj == nil:
		n.alloc = model.Resources{}
		v.touchStatic(i)
	case old == nil:
		n.alloc = model.Allocatable(obj)
		v.touchStatic(i)
	default:
		alloc := model.Allocatable(obj)
		same := alloc.Equal(n.alloc)
		n.alloc = alloc
		if !sameForFilters(old, obj) {
			v.touchStatic(i)
		} else if !same {
			v.touch(i)
		}
	}
}

// sameForFilters says whether two states of a node differ in nothing that model.NodeFailures or a score reads. Most
// updates of a node are of conditions and heartbeats.
func sameForFilters(a, b *corev1.Node) bool {
	if a.Spec.Unschedulable != b.Spec.Unschedulable || model.HasDrivers(a) != model.HasDrivers(b) || len(a.Labels) != len(b.Labels) {
		return false
	}
	// order does not matter: every label is compared.
	for k, x := range a.Labels {
		if y, ok := b.Labels[k]; !ok || x != y {
			return false
		}
	}
	return slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, func(x, y corev1.Taint) bool {
		return x.Key == y.Key && x.Value == y.Value && x.Effect == y.Effect
	})
}

// addPod puts a pod onto its slot.
func (v *View) addPod(p *pod) {
	n := &v.nodes[p.Slot]
	i, _ := slices.BinarySearchFunc(n.pods, p, moreImportant)
	n.pods = slices.Insert(n.pods, i, p)
	n.usage = n.usage.With(p.class)
	v.work += len(p.class.Ports) * workPort
	v.topo.AddPod(n.name, p.class, p.isLeaving())
	v.touch(p.Slot)
}

// removePod takes a pod off its slot.
func (v *View) removePod(p *pod) {
	n := &v.nodes[p.Slot]
	if i := slices.Index(n.pods, p); i >= 0 {
		n.pods = slices.Delete(n.pods, i, i+1)
		n.usage = n.usage.Without(p.class)
		v.work += len(p.class.Ports) * workPort
		v.topo.RemovePod(n.name, p.class, p.isLeaving())
		v.touch(p.Slot)
	}
}

// alter changes what others see of a pod: its class or whether it is leaving.
func (v *View) alter(p *pod, change func(p *pod)) {
	n, before := &v.nodes[p.Slot], p.class
	v.topo.RemovePod(n.name, before, p.isLeaving())
	change(p)
	v.topo.AddPod(n.name, p.class, p.isLeaving())
	if p.class != before {
		n.usage = n.usage.Without(before).With(p.class)
	}
	v.touch(p.Slot)
}

// setStart moves a pod to its place in the order of importance after its start time changed.
func (v *View) setStart(p *pod, start int64) {
	n := &v.nodes[p.Slot]
	if i := slices.Index(n.pods, p); i >= 0 {
		n.pods = slices.Delete(n.pods, i, i+1)
	}
	v.alter(p, func(p *pod) { p.StartUnixNano = start }) // it matters to other nodes too that could evict the pod
	i, _ := slices.BinarySearchFunc(n.pods, p, moreImportant)
	n.pods = slices.Insert(n.pods, i, p)
}

// holdOf returns what is known of a pod's nomination, making it on first use.
func (v *View) holdOf(uid types.UID) *hold {
	h, ok := v.noms[uid]
	if !ok {
		h = &hold{}
		v.noms[uid] = h
	}
	return h
}

// settleHold brings the nomination that counts in line with what is known.
func (v *View) settleHold(uid types.UID, h *hold) {
	want := h.assumed
	if want == nil && h.hidden == 0 {
		want = h.base
	}
	if h.away > 0 {
		want = nil
	}
	if want != h.placed {
		v.unplace(h)
		v.place(h, want)
	}
	if h.base == nil && h.assumed == nil && h.hidden == 0 && h.away == 0 {
		delete(v.noms, uid)
	}
}

func (v *View) place(h *hold, n *nomination) {
	h.placed = n
	if n == nil {
		return
	}
	n.slot = v.slot(n.Node)
	v.nodes[n.slot].noms = append(v.nodes[n.slot].noms, n)
	v.topo.Nominate(n.Node, n.Class, n.Priority)
	v.touch(n.slot)
}

func (v *View) unplace(h *hold) {
	n := h.placed
	if n == nil {
		return
	}
	h.placed = nil
	on := &v.nodes[n.slot].noms
	if i := slices.Index(*on, n); i >= 0 {
		*on = slices.Delete(*on, i, i+1)
	}
	v.topo.Unnominate(n.Node, n.Class, n.Priority)
	v.touch(n.slot)
}

// usageFor is what a pod of the priority must leave alone on the node when others go for it: everything that runs there
// and, as if it ran there, every pod nominated there with at least that priority (NM4). For these filters a node that
// passes with the nominated pods passes without them too, so kube-scheduler's second pass decides nothing.
func (n *node) usageFor(priority int32, scratch *model.Usage) *model.Usage {
	return n.usageBeside(priority, 0, scratch)
}

// usageOf is usageFor for a pod that comes as things are: a reservation lets those in that end in time.
func (n *node) usageOf(c *model.Class, scratch *model.Usage) *model.Usage {
	return n.usageBeside(c.Priority, c.RunsAtMostSeconds, scratch)
}

func (n *node) usageBeside(priority int32, runsAtMostSeconds int64, scratch *model.Usage) *model.Usage {
	u := &n.usage
	for _, nom := range n.noms {
		if nom.TakesFrom(priority, runsAtMostSeconds) {
			*scratch = u.With(nom.Class)
			u = scratch
		}
	}
	return u
}

// changeLog remembers which slots changed, in order. Its positions count up for ever; old entries are forgotten.
type changeLog struct {
	slots []int32
	first uint64 // position of slots[0]
	keep  int    // entries kept beyond eight a node
}

func (l *changeLog) add(slot int32, nodes int) uint64 {
	if len(l.slots) > 8*nodes+l.keep {
		half := len(l.slots) / 2
		l.first += uint64(half)
		l.slots = append(l.slots[:0], l.slots[half:]...)
	}
	l.slots = append(l.slots, slot)
	return l.first + uint64(len(l.slots)) - 1
}

// head is the position after the newest entry.
func (l *changeLog) head() uint64 { return l.first + uint64(len(l.slots)) }

// since calls f for every slot that changed at or after a position, each once.
func (v *View) since(position uint64, f func(slot int32)) {
	l := &v.log
	if position < l.first {
		for i := range v.nodes {
			if v.nodes[i].changedAt >= position {
				f(int32(i))
			}
		}
		return
	}
	for at := position; at < l.head(); at++ {
		if slot := l.slots[at-l.first]; v.nodes[slot].changedAt == at {
			f(slot)
		}
	}
}
