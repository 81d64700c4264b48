package apiserver

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
)

// Services are kept so that manifests apply and clients find them. Berth gives
// out no addresses: one that a manifest brings along is kept, none is made up.

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
}
