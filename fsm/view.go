package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/owners"
	"github.com/berth-dev/berth/queue"
	"github.com/berth-dev/berth/store"
)

// View is the state at one log index: its tables, and what is derived from
// them. A published view never changes: it can be read and forked by any number
// of goroutines without a lock, for as long as they like.
type View struct {
	store.Position
	tableSet

	podIndexes
	nodeIndexes
	nominationIndexes
	queue   queue.Index
	budgets budgets.Index
	owners  owners.Index
	spreadIndexes
	orderIndexes
}

// Every part of a view is a struct of its own that says what is in it and how it
// is forked. What is not a table is derived from the tables, kept in step by
// their index functions, and therefore in no snapshot.

func newView() View {
	v := View{tableSet: newTableSet(), spreadIndexes: spreadIndexes{effective: new(effectiveClasses)}}
	v.queue.Reorder(queue.OrderOf(&defaultConfig.Spec))
	return v
}

// fork returns a copy that shares every row; it costs the same whatever the
// size of the state.
func (v *View) fork() View {
	return View{
		Position:          v.Position,
		tableSet:          v.tableSet.fork(),
		podIndexes:        v.podIndexes.fork(),
		nodeIndexes:       v.nodeIndexes.fork(),
		nominationIndexes: v.nominationIndexes.fork(),
		queue:             v.queue.Fork(),
		budgets:           v.budgets.Fork(),
		owners:            v.owners.Fork(),
		spreadIndexes:     v.spreadIndexes.fork(),
		orderIndexes:      v.orderIndexes.fork(),
	}
}

// live is the state that commands write to, with what only they need. Nobody
// else sees it: what is published is a View that is written to no more.
type live struct {
	View
	cache *cache
}

func newLive() *live { return &live{View: newView(), cache: newCache()} }

// thaw gives a live state of its own that starts as a copy of a view.
func (v *View) thaw() *live { return &live{View: v.fork(), cache: newCache()} }

// freeze gives the state as it is to whoever wants to read it, and goes on with
// a fork.
func (v *live) freeze() *View {
	frozen := new(View)
	*frozen = v.View
	v.View = frozen.fork()
	return frozen
}

// podIndexes are the pods by what they are at.
type podIndexes struct {
	podsByNode store.Tree[placed]      // node/namespace/name
	unclaimed  store.Tree[*corev1.Pod] // unclaimedKey: unbound pods that no profile is for
	ended      store.Tree[*corev1.Pod] // key of Pods: those in a terminal phase
	guards     int                     // pods, placed or nominated, that keep others away
}

func (x *podIndexes) fork() podIndexes {
	return podIndexes{podsByNode: x.podsByNode.Fork(), unclaimed: x.unclaimed.Fork(), ended: x.ended.Fork(), guards: x.guards}
}

// nodeIndexes say what nodes have and what is used of it.
type nodeIndexes struct {
	usage  store.Tree[*nodeUse]         // node
	offers store.Tree[*model.Resources] // node: what it has for pods
}

func (x *nodeIndexes) fork() nodeIndexes {
	return nodeIndexes{usage: x.usage.Fork(), offers: x.offers.Fork()}
}

// nominationIndexes are the nominations by what they are about.
type nominationIndexes struct {
	nominationsByNode   store.Tree[*Nomination] // node/namespace/name
	nominationsByVictim store.Tree[*Nomination] // victim UID/namespace/name
	reserved            string                  // key of the nomination that is a reservation
}

func (x *nominationIndexes) fork() nominationIndexes {
	return nominationIndexes{
		nominationsByNode: x.nominationsByNode.Fork(), nominationsByVictim: x.nominationsByVictim.Fork(), reserved: x.reserved,
	}
}

// spreadIndexes are what default spread constraints follow from.
type spreadIndexes struct {
	services  store.Tree[map[string]string] // namespace, label, value, name: a service's selector
	effective *effectiveClasses             // shared by all views of the state
}

func (x *spreadIndexes) fork() spreadIndexes {
	return spreadIndexes{services: x.services.Fork(), effective: x.effective}
}

// orderIndexes are other orders of tables than that of their keys.
type orderIndexes struct {
	eventOrder      store.Tree[string] // revisionKey -> key of Events
	eventBytes      int                // of all Events
	preemptionOrder store.Tree[string] // revisionKey -> key of Preemptions
	defaultClasses  store.Tree[string] // value and name -> name (PC4)
}

func (x *orderIndexes) fork() orderIndexes {
	return orderIndexes{
		eventOrder: x.eventOrder.Fork(), eventBytes: x.eventBytes, preemptionOrder: x.preemptionOrder.Fork(), defaultClasses: x.defaultClasses.Fork(),
	}
}

// PodsOnNode calls f for every pod bound to a node, in key order.
func (v *View) PodsOnNode(node string, f func(pod *corev1.Pod) bool) {
	v.podsByNode.ScanFrom(node+"/", node+"/", func(_ string, p placed) bool { return f(p.pod) })
}

// ClassesOnNode is PodsOnNode with what each pod asks for.
func (v *View) ClassesOnNode(node string, f func(pod *corev1.Pod, c *model.Class) bool) {
	v.podsByNode.ScanFrom(node+"/", node+"/", func(_ string, p placed) bool { return f(p.pod, p.class) })
}

// NodesWithPods calls f for the name of every node that a pod is bound to,
// whether the node is there or not.
func (v *View) NodesWithPods(f func(node string) bool) {
	from := ""
	for {
		key, p, ok := v.podsByNode.First(from)
		if !ok || !f(p.pod.Spec.NodeName) {
			return
		}
		from = store.After(key[:len(p.pod.Spec.NodeName)+1])
	}
}

// EndedPods is the number of pods in a terminal phase.
func (v *View) EndedPods() int { return v.ended.Len() }

// ScanEndedPods calls f for every pod in a terminal phase, in key order.
func (v *View) ScanEndedPods(f func(pod *corev1.Pod) bool) {
	v.ended.Scan("", func(_ string, pod *corev1.Pod) bool { return f(pod) })
}

// OldestEventUnixNano is when the least recently changed event came or changed,
// by the state's time and within ten seconds, and whether there is one.
func (v *View) OldestEventUnixNano() (int64, bool) {
	_, first, ok := v.arrivals.Min()
	if !ok {
		return 0, false
	}
	return first.TimeUnixNano, true
}

// NominationsOnNode calls f for every nomination to a node, in key order.
func (v *View) NominationsOnNode(node string, f func(n *Nomination) bool) {
	v.nominationsByNode.ScanFrom(node+"/", node+"/", func(_ string, n *Nomination) bool { return f(n) })
}

// SchedulerConfig is the replicated scheduler configuration with every default
// filled in. It must not be changed.
func (v *View) SchedulerConfig() *berthv1.SchedulerConfiguration {
	if c, ok := v.Config.Get(berthv1.SchedulerConfigurationName); ok {
		return c
	}
	return defaultConfig
}

var defaultConfig = berthv1.Default()
