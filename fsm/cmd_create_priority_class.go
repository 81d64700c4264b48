package fsm

import (
	"fmt"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/model"
)

// CreatePriorityClass stores a new class.
//
// Refuses: 422 for a value above the users' range or a reserved name (PC2,
// PC3); 409 if the name is taken; 403 for a second global default (PC4).
type CreatePriorityClass struct {
	Class PriorityClassWire `msgpack:"class"`
}

// Apply implements Command.
func (c *CreatePriorityClass) Apply(tx *Tx) Result {
	class := c.Class.Object
	if class == nil || class.Name == "" {
		return refuseBadRequest("CreatePriorityClass without a class that has a name")
	}
	if errs := model.ValidateUserClass(class); len(errs) > 0 {
		return refusal(apierrors.NewInvalid(classResource.groupKind(), class.Name, errs))
	}
	if _, taken := tx.view.PriorityClasses.Get(class.Name); taken {
		return refuseExists(classResource.groupResource(), class.Name)
	}
	if r, ok := tx.checkDefault(class); !ok {
		return r
	}
	put(tx, tx.view.PriorityClasses, class.Name, class)
	return Result{Table: tx.view.PriorityClasses.Name(), Object: class}
}

// checkDefault: at most one class is the global default (PC4).
func (tx *Tx) checkDefault(class *schedulingv1.PriorityClass) (Result, bool) {
	if !class.GlobalDefault {
		return Result{}, true
	}
	if other, ok := tx.view.DefaultPriorityClass(); ok && other.Name != class.Name {
		return refuseForbidden(classResource.groupResource(), class.Name,
			fmt.Sprintf("PriorityClass %s is already marked as default. Only one default can exist", other.Name)), false
	}
	return Result{}, true
}
