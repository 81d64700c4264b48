package fsm

// DeleteNode takes a node out of the cluster. Nominations to it end (NM7); its
// pods stay until they are collected (GC2).
//
// Refuses: 404 if there is none; 409 if a precondition fails.
type DeleteNode struct {
	Name         string       `msgpack:"name"`
	Precondition Precondition `msgpack:"precondition"`
}

// Apply implements Command.
func (c *DeleteNode) Apply(tx *Tx) Result {
	old, ok := tx.view.Nodes.Get(c.Name)
	if !ok {
		return refuseNotFound(nodeResource.groupResource(), c.Name)
	}
	if r, ok := c.Precondition.check(old, nodeResource); !ok {
		return r
	}
	tx.removeNode(old)
	return Result{Table: tx.view.Nodes.Name(), Object: old, Deleted: true}
}
