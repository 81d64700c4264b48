package fsm

import (
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/queue"
)

// DeleteDisruptionBudget removes a disruption budget: nothing protects its pods
// from here on. One with finalizers is marked, and goes with the last of them.
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
	return tx.endBudget(key, old)
}

// endBudget removes a budget, or marks one that finalizers hold: until the last
// of them is gone it protects its pods.
func (tx *Tx) endBudget(key string, old *policyv1.PodDisruptionBudget) Result {
	if len(old.Finalizers) > 0 {
		return tx.markBudget(key, old)
	}
	return tx.removeBudget(key, old)
}

func (tx *Tx) removeBudget(key string, old *policyv1.PodDisruptionBudget) Result {
	remove(tx, tx.view.Budgets, key)
	if tx.view.pending.Len() > 0 {
		remove(tx, tx.view.pending, queue.PendingBudgets+key) // its pods may have been in counting
	}
	return Result{Table: tx.view.Budgets.Name(), Object: old, Deleted: true}
}

func (tx *Tx) markBudget(key string, old *policyv1.PodDisruptionBudget) Result {
	if old.DeletionTimestamp != nil {
		return Result{Table: tx.view.Budgets.Name(), Object: old}
	}
	now, none := tx.now(), int64(0)
	next := *old
	next.DeletionTimestamp, next.DeletionGracePeriodSeconds = &now, &none
	next.Generation++
	next.Status = tx.budgetStatus(&next)
	put(tx, tx.view.Budgets, key, &next)
	return Result{Table: tx.view.Budgets.Name(), Object: &next}
}

// changeBudget changes what is not of the budget's rule: its owners and
// finalizers. Without the last finalizer a marked one goes.
func (tx *Tx) changeBudget(key string, change func(o metav1.Object)) {
	old, ok := tx.view.Budgets.Get(key)
	if !ok {
		return
	}
	next := *old
	change(&next)
	if letGo(&next) {
		tx.removeBudget(key, old)
		return
	}
	put(tx, tx.view.Budgets, key, &next)
}
