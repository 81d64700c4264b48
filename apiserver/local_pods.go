package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/berth-dev/berth/apiserver/roles"
	"github.com/berth-dev/berth/fsm"
)

// localPodTimeout is how long a write of a local part may take: as long as upstream gives a request.
const localPodTimeout = 34 * time.Second

// LocalPods writes pods for a part of this process that writes many. What a request is asked it is asked too (its rights, admission,
// validation), by the same code; what it saves is the way of a request's bytes, and the record of who wrote which field, which pods of
// ReplicaSets have not either.
type LocalPods struct {
	server *Server
	who    user.Info
}

// LocalPods is that for whom Local would make requests; nil if each has to be one, because an account is kept of them.
func (s *Server) LocalPods(name string, groups ...string) *LocalPods {
	if s.trail != nil {
		return nil
	}
	return &LocalPods{s, &user.DefaultInfo{Name: name, Groups: groups}}
}

// Create makes a pod, and gives it as it is stored.
func (p *LocalPods) Create(ctx context.Context, namespace string, in *corev1.Pod) (out *corev1.Pod, err error) {
	err = p.do(ctx, namespace, "", "create", func(ctx context.Context) (err error) {
		out, err = p.create(ctx, namespace, in.DeepCopy())
		return err
	})
	return out, err
}

func (p *LocalPods) create(ctx context.Context, namespace string, in *corev1.Pod) (*corev1.Pod, error) {
	obj, err := defaulted[core.Pod](in)
	if err != nil {
		return nil, err
	}
	rest.WipeObjectMetaSystemFields(obj)
	if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(namespace, obj); err != nil {
		return nil, err
	}
	options, chain := &metav1.CreateOptions{}, p.server.admission.Interface
	asked := admission.NewAttributesRecord(obj, nil, corev1.SchemeGroupVersion.WithKind("Pod"), namespace, obj.Name,
		corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, options, false, p.who)
	kinds := admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
	if err := chain.(admission.MutationInterface).Admit(ctx, asked, kinds); err != nil {
		return nil, err
	}
	made, err := p.server.pods.Create(ctx, obj, rest.AdmissionToValidateObjectFunc(chain, asked, kinds), options)
	if err != nil {
		return nil, err
	}
	return versioned[corev1.Pod](made)
}

// RemoveFinalizers takes finalizers off a pod; done is false, and nothing is, where that has to be a request: somebody may have to be asked
// about it, or a server would not know the command.
func (p *LocalPods) RemoveFinalizers(ctx context.Context, namespace, name string, finalizers []string) (out *corev1.Pod, done bool, err error) {
	if v := p.server.config.Backend.View(); v.Version() < fsm.SinceRelease || asksAboutPods(v, admissionv1.Update) {
		return nil, false, nil
	}
	err = p.do(ctx, namespace, name, "patch", func(ctx context.Context) error {
		result, err := propose(ctx, p.server.config.Backend, &fsm.ReleasePod{Key: fsm.PodKey(namespace, name), Finalizers: finalizers})
		out, _ = result.Object.(*corev1.Pod) // as it is stored: nobody changes it
		return err
	})
	return out, true, err
}

// do writes, once the API is served, if whoever writes may. A panic is what it is for a request: told, counted, and the write's error.
func (p *LocalPods) do(ctx context.Context, namespace, name, verb string, write func(ctx context.Context) error) (err error) {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.server.prepared:
	}
	rights := p.server.standing.rights
	ctx = withClass(roles.OncePerRequest(context.WithValue(ctx, rightsKey{}, rights)))
	ctx = genericapirequest.WithNamespace(genericapirequest.WithUser(ctx, p.who), namespace)
	decision, why, err := rights.Authorize(ctx, authorizer.AttributesRecord{
		User: p.who, Verb: verb, APIVersion: "v1", Resource: "pods", Namespace: namespace, Name: name, ResourceRequest: true,
	})
	if err != nil {
		return err
	}
	if decision != authorizer.DecisionAllow {
		return apierrors.NewForbidden(corev1.Resource("pods"), name, fmt.Errorf("%s may not %s it: %s", p.who.GetName(), verb, why))
	}
	ctx, cancel := context.WithTimeout(ctx, localPodTimeout)
	defer cancel()
	return p.server.config.Guard.Call("a write of pods", errBrokenOff, func() error { return write(ctx) })
}

var errBrokenOff error = apierrors.NewInternalError(errors.New("the write was broken off by a mistake of Berth's, which its log tells"))
