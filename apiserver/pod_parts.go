package apiserver

import (
	"context"
	"fmt"
	"net/http"

	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/policy"

	"github.com/berth-dev/berth/fsm"
)

// binding serves pods/binding, for schedulers other than Berth's own.
type binding struct{ backend Backend }

var (
	_ rest.NamedCreater                   = (*binding)(nil)
	_ rest.SubresourceObjectMetaPreserver = (*binding)(nil)
)

// New implements rest.Storage.
func (b *binding) New() runtime.Object { return &core.Binding{} }

// Destroy implements rest.Storage.
func (b *binding) Destroy() {}

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate implements
// rest.SubresourceObjectMetaPreserver: the UID is a precondition.
func (b *binding) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Create implements rest.NamedCreater.
func (b *binding) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	in, ok := obj.(*core.Binding)
	if !ok {
		return nil, badObject("Binding", obj)
	}
	if name != in.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := validation.ValidatePodBinding(in); len(errs) > 0 {
		return nil, apierrors.NewInvalid(core.Kind("Binding"), name, errs)
	}
	if validate != nil {
		if err := validate(ctx, in.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	ctx, err := dryRunContext(ctx, b.backend, options.DryRun)
	if err != nil {
		return nil, err
	}
	key := fsm.PodKey(genericapirequest.NamespaceValue(ctx), name)
	if _, err := propose(ctx, b.backend, &fsm.BindPod{Key: key, UID: string(in.UID), Node: in.Target.Name}); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// bindings serves the resource of that name, the old way to say pods/binding.
type bindings struct{ *binding }

var _ rest.Creater = (*bindings)(nil)

// NamespaceScoped implements rest.Scoper.
func (b *bindings) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (b *bindings) GetSingularName() string { return "binding" }

// Create implements rest.Creater.
func (b *bindings) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	in, ok := obj.(*core.Binding)
	if !ok {
		return nil, badObject("Binding", obj)
	}
	return b.binding.Create(ctx, in.Name, obj, validate, options)
}

// eviction serves pods/eviction (PD6): one command, which checks and spends
// every budget that is concerned.
type eviction struct{ backend Backend }

var (
	_ rest.NamedCreater             = (*eviction)(nil)
	_ rest.GroupVersionKindProvider = (*eviction)(nil)
	_ rest.GroupVersionAcceptor     = (*eviction)(nil)
)

// New implements rest.Storage.
func (e *eviction) New() runtime.Object { return &policy.Eviction{} }

// Destroy implements rest.Storage.
func (e *eviction) Destroy() {}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (e *eviction) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

// AcceptsGroupVersion implements rest.GroupVersionAcceptor.
func (e *eviction) AcceptsGroupVersion(gv schema.GroupVersion) bool {
	return gv == policyv1.SchemeGroupVersion || gv == policyv1beta1.SchemeGroupVersion
}

// Create implements rest.NamedCreater.
func (e *eviction) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	in, ok := obj.(*policy.Eviction)
	if !ok {
		return nil, badObject("Eviction", obj)
	}
	if name != in.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	if validate != nil {
		if err := validate(ctx, in.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	deletion := in.DeleteOptions
	if deletion == nil {
		deletion = &metav1.DeleteOptions{}
	}
	pre, err := deletePrecondition(deletion)
	if err != nil {
		return nil, err
	}
	// The request may say that it is a dry run in two places.
	if ctx, err = dryRunContext(ctx, e.backend, append(append([]string(nil), options.DryRun...), deletion.DryRun...)); err != nil {
		return nil, err
	}
	key := fsm.PodKey(genericapirequest.NamespaceValue(ctx), name)
	if _, err := propose(ctx, e.backend, &fsm.EvictPod{Key: key, Precondition: pre, GraceSeconds: deletion.GracePeriodSeconds}); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func dryRunContext(ctx context.Context, backend Backend, flags []string) (context.Context, error) {
	if !dryrun.IsDryRun(flags) {
		return ctx, nil
	}
	return withDryRun(ctx, backend)
}

func notImplemented(what string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotImplemented, Reason: "NotImplemented",
		Message: fmt.Sprintf("this version of Berth does not support %s", what),
	}}
}
