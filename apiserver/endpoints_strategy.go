package apiserver

import (
	"context"
	"net/netip"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"
)

// Where pods share a machine's network and the machine is a developer's, they have its
// loopback address. Kubernetes takes no such endpoint; here the controllers may tell of
// it, for it is where the pod is. Nobody else can.

// standIn is an address that stands for a loopback one while an object is validated.
const standIn, standIn6 = "192.0.2.1", "2001:db8::1"

// endpointCreation is upstream's strategy, which takes loopback addresses from
// controllers.
type endpointCreation struct{ rest.RESTCreateStrategy }

// Validate implements rest.RESTCreateStrategy.
func (s endpointCreation) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return s.RESTCreateStrategy.Validate(ctx, withoutLoopback(ctx, obj))
}

// endpointChange is the same for changes.
type endpointChange struct{ rest.RESTUpdateStrategy }

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s endpointChange) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return s.RESTUpdateStrategy.ValidateUpdate(ctx, withoutLoopback(ctx, obj), withoutLoopback(ctx, old))
}

// withoutLoopback is what is validated of endpoints that a controller writes.
func withoutLoopback(ctx context.Context, obj runtime.Object) runtime.Object {
	if who, _ := request.UserFrom(ctx); !isController(who) {
		return obj
	}
	obj = obj.DeepCopyObject()
	replace := func(ip *string) {
		addr, err := netip.ParseAddr(*ip)
		switch {
		case err != nil || !addr.IsLoopback():
		case addr.Is4():
			*ip = standIn
		default:
			*ip = standIn6
		}
	}
	switch o := obj.(type) {
	case *core.Endpoints:
		for i := range o.Subsets {
			for j := range o.Subsets[i].Addresses {
				replace(&o.Subsets[i].Addresses[j].IP)
			}
			for j := range o.Subsets[i].NotReadyAddresses {
				replace(&o.Subsets[i].NotReadyAddresses[j].IP)
			}
		}
	case *discovery.EndpointSlice:
		for i := range o.Endpoints {
			for j := range o.Endpoints[i].Addresses {
				replace(&o.Endpoints[i].Addresses[j])
			}
		}
	}
	return obj
}
