package fsm

import "github.com/berth-dev/berth/model"

// DeletePriorityClass removes a class. Pods that were admitted with it keep
// their priority (PC7).
//
// Refuses: 404 if there is none; 403 for a system class (PC3); 409 if a
// precondition fails.
type DeletePriorityClass struct {
	Name         string       `msgpack:"name"`
	Precondition Precondition `msgpack:"precondition"`
}

// Apply implements Command.
func (c *DeletePriorityClass) Apply(tx *Tx) Result {
	old, ok := tx.view.PriorityClasses.Get(c.Name)
	if !ok {
		return refuseNotFound(classResource.groupResource(), c.Name)
	}
	if r, ok := c.Precondition.check(old, classResource); !ok {
		return r
	}
	if model.IsSystemClass(c.Name) {
		return refuseSystemClass(c.Name)
	}
	remove(tx, tx.view.PriorityClasses, c.Name)
	return Result{Table: tx.view.PriorityClasses.Name(), Object: old, Deleted: true}
}

func refuseSystemClass(name string) Result {
	return refuseForbidden(classResource.groupResource(), name, "this is a system priority class and cannot be deleted")
}
