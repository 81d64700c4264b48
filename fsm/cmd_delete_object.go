package fsm

import "fmt"

// DeleteObject ends an object of the table of plain objects: at once, or, if
// finalizers hold it, when the last of them is gone.
//
// Refuses: 400 for an unknown kind; 404 if there is none; 409 if a
// precondition fails.
type DeleteObject struct {
	Resource     string       `msgpack:"resource"`
	Namespace    string       `msgpack:"namespace"`
	Name         string       `msgpack:"name"`
	Precondition Precondition `msgpack:"precondition"`
	// Propagation says what becomes of the object's dependents.
	Propagation Propagation `msgpack:"propagation,omitempty"`
}

// Apply implements Command.
func (c *DeleteObject) Apply(tx *Tx) Result {
	kind, ok := tx.view.objectKind(c.Resource)
	if !ok {
		return refuseBadRequest(fmt.Sprintf("DeleteObject does not know the resource %q", c.Resource))
	}
	res := kind.names()
	key := ObjectKey(c.Resource, c.Namespace, c.Name)
	old, ok := tx.view.Objects.Get(key)
	if !ok {
		return refuseNotFound(res.groupResource(), c.Name)
	}
	if r, ok := c.Precondition.check(old.Value, res); !ok {
		return r
	}
	o, gone := tx.deleteObject(key, old, c.Propagation)
	return Result{Table: tx.view.Objects.Name(), Object: o, Deleted: gone}
}
