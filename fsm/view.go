package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/owners"
	"github.com/berth-dev/berth/queue"
	"github.com/berth-dev/berth/quotas"
	"github.com/berth-dev/berth/store"
	"github.com/berth-dev/berth/usage"
)

// View is the state at one log index: its tables, and what is derived from
// them. A published view never changes: it can be read and forked by any number
// of goroutines without a lock, for as long as they like.
type View struct {
	store.Position
	tableSet

	usage   usage.Index
	queue   queue.Index
	budgets budgets.Index
	owners  owners.Index
	quotas  quotas.Index
	orders
	volumes     volumeOrders
	devices     deviceOrders
	eventShares eventShares

	effective *effectiveClasses // shared by all views of the state
}

// Every part of a view is a struct of its own that says what is in it and how it
// is forked. What is not a table is derived from the tables, kept in step by
// their index functions, and therefore in no snapshot.

func newView() View {
	v := View{tableSet: newTableSet(), effective: new(effectiveClasses)}
	v.queue.Reorder(queue.OrderOf(&defaultConfig.Spec))
	return v
}

// fork returns a copy that shares every row; it costs the same whatever the
// size of the state.
func (v *View) fork() View {
	return View{
		Position:    v.Position,
		tableSet:    v.tableSet.fork(),
		usage:       v.usage.Fork(),
		queue:       v.queue.Fork(),
		budgets:     v.budgets.Fork(),
		owners:      v.owners.Fork(),
		quotas:      v.quotas.Fork(),
		orders:      v.orders.fork(),
		volumes:     v.volumes.fork(),
		devices:     v.devices.fork(),
		eventShares: v.eventShares.fork(),
		effective:   v.effective,
	}
}

// live is the state that commands write to, with what only they need. Nobody
// else sees it: what is published is a View that is written to no more.
type live struct {
	View
	cache *cache
	bill  *bill // of the entry under way
	// trying: no server follows this state, and nobody waits for its entries.
	trying bool
}

// newLive is a state without rows.
func newLive() *live {
	v := &live{View: newView(), cache: newCache()}
	v.cache.counters.topology = model.NewTopology()
	return v
}

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

// orders are other orders of tables than that of their keys.
type orders struct {
	unclaimed       store.Tree[*corev1.Pod]       // unclaimedKey: unbound pods that no profile is for
	ended           store.Tree[*corev1.Pod]       // key of Pods: those in a terminal phase
	services        store.Tree[map[string]string] // namespace, label, value, name: a service's selector
	given           store.Tree[struct{}]          // address or port, service: what services have for themselves
	grants          store.Tree[*Object]           // namespace, subject, name: bindings of roles
	roles           int                           // of roles and bindings
	eventOrder      store.Tree[keptEvent]         // revisionKey -> which of Events
	eventBytes      int                           // of all Events
	preemptionOrder store.Tree[string]            // revisionKey -> key of Preemptions
	remembered      remembered
	defaultClasses  store.Tree[string] // value and name -> name (PC4)
	definedKinds    store.Tree[string] // definedKindKey -> resource of a custom kind
}

func (x *orders) fork() orders {
	return orders{
		unclaimed: x.unclaimed.Fork(), ended: x.ended.Fork(), services: x.services.Fork(), given: x.given.Fork(),
		grants: x.grants.Fork(), roles: x.roles,
		eventOrder: x.eventOrder.Fork(), eventBytes: x.eventBytes, preemptionOrder: x.preemptionOrder.Fork(), remembered: x.remembered, defaultClasses: x.defaultClasses.Fork(),
		definedKinds: x.definedKinds.Fork(),
	}
}

// PodsOnNode calls f for every pod bound to a node, in key order.
func (v *View) PodsOnNode(node string, f func(pod *corev1.Pod) bool) {
	v.usage.PodsOn(node, func(pod *corev1.Pod, _ *model.Class) bool { return f(pod) })
}

// ClassesOnNode is PodsOnNode with what each pod asks for.
func (v *View) ClassesOnNode(node string, f func(pod *corev1.Pod, c *model.Class) bool) {
	v.usage.PodsOn(node, f)
}

// PlacedFrom calls f for every pod that is bound to a node, node by node, with
// where it is and what it asks for. It begins at such a place; "" is the first.
func (v *View) PlacedFrom(from string, f func(at string, pod *corev1.Pod, c *model.Class) bool) {
	v.usage.PodsFrom(from, f)
}

// PlacedClass is what a pod asks for that is bound to a node, as it is now; nil
// for one that is not there any more.
func (v *View) PlacedClass(pod *corev1.Pod) *model.Class {
	if now, ok := v.Pods.Get(PodKey(pod.Namespace, pod.Name)); ok && now.UID == pod.UID {
		return v.usage.ClassOf(now)
	}
	return nil
}

// NodesWithPods calls f for the name of every node that a pod is bound to,
// whether the node is there or not.
func (v *View) NodesWithPods(f func(node string) bool) { v.usage.Nodes(f) }

// NominationsOnNode calls f for every nomination to a node, in key order.
func (v *View) NominationsOnNode(node string, f func(n *Nomination) bool) {
	v.usage.NominationsOn(node, f)
}

// Usage is what the running pods of a node have requested. It must not be
// changed.
func (v *View) Usage(node string) *model.Usage { return v.usage.Of(node) }

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

// SchedulerConfig is the replicated scheduler configuration with every default
// filled in. It must not be changed.
func (v *View) SchedulerConfig() *berthv1.SchedulerConfiguration {
	if c, ok := v.Config.Get(berthv1.SchedulerConfigurationName); ok {
		return c
	}
	return defaultConfig
}

var defaultConfig = berthv1.Default()
