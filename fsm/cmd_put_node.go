package fsm

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// PutNode creates a node (Create) or replaces one, as the API has validated
// it: labels, taints, cordon, status.
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
		tx.nodeChanged(node)
		return Result{Table: v.Nodes.Name(), Object: node}
	case !known:
		return refuseNotFound(nodeResource.groupResource(), node.Name)
	}
	if r, ok := (Precondition{UID: string(node.UID), Revision: c.Revision}).check(old, nodeResource); !ok {
		return r
	}
	node.ResourceVersion = old.ResourceVersion
	if equality.Semantic.DeepEqual(node, old) {
		return Result{Table: v.Nodes.Name(), Object: old}
	}
	if node.DeletionTimestamp != nil && len(node.Finalizers) == 0 {
		put(tx, v.Nodes, node.Name, node)
		tx.removeNode(node)
		return Result{Table: v.Nodes.Name(), Object: node, Deleted: true}
	}
	tx.putNode(node, old)
	return Result{Table: v.Nodes.Name(), Object: node}
}

// removeNode takes a node away; nominations to it end (NM7). Pods bound to it
// stay until they are collected (GC2).
func (tx *Tx) removeNode(node *corev1.Node) {
	remove(tx, tx.view.Nodes, node.Name)
	tx.releaseNominationsOn(node.Name, anyPriority, "", "node "+node.Name+" is gone")
	if _, ok := tx.view.marks.Get(node.Name); ok {
		remove(tx, tx.view.marks, node.Name)
	}
}

// anyPriority is above every priority.
const anyPriority = 1 << 40
