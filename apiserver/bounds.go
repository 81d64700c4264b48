package apiserver

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/access"
)

// bounds is asked first about everything that is written: what is too much is refused before anybody reads it, and what is much is
// charged to who asks. Of what is stored the limits are asked again, when others have added to it.
type bounds struct{ pace *pace }

var _ admission.MutationInterface = bounds{}

// Handles implements admission.Interface.
func (bounds) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Admit implements admission.MutationInterface.
func (b bounds) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	obj := a.GetObject()
	if _, ok := obj.(metav1.Object); !ok {
		return nil
	}
	selectorBytes, err := checkReview(obj)
	if err != nil {
		return err
	}
	if costs := selectorBytesCost(selectorBytes); costs > 0 {
		if who := a.GetUserInfo(); who != nil && !slices.Contains(who.GetGroups(), access.Masters) {
			if err := b.pace.take(ctx, who.GetName(), costs); err != nil {
				return readError(err)
			}
		}
	}
	var old runtime.Object
	if a.GetOperation() == admission.Update {
		old = a.GetOldObject()
	}
	if info, ok := request.RequestInfoFrom(ctx); ok && info.Verb == "patch" {
		// Of other requests all was looked at before it was an object.
		if err := checkPatched(obj, old, a.GetKind()); err != nil {
			return err
		}
	}
	if err := checkChange(obj, old); err != nil {
		return err
	}
	if who := a.GetUserInfo(); who != nil && !slices.Contains(who.GetGroups(), access.Masters) {
		if costs := writtenCosts(obj); costs > freeCosts {
			b.pace.owe(who.GetName(), costs)
		}
	}
	return checkAnnotations(obj.(metav1.Object), a.GetKind().GroupKind())
}

const (
	// What one value of a custom object costs that is written, and one byte of what is known of who manages an object's fields, by
	// experience: both are walked through several times, and compared.
	valueCosts, managedByteCosts = 20 * time.Microsecond, 2500 * time.Nanosecond
	// freeCosts are those of most objects, which a write is charged for anyway.
	freeCosts = 50 * time.Millisecond
)

// writtenCosts is what writing an object costs beyond what every write does.
func writtenCosts(obj runtime.Object) time.Duration {
	costs := time.Duration(managedBytes(metaOf(obj))) * managedByteCosts
	if u, ok := obj.(*unstructured.Unstructured); ok {
		costs += time.Duration(contentNodes(u)) * valueCosts
	}
	return costs
}

func managedBytes(m metav1.Object) (n int) {
	for _, of := range m.GetManagedFields() {
		if of.FieldsV1 != nil {
			n += len(of.FieldsV1.Raw)
		}
	}
	return n
}

// checkAnnotations refuses an object with many annotations that are none. It is the one part of metadata that may be wrong in many places,
// and what is wrong with the metadata of a change no strategy says.
func checkAnnotations(m metav1.Object, kind schema.GroupKind) error {
	annotations := m.GetAnnotations()
	if len(annotations) <= maxToldErrors {
		return nil
	}
	errs := apivalidation.ValidateAnnotations(annotations, field.NewPath("metadata", "annotations"))
	if len(errs) <= maxToldErrors {
		return nil // upstream tells them
	}
	return apierrors.NewInvalid(kind, m.GetName(), few(errs))
}
