package fsm

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// wakes is what the changes of a command say of who could be helped by them.
// Tables that are not named here help nobody.
type wakes struct {
	tx *Tx

	// selectors are the services and workloads that came, went or select others.
	selectors []selectorEvent

	nodes  []nodeEvent // each node once
	nodeAt map[string]int
	pods   []change
	scope  sweepScope
	chains []string        // groups whose turn passes to the next
	woken  map[string]bool // groups of which one was woken by what pods did
	// placed are groups of which a pod found a place that it was not promised:
	// those that wait for their victims may do so, too.
	placed []string
	ended  map[string]string // nominations that are gone: pod's key -> node
	begun  map[string]bool   // pods that were nominated
}

// nodeEvent is a node on which something happened that can help.
type nodeEvent struct {
	name string
	// before is the node as it was before the command, if it was changed; nil
	// with changed if it is new.
	before  *corev1.Node
	changed bool
	room    bool // room came free
	worse   bool // it was changed, which may help nobody but those nominated to it
}

// flushWakes walks the changes since the last time, and wakes those whom they
// can have helped. It ends every command.
func (tx *Tx) flushWakes() {
	w := &wakes{tx: tx}
	for ; tx.walked < len(tx.Changes()); tx.walked++ {
		w.row(&tx.Changes()[tx.walked])
	}
	w.apply()
	tx.walked = len(tx.Changes()) // who is woken helps nobody
}

// row says what a change of one row means.
func (w *wakes) row(c *store.Change) {
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
		walk(c, w.namespace)
	case *policyv1.PodDisruptionBudget:
		walk(c, w.budget)
	case *Object:
		walk(c, w.object)
	case *berthv1.SchedulerConfiguration:
		walk(c, w.config)
	}
}

func walk[T any](c *store.Change, f func(old, new *T)) {
	old, _ := c.Old.(*T)
	new, _ := c.New.(*T)
	f(old, new)
}

// pod: room comes free where one leaves or asks for less, and rules between
// pods are about who comes, leaves, begins to leave or is another now.
func (w *wakes) pod(old, new *corev1.Pod) {
	v := w.tx.view
	if old != nil && new != nil && spreadOwner(old) != spreadOwner(new) {
		w.tx.ownerChanged(new)
	}
	from, to := usedNode(old), usedNode(new)
	if from == "" && to == "" {
		return
	}
	if from != "" && from != to {
		w.freed(from)
		how := model.PodLeft
		if model.Terminating(old) {
			how = model.PodGone
		}
		w.other(how, old, from)
	}
	if to != "" && from != to {
		w.other(model.PodCame, new, to)
	}
	if from != to {
		return
	}
	if !asksTheSame(old, new) {
		w.freed(to) // it may ask for less now
		w.other(model.PodLeft, old, to)
		w.other(model.PodCame, new, to)
	}
	leaves := !model.Terminating(old) && model.Terminating(new)
	if leaves {
		w.other(model.PodLeaving, new, to)
	}
	// It may be evicted now, or be waited for, that could not before.
	if v.budgetRules.Len() > 0 && (leaves || model.Ready(old) && !model.Ready(new) || !maps.Equal(old.Labels, new.Labels)) {
		for _, r := range v.rulesOf(old.Namespace, old.Labels) {
			if b, ok := v.Budgets.Get(r.key); ok {
				w.scope.budget(b)
			}
		}
	}
}

func (w *wakes) other(how model.PodChange, pod *corev1.Pod, node string) {
	v := w.tx.view
	if a := pod.Spec.Affinity; v.otherWakeups.Len() == 0 && (a == nil || a.PodAntiAffinity == nil) && !v.concernedWithOthers() {
		return
	}
	w.pods = append(w.pods, change{how, v.cache.class(pod), node})
}

// entry: the turn of a pod that was to be tried passes on when it leaves the
// queue, finds a place or changes its group.
func (w *wakes) entry(old, new *QueueEntry) {
	if old == nil || !isTried(old.State) {
		return
	}
	group := old.group()
	switch {
	case new == nil:
		w.pass(group)
		pod, ok := w.tx.view.Pods.Get(old.Key())
		if ok && pod.UID == old.UID && pod.Spec.NodeName != "" && w.ended[old.Key()] != pod.Spec.NodeName {
			w.placed = append(w.placed, group)
		}
	case new.State == berthv1.QueueNominated && w.begun[old.Key()],
		new.State == berthv1.QueueSetAside, new.State == berthv1.QueueGated, new.group() != group:
		w.pass(group)
	}
}

func isTried(s berthv1.QueueState) bool {
	return s == berthv1.QueueActive || s == berthv1.QueueBackoff || s == berthv1.QueueSetAside
}

func (w *wakes) pass(group string) { w.chains = append(w.chains, group) }

// nomination: it holds room, and counts for rules between pods.
func (w *wakes) nomination(old, new *Nomination) {
	if old != nil && (new == nil || new.Node != old.Node || new.class != old.class) {
		if w.ended == nil {
			w.ended = map[string]string{}
		}
		w.ended[old.Key()] = old.Node
		pod, ok := w.tx.view.Pods.Get(old.Key())
		if !ok || pod.UID != old.UID || pod.Spec.NodeName != old.Node { // else it took the room itself
			w.freed(old.Node)
			w.pods = append(w.pods, change{model.PodLeft, old.class, old.Node})
		}
	}
	if new != nil && (old == nil || new.Node != old.Node || new.class != old.class) {
		if w.begun == nil {
			w.begun = map[string]bool{}
		}
		w.begun[new.Key()] = true
		w.pods = append(w.pods, change{model.PodCame, new.class, new.Node})
	}
	if old != nil && new != nil && new.BackfillSeconds > old.BackfillSeconds || old == nil && new != nil && new.BackfillSeconds > 0 {
		w.freed(new.Node) // time to fill is room too
	}
}

