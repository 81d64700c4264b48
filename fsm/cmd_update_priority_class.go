package fsm

import (
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/model"
)

// UpdatePriorityClass replaces a class. Existing pods keep their priority
// (PC6).
//
// Refuses: 403 for the end of a system class, which finalizers would put off (PC3); 404 if there is none; 409 for a stale revision; 422 if value or
// preemptionPolicy differ (PC8); 403 for a second global default (PC4).
type UpdatePriorityClass struct {
	Class    PriorityClassWire `msgpack:"class"`
	Revision int64             `msgpack:"revision,omitempty"`
}

// Apply implements Command.
func (c *UpdatePriorityClass) Apply(tx *Tx) Result {
	class := c.Class.Object
	if class == nil {
		return refuseBadRequest("UpdatePriorityClass without a class")
	}
	old, ok := tx.view.PriorityClasses.Get(class.Name)
	if !ok {
		return refuseNotFound(classResource.groupResource(), class.Name)
	}
	if r, ok := (Precondition{UID: string(class.UID), Revision: c.Revision}).check(old, classResource); !ok {
		return r
	}
	if model.IsSystemClass(class.Name) && class.DeletionTimestamp != nil {
		return refuseSystemClass(class.Name)
	}
	errs := append(model.ValidateClassUpdate(class, old), model.ValidateUserClass(class)...)
	if len(errs) > 0 {
		return refusal(apierrors.NewInvalid(classResource.groupKind(), class.Name, errs))
	}
	if r, ok := tx.checkDefault(class); !ok {
		return r
	}
	class.ResourceVersion = old.ResourceVersion
	if equality.Semantic.DeepEqual(class, old) {
		return Result{Table: tx.view.PriorityClasses.Name(), Object: old}
	}
	put(tx, tx.view.PriorityClasses, class.Name, class)
	return Result{Table: tx.view.PriorityClasses.Name(), Object: class}
}
