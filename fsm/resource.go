package fsm

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/api/berthv1"
)

// resource names a kind of object as the API's errors do.
type resource struct{ Group, Name, Kind string }

var (
	podResource       = resource{"", "pods", "Pod"}
	bindingResource   = resource{"", "pods/binding", "Pod"}
	nodeResource      = resource{"", "nodes", "Node"}
	namespaceResource = resource{"", "namespaces", "Namespace"}
	eventResource     = resource{"", "events", "Event"}
	budgetResource    = resource{policyv1.GroupName, "poddisruptionbudgets", "PodDisruptionBudget"}
	serviceResource   = resource{"", "services", "Service"}
	classResource     = resource{"scheduling.k8s.io", "priorityclasses", "PriorityClass"}
	configResource    = resource{berthv1.GroupName, "schedulerconfigurations", "SchedulerConfiguration"}
)

func (r resource) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Name}
}

func (r resource) groupKind() schema.GroupKind { return schema.GroupKind{Group: r.Group, Kind: r.Kind} }

// refuseTerminating is Kubernetes' answer to a creation in a namespace that is
// being deleted.
func refuseTerminating(res resource, name, namespace string) Result {
	r := refuseForbidden(res.groupResource(), name,
		fmt.Sprintf("unable to create new content in namespace %s because it is being terminated", namespace))
	r.Details.Causes = append(r.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", namespace),
		Field:   "metadata.namespace",
	})
	return r
}

// Precondition is what a command demands of the object that it changes. Zero
// values demand nothing.
type Precondition struct {
	UID      string `msgpack:"uid,omitempty"`
	Revision int64  `msgpack:"revision,omitempty"`
}

func (p Precondition) check(o metav1.Object, res resource) (Result, bool) {
	switch {
	case p.UID != "" && p.UID != string(o.GetUID()):
		return refuseConflict(res.groupResource(), o.GetName(),
			fmt.Sprintf("Precondition failed: UID in precondition: %v, UID in object meta: %v", p.UID, o.GetUID())), false
	case p.Revision != 0 && p.Revision != parseRevision(o.GetResourceVersion()):
		return refusal(apierrors.NewConflict(res.groupResource(), o.GetName(), fmt.Errorf("%s", modifiedMessage))), false
	}
	return Result{}, true
}

// PodRef names one pod, not merely whoever has its name now.
type PodRef struct {
	Key string `msgpack:"key"`
	UID string `msgpack:"uid"`
}
