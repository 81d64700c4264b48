package fsm

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
	"github.com/berth-dev/berth/store"
	"github.com/berth-dev/berth/usage"
)

// wakes gathers what the changes of a command say of who could be helped by
// them. Tables that are not named here help nobody.
type wakes struct {
	queue.Changes
	tx  *Tx
	key string // of the row under way

	ended map[string]string // nominations that are gone: pod's key -> node
	begun map[string]bool   // pods that were nominated
}

// row says what a change of one row means.
func (w *wakes) row(c *store.Change) {
	w.key = c.Key
	is := c.New
	if is == nil {
		is = c.Old
	}
	switch is.(type) {
	case *corev1.Pod:
		walk(c, w.pod)
	case *QueueEntry:
		walk(c, w.entry)
	case *Nomination:
		walk(c, w.nomination)
	case *corev1.Node:
		walk(c, w.node)
	case *corev1.Namespace:
		walk(c, w.tx.forgetChosen)
		walk(c, w.Namespace)
	case *policyv1.PodDisruptionBudget:
		walk(c, w.budget)
	case *Object:
		walk(c, w.object)
	case *berthv1.SchedulerConfiguration:
		walk(c, w.config)
	}
}

func walk[T any](c *store.Change, f func(old, now *T)) {
	old, _ := c.Old.(*T)
	now, _ := c.New.(*T)
	f(old, now)
}

// pod: room comes free where one leaves or asks for less, and rules between
// pods are about who comes, leaves, begins to leave or is another now.
func (w *wakes) pod(old, now *corev1.Pod) {
	v := w.tx.view
	if old != nil && now != nil {
		if spreadOwner(old) != spreadOwner(now) {
			w.tx.ownerChanged(now)
		}
		w.tx.claimsNamed(old, now)
	}
	from, to := usage.NodeOf(old), usage.NodeOf(now)
	if from == "" && to == "" {
		return
	}
	if from != "" && to == "" && (v.queue.HasClaims() || v.Version() >= SinceClaimsLeft) {
		for _, claim := range model.Claims(old) { // one pod at a time may use it
			w.Claims = append(w.Claims, PodKey(old.Namespace, claim))
		}
	}
	if from != "" && from != to {
		w.Freed(from)
		how := model.PodLeft
		if model.Terminating(old) {
			how = model.PodGone
		}
		w.other(how, old, from)
	}
	if to != "" && from != to {
		w.other(model.PodCame, now, to)
	}
	if from != to {
		return
	}
	if !v.asksTheSame(old, now) {
		w.changed(old, now, to)
	}
	leaves := !model.Terminating(old) && model.Terminating(now)
	if leaves {
		w.other(model.PodLeaving, now, to)
	}
	// It may be evicted now, or be waited for, that could not before.
	if v.budgets.Any() && (leaves || model.Ready(old) && !model.Ready(now) || !maps.Equal(old.Labels, now.Labels)) {
		victim := v.victimOnNode(now)
		v.BudgetsOf(old.Namespace, old.Labels, func(b *policyv1.PodDisruptionBudget) bool {
			w.Scope.Budget(b, victim)
			return true
		})
	}
}

// SinceClaimsLeft is the LogVersion from which on the claims of a pod that leaves are told also when nobody waits for any: who
// wants them may be being decided about.
const SinceClaimsLeft = 29

// SinceLabelsLookedAt is the LogVersion from which on a label of a node, a namespace or a pod that changes wakes only those
// who look at it.
const SinceLabelsLookedAt = 27

// changed: a pod on a node asks for something else now, or has other labels. Only
// in the first case it may ask for less.
func (w *wakes) changed(old, now *corev1.Pod, node string) {
	v := w.tx.view
	if v.Version() < SinceLabelsLookedAt || model.Terminating(old) != model.Terminating(now) {
		w.Freed(node)
		w.other(model.PodLeft, old, node)
		w.other(model.PodCame, now, node)
		return
	}
	if sameSpec(&old.Spec, &now.Spec) && (!v.resizes() || model.SameCharge(old, now)) {
		w.Kept(node) // who is to take its place there looks again
	} else {
		w.Freed(node)
	}
	if w.mindsOthers(old) || w.mindsOthers(now) {
		w.PodChanged(v.classOf(old), v.classOf(now), node)
	}
}

