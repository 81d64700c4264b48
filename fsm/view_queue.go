package fsm

import (
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// What the queue says of a view, and what it asks of the rest.

// Ready calls f for the entries that may be tried now, in queue order, until f
// returns false (see queue.Index.Ready). Those who only have still to leave the
// queue, their profile being gone, are left out, here and in Blocked.
func (v *View) Ready(nowUnixNano int64, f func(e *QueueEntry) bool) {
	v.queue.Ready(nowUnixNano, v.claimed(f))
}

// InOrder calls f for every entry that is or will be tried without further
// cause, in queue order, whatever its backoff, with its position counted from
// 1.
func (v *View) InOrder(f func(position int32, e *QueueEntry) bool) { v.queue.InOrder(f) }

// QueueSortKey puts the queue's entries in the order in which they are tried, as
// bytes.
func (v *View) QueueSortKey(e *QueueEntry) string { return v.queue.SortKey(e) }

// NextBackoffUnixNano is when the next pod returns from its backoff, and
// whether there is one.
func (v *View) NextBackoffUnixNano() (int64, bool) { return v.queue.NextBackoffUnixNano() }

// Blocked calls f, in queue order, for the pods for which no place was found
// and that wait for nobody's end, until f returns false.
func (v *View) Blocked(f func(e *QueueEntry) bool) { v.queue.Blocked(v.claimed(f)) }

// QueueLengths counts the queue without walking it.
func (v *View) QueueLengths() queue.Lengths { return v.queue.Lengths(v.Queue.Len()) }

// WorkPending says whether there is something that no entry had time for, pods to
// be woken or to be let in: any entry goes on with that, an empty plan too.
func (v *View) WorkPending() bool { return v.pending.Len() > 0 }

// concernedWithOthers says whether any pod, waiting or placed, has a hard rule
// about others: without one nobody can be refused by such a rule.
func (v *View) concernedWithOthers() bool {
	return v.usage.KeepAway() || v.queue.HasRules() || v.hardDefaults()
}

// RuledClass implements queue.State.
func (v *live) RuledClass(pod string, c *model.Class) *model.Class {
	return v.ruledClassOf(pod, c).class
}

// SinceDefaultsBilled is the LogVersion from which on it is charged that a group's services are looked for.
const SinceDefaultsBilled = 24

// costSeek is to look for one of the services that a pod may belong to.
const costSeek = 5

// DefaultsCost implements queue.State.
func (v *live) DefaultsCost(g *queue.Group) int {
	if _, byDefaults := g.Owner(); !byDefaults || v.Version() < SinceDefaultsBilled || !v.hardDefaults() {
		return 0
	}
	return costSeek * min(v.services.Len(), model.MaxLabels)
}

// Topology implements queue.State.
func (v *live) Topology() *model.Topology { return v.topology() }

// MayEvict implements queue.State.
func (v *live) MayEvict(c *model.Class) bool {
	return !c.NeverPreempts && *v.SchedulerConfig().Spec.Preemption.Enabled && v.topology().LowestPriority() < c.Priority
}

// MindsBudgets implements queue.State.
func (v *live) MindsBudgets(c *model.Class, below int64) bool {
	return (int64(c.Priority) < below || model.StrictFor(&v.SchedulerConfig().Spec.Preemption, c)) && v.MayEvict(c)
}

// NamespaceLabels implements queue.State.
func (v *live) NamespaceLabels(namespace string) map[string]string {
	ns, ok := v.Namespaces.Get(namespace)
	if !ok {
		return nil
	}
	return ns.Labels
}
