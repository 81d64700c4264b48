package fsm

// DeleteDisruptionBudget removes a disruption budget: nothing protects its pods
// from here on.
//
// Refuses: 404 if there is none; 409 if a precondition fails.
type DeleteDisruptionBudget struct {
	Namespace    string       `msgpack:"namespace"`
	Name         string       `msgpack:"name"`
	Precondition Precondition `msgpack:"precondition"`
}

// Apply implements Command.
func (c *DeleteDisruptionBudget) Apply(tx *Tx) Result {
	key := PodKey(c.Namespace, c.Name)
	old, ok := tx.view.Budgets.Get(key)
	if !ok {
		return refuseNotFound(budgetResource.groupResource(), c.Name)
	}
	if r, ok := c.Precondition.check(old, budgetResource); !ok {
		return r
	}
	remove(tx, tx.view.Budgets, key)
	return Result{Table: tx.view.Budgets.Name(), Object: old, Deleted: true}
}