func (w *wakes) other(how model.PodChange, pod *corev1.Pod, node string) {
	if w.mindsOthers(pod) {
		w.Pod(how, w.tx.view.classOf(pod), node)
	}
}

// mindsOthers says whether anybody can have to do with a pod by rules between pods.
func (w *wakes) mindsOthers(pod *corev1.Pod) bool {
	v, a := w.tx.view, pod.Spec.Affinity
	return v.queue.HasRuledGroups() || a != nil && a.PodAntiAffinity != nil || v.concernedWithOthers()
}

// entry: the turn of a pod that was to be tried passes on when it leaves the
// queue, finds a place or changes its group.
func (w *wakes) entry(old, now *QueueEntry) {
	if old == nil || !old.IsTried() {
		return
	}
	group := old.Group()
	switch {
	case now == nil:
		w.Pass(group)
		pod, ok := w.tx.view.Pods.Get(w.key)
		if ok && pod.UID == old.UID && pod.Spec.NodeName != "" && w.ended[w.key] != pod.Spec.NodeName {
			w.Placed = append(w.Placed, group)
		}
	case now.State == berthv1.QueueNominated && w.begun[w.key],
		now.State == berthv1.QueueSetAside, now.State == berthv1.QueueGated, now.Group() != group:
		w.Pass(group)
	}
}

// nomination: it holds room, and counts for rules between pods.
func (w *wakes) nomination(old, now *Nomination) {
	if old != nil && (now == nil || now.Node != old.Node || now.Class() != old.Class()) {
		if w.ended == nil {
			w.ended = map[string]string{}
		}
		w.ended[w.key] = old.Node
		pod, ok := w.tx.view.Pods.Get(w.key)
		if !ok || pod.UID != old.UID || pod.Spec.NodeName != old.Node { // else it took the room itself
			w.Freed(old.Node)
			w.Pod(model.PodLeft, old.Class(), old.Node)
		}
	}
	if now != nil && (old == nil || now.Node != old.Node || now.Class() != old.Class()) {
		if w.begun == nil {
			w.begun = map[string]bool{}
		}
		w.begun[w.key] = true
		w.Pod(model.PodCame, now.Class(), now.Node)
		if now.Reserved {
			w.Kept(now.Node) // what came free for others of its group is its own now
		}
	}
	if old != nil && now != nil && now.BackfillSeconds > old.BackfillSeconds || old == nil && now != nil && now.BackfillSeconds > 0 {
		w.Freed(now.Node) // time to fill is room too
	}
}

// node: it may have been awaited.
func (w *wakes) node(old, now *corev1.Node) {
	w.Node(old, now, func() (awaited bool) {
		v := w.tx.view
		v.PodsOnNode(now.Name, func(*corev1.Pod) bool {
			awaited = true
			return false
		})
		v.NominationsOnNode(now.Name, func(*Nomination) bool {
			awaited = true
			return false
		})
		return awaited
	})
}

// object: a service, or a workload, by whose selector default constraints
// count (TS12, TS14).
func (w *wakes) object(old, now *Object) {
	if w.volumes(old, now) || w.devices(old, now) {
		return
	}
	if !w.tx.view.hardDefaults() {
		return
	}
	is := now
	if is == nil {
		is = old
	}
	change := queue.SelectorChange{Namespace: is.Value.GetNamespace()}
	_, change.Before, _ = servicePlace(old)
	_, change.After, _ = servicePlace(now)
	if objectKinds[is.Resource].Workload == nil {
		if maps.Equal(change.Before, change.After) {
			return
		}
	} else {
		if equality.Semantic.DeepEqual(workloadSelector(old), workloadSelector(now)) {
			return
		}
		change.Owner = ObjectKey(is.Resource, is.Value.GetNamespace(), is.Value.GetName())
	}
	w.Selectors = append(w.Selectors, change)
}

// config: the rules themselves have changed.
func (w *wakes) config(old, now *berthv1.SchedulerConfiguration) {
	before, after := defaultConfig, defaultConfig
	if old != nil {
		before = old
	}
	if now != nil {
		after = now
	}
	if old == nil || judgesOtherwise(&before.Spec, &after.Spec) {
		w.Scope.All = true
	}
}
