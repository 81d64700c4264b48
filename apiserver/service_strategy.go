package apiserver

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
)

// Services get addresses (services), and nobody provides load balancers: who asks for one is told. Until every server knows of
// addresses, the one that a manifest brings along is kept and none is given.

// noBalancer is the condition of a service that waits for a load balancer.
const noBalancer = "berth.dev/LoadBalancerProvided"

// tellOfBalancer says in the status of a service that wants a load balancer, and has none,
// that nobody provides one.
func tellOfBalancer(s *core.Service) {
	if s.Spec.Type != core.ServiceTypeLoadBalancer || len(s.Status.LoadBalancer.Ingress) > 0 {
		meta.RemoveStatusCondition(&s.Status.Conditions, noBalancer)
		return
	}
	meta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{
		Type: noBalancer, Status: metav1.ConditionFalse, Reason: "NoProvider",
		Message: "Berth provides no load balancers: the service gets an external address when something else in the cluster gives it one",
	})
}

// serviceStatusChange is upstream's strategy of statuses, with that.
type serviceStatusChange struct{ statusStrategy }

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (s serviceStatusChange) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.statusStrategy.PrepareForUpdate(ctx, obj, old)
	tellOfBalancer(obj.(*core.Service))
}

// serviceCreation is upstream's strategy with the two fields of the address in
// step, which upstream leaves to its allocators.
type serviceCreation struct{ rest.RESTCreateStrategy }

// PrepareForCreate implements rest.RESTCreateStrategy.
func (s serviceCreation) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	s.RESTCreateStrategy.PrepareForCreate(ctx, obj)
	service := obj.(*core.Service)
	if service.Spec.ClusterIP != "" && len(service.Spec.ClusterIPs) == 0 {
		service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	}
	tellOfBalancer(service)
}

// serviceChange is the same for changed services.
type serviceChange struct{ rest.RESTUpdateStrategy }

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (s serviceChange) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.RESTUpdateStrategy.PrepareForUpdate(ctx, obj, old)
	service, before := obj.(*core.Service), old.(*core.Service)
	// A manifest that is sent again does not take the address away, and a
	// client that knows one of the fields only changes both.
	if service.Spec.ClusterIP == "" && len(service.Spec.ClusterIPs) == 0 && service.Spec.Type != core.ServiceTypeExternalName {
		service.Spec.ClusterIP, service.Spec.ClusterIPs = before.Spec.ClusterIP, before.Spec.ClusterIPs
	}
	if service.Spec.ClusterIP != before.Spec.ClusterIP && slices.Equal(service.Spec.ClusterIPs, before.Spec.ClusterIPs) {
		service.Spec.ClusterIPs = nil
		if service.Spec.ClusterIP != "" {
			service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
		}
	}
	if service.Spec.ClusterIP != "" && len(service.Spec.ClusterIPs) == 0 {
		service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	}
	tellOfBalancer(service)
}
