package fsm

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// PutNode creates a node (Create) or replaces one, as the API has validated
// it: labels, taints, cordon, status. Where the capacity of an extended resource
// is changed and what pods may have of it is not, that follows: workers know
// nothing of resources that are written into their nodes' status.
//
// Refuses: 409 if a node to be created exists, or for a stale revision; 404 if
// one to be replaced does not.
type PutNode struct {
	Node     NodeWire `msgpack:"node"`
	Create   bool     `msgpack:"create,omitempty"`
	Revision int64    `msgpack:"revision,omitempty"`
}

// Apply implements Command.
func (c *PutNode) Apply(tx *Tx) Result {
	node := c.Node.Object
	if node == nil || node.Name == "" {
		return refuseBadRequest("PutNode without a node that has a name")
	}
	v := tx.view
	old, known := v.Nodes.Get(node.Name)
	switch {
	case c.Create && known:
		return refuseExists(nodeResource.groupResource(), node.Name)
	case c.Create:
		tx.stampTaints(node)
		put(tx, v.Nodes, node.Name, node)
		return Result{Table: v.Nodes.Name(), Object: node}
	case !known:
		return refuseNotFound(nodeResource.groupResource(), node.Name)
	}
	if r, ok := (Precondition{UID: string(node.UID), Revision: c.Revision}).check(old, nodeResource); !ok {
		return r
	}
	node.ResourceVersion = old.ResourceVersion
	followCapacity(old, node)
	if equality.Semantic.DeepEqual(node, old) {
		return Result{Table: v.Nodes.Name(), Object: old}
	}
	if letGo(node) {
		tx.removeNode(old)
		return Result{Table: v.Nodes.Name(), Object: old, Deleted: true}
	}
	tx.putNode(node)
	return Result{Table: v.Nodes.Name(), Object: node}
}

// followCapacity brings what pods may have of extended resources in step with
// their changed capacity.
func followCapacity(old, node *corev1.Node) {
	allocatable := node.Status.Allocatable
	unchanged := func(name corev1.ResourceName) bool {
		before, had := old.Status.Allocatable[name]
		now, has := allocatable[name]
		return had == has && before.Cmp(now) == 0
	}
	// order does not matter: every resource is looked at by itself
	for name, now := range node.Status.Capacity {
		before, had := old.Status.Capacity[name]
		if extended(name) && (!had || before.Cmp(now) != 0) && unchanged(name) {
			if allocatable == nil {
				allocatable = corev1.ResourceList{}
			}
			allocatable[name] = now
		}
	}
	// order does not matter: as above
	for name := range old.Status.Capacity {
		if _, has := node.Status.Capacity[name]; !has && extended(name) && unchanged(name) {
			delete(allocatable, name)
		}
	}
	node.Status.Allocatable = allocatable
}

// extended resources are those with a domain, which only their users know.
func extended(name corev1.ResourceName) bool { return strings.Contains(string(name), "/") }

// removeNode takes a node away; nominations to it end (NM7). Pods bound to it
// stay until they are collected (GC2).
func (tx *Tx) removeNode(node *corev1.Node) {
	remove(tx, tx.view.Nodes, node.Name)
	tx.releaseNominationsOn(node.Name, anyPriority, "", because("node "+node.Name+" is gone"))
	if _, ok := tx.view.marks.Get(node.Name); ok {
		remove(tx, tx.view.marks, node.Name)
	}
}

// anyPriority is above every priority.
const anyPriority = 1 << 40
