package fsm

import "fmt"

// DeleteObject removes an object of a kind without meaning for scheduling.
//
// Refuses: 400 for an unknown kind; 404 if there is none; 409 if a
// precondition fails.
type DeleteObject struct {
	Resource     string       `msgpack:"resource"`
	Namespace    string       `msgpack:"namespace"`
	Name         string       `msgpack:"name"`
	Precondition Precondition `msgpack:"precondition"`
}

// Apply implements Command.
func (c *DeleteObject) Apply(tx *Tx) Result {
	kind, ok := objectKinds[c.Resource]
	if !ok {
		return refuseBadRequest(fmt.Sprintf("DeleteObject does not know the resource %q", c.Resource))
	}
	res := resource{kind.Group, kind.Resource, kind.Kind}
	key := ObjectKey(c.Resource, c.Namespace, c.Name)
	old, ok := tx.view.Objects.Get(key)
	if !ok {
		return refuseNotFound(res.groupResource(), c.Name)
	}
	if r, ok := c.Precondition.check(old.Value, res); !ok {
		return r
	}
	remove(tx, tx.view.Objects, key)
	return Result{Table: tx.view.Objects.Name(), Object: old, Deleted: true}
}
