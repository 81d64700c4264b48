package fsm

import (
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-dev/berth/model"
)

// PutDisruptionBudget creates (Create) or replaces a disruption budget. Of its
// status only the announced disruptions (disruptedPods) and conditions of
// other types than DisruptionAllowed are taken over: all else is the state
// machine's own. Where there are many pods, they are counted in the next entries;
// until then the budget allows nothing, and its status is behind its generation.
//
// Refuses: 404 or 403 for a namespace that is missing or on its way out, 403 for
// one more than a quota allows; 409
// if a budget to be created exists, or for a stale revision; 404 if one to be
// replaced does not; 422 for a selector or a priority that cannot be read.
type PutDisruptionBudget struct {
	Budget   BudgetWire `msgpack:"budget"`
	Create   bool       `msgpack:"create,omitempty"`
	Revision int64      `msgpack:"revision,omitempty"`
}

// Apply implements Command.
func (c *PutDisruptionBudget) Apply(tx *Tx) Result {
	b := c.Budget.Object
	if b == nil || b.Name == "" {
		return refuseBadRequest("PutDisruptionBudget without a budget that has a name")
	}
	v := tx.view
	key := PodKey(b.Namespace, b.Name)
	old, known := v.Budgets.Get(key)
	switch {
	case c.Create:
		if r, ok := v.checkNamespace(b.Namespace, budgetResource, b.Name); !ok {
			return r
		}
		if known {
			return refuseExists(budgetResource.groupResource(), b.Name)
		}
	case !known:
		return refuseNotFound(budgetResource.groupResource(), b.Name)
	default:
		if r, ok := (Precondition{UID: string(b.UID), Revision: c.Revision}).check(old, budgetResource); !ok {
			return r
		}
	}
	if errs := checkBudget(b); len(errs) > 0 {
		return refuseInvalid(budgetResource.groupKind(), b.Name, errs...)
	}
	if !known {
		if r, ok := v.checkCountQuotas(budgetResource, b.Namespace, b.Name); !ok {
			return r
		}
	}
	keepCounted(b, old)
	if known {
		b.ResourceVersion = old.ResourceVersion
		if equality.Semantic.DeepEqual(b, old) {
			return Result{Table: v.Budgets.Name(), Object: old}
		}
		if letGo(b) {
			return tx.removeBudget(key, old)
		}
	}
	v.budgets.Cover(b)
	tx.countBudget(key)
	b.Status = tx.budgetStatus(b)
	put(tx, v.Budgets, key, b)
	return Result{Table: v.Budgets.Name(), Object: b}
}

// checkBudget refuses what the state machine could not act on.
func checkBudget(b *policyv1.PodDisruptionBudget) field.ErrorList {
	errs := metav1validation.ValidateLabelSelector(b.Spec.Selector, metav1validation.LabelSelectorValidationOptions{}, field.NewPath("spec", "selector"))
	return append(errs, model.ValidateViolatorPriority(b.Annotations)...)
}

// keepCounted undoes what a writer may not say: everything that is counted
// here.
func keepCounted(b, old *policyv1.PodDisruptionBudget) {
	given := b.Status
	b.Status = policyv1.PodDisruptionBudgetStatus{}
	if old != nil {
		b.Status = old.Status
	}
	b.Status.DisruptedPods = given.DisruptedPods
	if len(given.DisruptedPods) == 0 {
		b.Status.DisruptedPods = nil
	}
	counted := func(c metav1.Condition) bool { return c.Type == policyv1.DisruptionAllowedCondition }
	own := slices.IndexFunc(b.Status.Conditions, counted)
	conditions := slices.Clone(given.Conditions)
	if own < 0 {
		b.Status.Conditions = slices.DeleteFunc(conditions, counted)
		return
	}
	at := slices.IndexFunc(conditions, counted)
	if at < 0 {
		b.Status.Conditions = append(conditions, b.Status.Conditions[own])
		return
	}
	conditions[at] = b.Status.Conditions[own]
	b.Status.Conditions = conditions
}