// freed notes that there is more room on a node.
func (w *wakes) freed(node string) { w.at(node).room = true }

func (w *wakes) at(node string) *nodeEvent {
	i, ok := w.nodeAt[node]
	if !ok {
		if w.nodeAt == nil {
			w.nodeAt = map[string]int{}
		}
		i = len(w.nodes)
		w.nodeAt[node] = i
		w.nodes = append(w.nodes, nodeEvent{name: node})
	}
	return &w.nodes[i]
}

// node: one that got better for anybody is looked at. Its labels say what
// domain it is in, and sometimes its labels and taints whether it is one.
func (w *wakes) node(old, new *corev1.Node) {
	switch {
	case old == nil:
		at := w.at(new.Name)
		at.changed = true
		w.scope.nodeAdded(w.tx.view, new)
		return
	case new == nil:
		w.scope.nodeGone(old)
		return
	}
	switch at := w.at(new.Name); {
	case !gotBetter(old, new):
		at.worse = true
	case !at.changed:
		at.changed, at.before = true, old
	}
	w.scope.nodeChanged(old, new)
}

// gotBetter says whether a change of a node can let anybody come who could not
// before: taints that are added and amounts that shrink do not.
func gotBetter(old, new *corev1.Node) bool {
	if !maps.Equal(old.Labels, new.Labels) || old.Spec.Unschedulable && !new.Spec.Unschedulable {
		return true
	}
	for i := range old.Spec.Taints {
		t := &old.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !slices.ContainsFunc(new.Spec.Taints, func(n corev1.Taint) bool { return n.MatchTaint(t) }) {
			return true
		}
	}
	// Taints of the same key and effect may have another value.
	for i := range new.Spec.Taints {
		t := &new.Spec.Taints[i]
		if slices.ContainsFunc(old.Spec.Taints, func(o corev1.Taint) bool { return o.MatchTaint(t) && o.Value != t.Value }) {
			return true
		}
	}
	// order does not matter: one is enough.
	for name, is := range new.Status.Allocatable {
		if was, ok := old.Status.Allocatable[name]; !ok || is.Cmp(was) > 0 {
			return true
		}
	}
	return false
}

// namespace: terms choose namespaces by their labels.
func (w *wakes) namespace(old, new *corev1.Namespace) {
	var was, is map[string]string
	if old != nil {
		was = old.Labels
	}
	if new != nil {
		is = new.Labels
	}
	if !maps.Equal(was, is) {
		w.scope.Spaces = true
	}
}

// budget: it allows more, protects fewer, or is gone.
func (w *wakes) budget(old, new *policyv1.PodDisruptionBudget) {
	switch {
	case old == nil:
	case new == nil, !equality.Semantic.DeepEqual(old.Spec, new.Spec), !maps.Equal(old.Annotations, new.Annotations):
		w.scope.budget(old)
	case new.Status.DisruptionsAllowed > old.Status.DisruptionsAllowed, new.Status.CurrentHealthy > old.Status.CurrentHealthy,
		new.Status.DesiredHealthy < old.Status.DesiredHealthy, len(new.Status.DisruptedPods) > 0 &&
			!maps.EqualFunc(old.Status.DisruptedPods, new.Status.DisruptedPods, func(a, b metav1.Time) bool { return a.Equal(&b) }):
		w.scope.budget(old)
	}
}

// object: a service, or a workload, by whose selector default constraints
// count (TS12, TS14).
func (w *wakes) object(old, new *Object) {
	if !w.tx.view.hardDefaults() {
		return
	}
	is := new
	if is == nil {
		is = old
	}
	var key string
	_, before, _ := servicePlace(old)
	_, after, _ := servicePlace(new)
	if objectKinds[is.Resource].Workload == nil {
		if maps.Equal(before, after) {
			return
		}
	} else {
		if equality.Semantic.DeepEqual(workloadSelector(old), workloadSelector(new)) {
			return
		}
		key = ObjectKey(is.Resource, is.Value.GetNamespace(), is.Value.GetName())
	}
	w.selectors = append(w.selectors, selectorEvent{is.Value.GetNamespace(), key, before, after})
}

// config: the rules themselves have changed.
func (w *wakes) config(old, new *berthv1.SchedulerConfiguration) {
	before, after := defaultConfig, defaultConfig
	if old != nil {
		before = old
	}
	if new != nil {
		after = new
	}
	if old == nil || judgesOtherwise(&before.Spec, &after.Spec) {
		w.scope.All = true
	}
}

// apply wakes.
func (w *wakes) apply() {
	tx := w.tx
	for _, group := range w.chains {
		tx.wakeNext(group)
	}
	slices.Sort(w.placed)
	for _, group := range slices.Compact(w.placed) {
		tx.wakeNominees(group)
	}
	tx.wakeDefaults(w.selectors)
	w.otherPods()
	for i := range w.nodes {
		tx.lookAt(&w.nodes[i], w.woken)
	}
	tx.sweep(&w.scope)
	tx.goOnWaking()
}
