package workloads

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// withReservations is the client of Kubernetes' controller of claims of devices. The controller takes the reservation of a pod that has
// ended away, and makes it again when others still use the claim: where two pods share one, and one ends, it goes on so for ever, as fast
// as it is answered. For a pod that has ended none is made.
type withReservations struct {
	kubernetes.Interface
	view func() *fsm.View
}

// ResourceV1 implements kubernetes.Interface.
func (c withReservations) ResourceV1() typedresourcev1.ResourceV1Interface {
	return resourcesWithReservations{c.Interface.ResourceV1(), c.view}
}

type resourcesWithReservations struct {
	typedresourcev1.ResourceV1Interface
	view func() *fsm.View
}

// ResourceClaims implements typedresourcev1.ResourceClaimsGetter.
func (c resourcesWithReservations) ResourceClaims(namespace string) typedresourcev1.ResourceClaimInterface {
	return reservedClaims{c.ResourceV1Interface.ResourceClaims(namespace), c.view}
}

type reservedClaims struct {
	typedresourcev1.ResourceClaimInterface
	view func() *fsm.View
}

// UpdateStatus implements typedresourcev1.ResourceClaimInterface.
func (c reservedClaims) UpdateStatus(ctx context.Context, claim *resourcev1.ResourceClaim, options metav1.UpdateOptions) (*resourcev1.ResourceClaim, error) {
	if have := reservedAlready(c.view(), claim); have != nil {
		return have.DeepCopy(), nil
	}
	return c.ResourceClaimInterface.UpdateStatus(ctx, claim, options)
}

// reservedAlready is what there is of a claim that differs by a reservation for a pod which has ended; nil for other changes.
func reservedAlready(v *fsm.View, claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	have, ok := v.ResourceClaim(claim.Namespace, claim.Name)
	n := len(claim.Status.ReservedFor)
	if !ok || have.UID != claim.UID || n != len(have.Status.ReservedFor)+1 {
		return nil
	}
	by := &claim.Status.ReservedFor[n-1]
	if by.APIGroup != corev1.GroupName || by.Resource != "pods" {
		return nil
	}
	if pod, ok := v.Pods.Get(fsm.PodKey(claim.Namespace, by.Name)); ok && pod.UID == by.UID && model.Terminal(pod) {
		return have
	}
	return nil
}
