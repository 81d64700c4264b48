package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/apiserver/roles"
)

// localWriteTimeout is how long a write of a local part may take: as long as upstream gives a request.
const localWriteTimeout = 34 * time.Second

// localWriter writes for a part of this process that writes much. What a request is asked it is asked too (its rights, admission,
// validation), by the same code; what it saves is the way of a request's bytes, and the record of who wrote which field, which pods of
// ReplicaSets have not either.
type localWriter struct {
	server *Server
	who    user.Info
}

// localKind is what a localWriter writes: a kind of objects, or a part of them.
type localKind struct {
	kind     schema.GroupVersionKind
	resource schema.GroupVersionResource
	part     string // "": the whole
}

// write is what is asked of the rights of whoever writes such an object.
func (k *localKind) write(namespace, name, verb string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		Verb: verb, APIGroup: k.resource.Group, APIVersion: k.resource.Version, Resource: k.resource.Resource, Subresource: k.part,
		Namespace: namespace, Name: name, ResourceRequest: true,
	}
}

// asked is what admission is asked about.
func (k *localKind) asked(w *localWriter, obj, old runtime.Object, namespace, name string, does admission.Operation, options runtime.Object,
) admission.Attributes {
	return admission.NewAttributesRecord(obj, old, k.kind, namespace, name, k.resource, k.part, does, options, false, w.who)
}

// do writes, once the API is served, if whoever writes may. A panic is what it is for a request: told, counted, and the write's error.
func (w *localWriter) do(ctx context.Context, asked authorizer.AttributesRecord, write func(ctx context.Context) error) (err error) {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.server.prepared:
	}
	rights := w.server.standing.rights
	ctx = withClass(roles.OncePerRequest(context.WithValue(ctx, rightsKey{}, rights)))
	ctx = genericapirequest.WithNamespace(genericapirequest.WithUser(ctx, w.who), asked.Namespace)
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, Verb: asked.Verb, APIPrefix: "apis", APIGroup: asked.APIGroup, APIVersion: asked.APIVersion,
		Namespace: asked.Namespace, Resource: asked.Resource, Subresource: asked.Subresource, Name: asked.Name,
	})
	asked.User = w.who
	decision, why, err := rights.Authorize(ctx, asked)
	if err != nil {
		return err
	}
	if decision != authorizer.DecisionAllow {
		return apierrors.NewForbidden(schema.GroupResource{Group: asked.APIGroup, Resource: asked.Resource}, asked.Name,
			fmt.Errorf("%s may not %s it: %s", w.who.GetName(), asked.Verb, why))
	}
	ctx, cancel := context.WithTimeout(ctx, localWriteTimeout)
	defer cancel()
	return w.server.config.Guard.Call("a write of "+asked.Resource, errBrokenOff, func() error { return write(ctx) })
}

var errBrokenOff error = apierrors.NewInternalError(errors.New("the write was broken off by a mistake of Berth's, which its log tells"))

// pointer is how an object of the API is held.
type pointer[T any] interface {
	*T
	runtime.Object
}

// createLocally makes an object, and gives it as it is stored. in is the caller's own.
func createLocally[I any, V any, PI pointer[I], PV pointer[V]](ctx context.Context, w *localWriter, store rest.Creater, k localKind, namespace string, in PV,
) (PV, error) {
	obj, err := defaulted[I, PI](in)
	if err != nil {
		return nil, err
	}
	meta := metaOf(obj)
	rest.WipeObjectMetaSystemFields(meta)
	if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(namespace, meta); err != nil {
		return nil, err
	}
	options, chain := &metav1.CreateOptions{}, w.server.admission.Interface
	asked, kinds := k.asked(w, obj, nil, namespace, meta.GetName(), admission.Create, options), admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
	if err := chain.(admission.MutationInterface).Admit(ctx, asked, kinds); err != nil {
		return nil, err
	}
	made, err := store.Create(ctx, obj, rest.AdmissionToValidateObjectFunc(chain, asked, kinds), options)
	if err != nil {
		return nil, err
	}
	return versioned[V, PV](made)
}

// updateLocally changes an object, or a part of it, and gives it as it is stored. in is the caller's own.
func updateLocally[I any, V any, PI pointer[I], PV pointer[V]](ctx context.Context, w *localWriter, store rest.Updater, k localKind, namespace string, in PV,
) (PV, error) {
	obj, err := defaulted[I, PI](in)
	if err != nil {
		return nil, err
	}
	meta := metaOf(obj)
	if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(namespace, meta); err != nil {
		return nil, err
	}
	options, chain := &metav1.UpdateOptions{}, w.server.admission.Interface
	kinds := admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
	admit := func(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
		if metaOf(old).GetUID() == "" {
			return obj, nil // there is none, which the store says
		}
		asked := k.asked(w, obj, old, namespace, meta.GetName(), admission.Update, options)
		return obj, chain.(admission.MutationInterface).Admit(ctx, asked, kinds)
	}
	validate := rest.AdmissionToValidateObjectUpdateFunc(chain, k.asked(w, nil, nil, namespace, meta.GetName(), admission.Update, options), kinds)
	made, _, err := store.Update(ctx, meta.GetName(), rest.DefaultUpdatedObjectInfo(obj, admit), rest.ValidateAllObjectFunc, validate, false, options)
	if err != nil {
		return nil, err
	}
	return versioned[V, PV](made)
}
