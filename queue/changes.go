package queue

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
)

// Changes is what a command did, as far as it can help those who wait. What is
// not put here helps nobody.
type Changes struct {
	Nodes []NodeChange // each node once
	Pods  []PodChange
	// Selectors are the services and workloads that came, went or select others.
	Selectors []SelectorChange
	// Claims are the keys of claims of volumes of which something changed, and
	// StorageClasses the classes of which there are others volumes.
	// Volumes are those that are no claim's and came or changed.
	Claims, StorageClasses, Volumes []string
	// Taken are the classes of which a volume that anybody might have been given is somebody's
	// now, or gone.
	Taken []string
	Scope Scope
	// Passed are the groups whose turn passes to the next: a pod that was to be
	// tried left them.
	Passed []string
	// Placed are groups of which a pod found a place that it was not promised:
	// those that wait for their victims may do so, too.
	Placed []string

	// ByLabel says of labels of nodes and namespaces which ones have changed: only who looks at these is meant.
	ByLabel bool
	// Drivers: a node on which drivers of devices may run from now on is better than before.
	Drivers bool

	nodeAt map[string]int
}

// NodeChange is a node on which something happened that can help, if only those
// who are nominated to it.
type NodeChange struct {
	Name string
	// Before is the node as it was before the command, if it was changed; nil
	// with Changed if it is new.
	Before  *corev1.Node
	Changed bool
	Room    bool // room came free
}

// Freed notes that there is more room on a node.
func (c *Changes) Freed(node string) { c.at(node).Room = true }

// Kept notes that room is kept on a node from now on: who it is kept for looks
// again.
func (c *Changes) Kept(node string) { c.at(node) }

// Pod notes what a pod on a node did, or a nomination to it.
func (c *Changes) Pod(how model.PodChange, pod *model.Class, node string) {
	c.Pods = append(c.Pods, PodChange{How: how, Pod: pod, Node: node})
}

// PodChanged notes that a pod on a node is of another class now.
func (c *Changes) PodChanged(old, now *model.Class, node string) {
	c.Pods = append(c.Pods, PodChange{model.PodLeft, old, now, node}, PodChange{model.PodCame, now, old, node})
}

// Pass notes that a turn of a group passes on.
func (c *Changes) Pass(group string) { c.Passed = append(c.Passed, group) }

func (c *Changes) at(node string) *NodeChange {
	i, ok := c.nodeAt[node]
	if !ok {
		if c.nodeAt == nil {
			c.nodeAt = map[string]int{}
		}
		i = len(c.Nodes)
		c.nodeAt[node] = i
		c.Nodes = append(c.Nodes, NodeChange{Name: node})
	}
	return &c.Nodes[i]
}

// Node: one that got better for anybody is looked at. Its labels say what domain
// it is in, and sometimes its labels and taints whether it is one. A new one may
// be awaited by pods and nominations that are on it already.
func (c *Changes) Node(old, now *corev1.Node, awaited func() bool) {
	switch {
	case old == nil:
		c.at(now.Name).Changed = true
		c.Scope.nodeAdded(now, awaited())
		return
	case now == nil:
		c.Scope.nodeGone(old)
		return
	}
	if at := c.at(now.Name); !at.Changed && (gotBetter(old, now) || c.Drivers && !model.HasDrivers(old) && model.HasDrivers(now)) {
		at.Changed, at.Before = true, old
	}
	c.Scope.nodeChanged(old, now, c.ByLabel)
}

// gotBetter says whether a change of a node can let anybody come who could not
// before: taints that are added and amounts that shrink do not.
func gotBetter(old, now *corev1.Node) bool {
	if !maps.Equal(old.Labels, now.Labels) || old.Spec.Unschedulable && !now.Spec.Unschedulable {
		return true
	}
	for i := range old.Spec.Taints {
		t := &old.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule &&
			!slices.ContainsFunc(now.Spec.Taints, func(n corev1.Taint) bool { return n.MatchTaint(t) }) {
			return true
		}
	}
	// Taints of the same key and effect may have another value.
	for i := range now.Spec.Taints {
		t := &now.Spec.Taints[i]
		if slices.ContainsFunc(old.Spec.Taints,
			func(o corev1.Taint) bool { return o.MatchTaint(t) && o.Value != t.Value }) {
			return true
		}
	}
	// order does not matter: one is enough.
	for name, is := range now.Status.Allocatable {
		if was, ok := old.Status.Allocatable[name]; !ok || is.Cmp(was) > 0 {
			return true
		}
	}
	return false
}

// Namespace: terms choose namespaces by their labels.
func (c *Changes) Namespace(old, now *corev1.Namespace) {
	var was, is map[string]string
	if old != nil {
		was = old.Labels
	}
	if now != nil {
		is = now.Labels
	}
	switch {
	case maps.Equal(was, is):
	case c.ByLabel:
		for _, key := range changedKeys(was, is) {
			c.Scope.name(&c.Scope.SpaceKeys, key)
		}
	default:
		c.Scope.Spaces = true
	}
}

// changedKeys are those of the labels that only one of two sets has, or the other with another value, sorted.
func changedKeys(old, now map[string]string) []string {
	both := maps.Clone(old)
	if both == nil {
		both = map[string]string{}
	}
	maps.Copy(both, now)
	return slices.DeleteFunc(slices.Sorted(maps.Keys(both)), func(key string) bool {
		was, had := old[key]
		is, has := now[key]
		return had == has && was == is
	})
}

// Budget: it allows more, protects fewer, or is gone. victims are the pods that it covered.
func (c *Changes) Budget(old, now *policyv1.PodDisruptionBudget, victims func(b *policyv1.PodDisruptionBudget) *Victims) {
	switch {
	case old == nil:
	case now == nil, !equality.Semantic.DeepEqual(old.Spec, now.Spec), !maps.Equal(old.Annotations, now.Annotations):
		c.Scope.Budget(old, victims(old))
	case now.Status.DisruptionsAllowed > old.Status.DisruptionsAllowed,
		now.Status.CurrentHealthy > old.Status.CurrentHealthy,
		now.Status.DesiredHealthy < old.Status.DesiredHealthy, len(now.Status.DisruptedPods) > 0 &&
			!maps.EqualFunc(old.Status.DisruptedPods, now.Status.DisruptedPods,
				func(a, b metav1.Time) bool { return a.Equal(&b) }):
		c.Scope.Budget(old, victims(old))
	}
}
