package apiserver

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	core "k8s.io/kubernetes/pkg/apis/core"
)

// namespaceGuard is the first that a request is asked by. Before anything else is said of an object, its
// namespace is there, so that the others may go by what that says.
type namespaceGuard struct{ chain *admissionChain }

var (
	_ admission.MutationInterface   = namespaceGuard{}
	_ admission.ValidationInterface = namespaceGuard{}
)

// Handles implements admission.Interface.
func (namespaceGuard) Handles(admission.Operation) bool { return true }

// Admit implements admission.MutationInterface.
func (g namespaceGuard) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return g.Validate(ctx, a, nil)
}

// Validate implements admission.ValidationInterface.
func (g namespaceGuard) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if err := g.chain.fresh(ctx); err != nil {
		return err
	}
	name := a.GetNamespace()
	if name == "" || a.GetOperation() != admission.Create || a.GetSubresource() != "" ||
		a.GetResource().Group == authorizationv1.GroupName || a.GetKind().GroupKind() == core.Kind("Namespace") {
		return nil
	}
	if g.has(name) {
		return nil
	}
	// Another server may have it already.
	if err := g.chain.backend.ReadIndex(ctx); err != nil {
		return readError(err)
	}
	if g.has(name) {
		return nil
	}
	return apierrors.NewNotFound(core.Resource("namespaces"), name)
}

func (g namespaceGuard) has(name string) bool {
	_, ok := g.chain.backend.View().Namespaces.Get(name)
	return ok
}
