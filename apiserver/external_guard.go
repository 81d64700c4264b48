package apiserver

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	core "k8s.io/kubernetes/pkg/apis/core"
)

// externalGuard is an admission plugin: an external address is added to a service by those alone who
// may write statuses of services, where load balancers put theirs. Nodes carry what is sent to such an
// address to the service's pods, so that whoever may add any takes what is meant for others.
type externalGuard struct{}

var _ admission.ValidationInterface = externalGuard{}

// Handles implements admission.Interface.
func (externalGuard) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Validate implements admission.ValidationInterface.
func (externalGuard) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	service, ok := a.GetObject().(*core.Service)
	if !ok {
		return nil
	}
	var had []string
	if old, ok := a.GetOldObject().(*core.Service); ok {
		had = old.Spec.ExternalIPs
	}
	added := slices.ContainsFunc(service.Spec.ExternalIPs, func(ip string) bool { return !slices.Contains(had, ip) })
	if !added {
		return nil
	}
	if yes, err := may(ctx, authorizer.AttributesRecord{
		Verb: "update", APIVersion: "v1", Resource: "services", Subresource: "status", Namespace: a.GetNamespace(),
	}); yes || err != nil {
		return err
	}
	return admission.NewForbidden(a, errors.New("spec.externalIPs: what is sent to an external address is carried to the service's pods, "+
		"so one is added by those alone who may update resource \"services/status\""))
}
