package apiserver

import (
	"context"
	"errors"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/pod"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
)

// templatePods is who pods of ReplicaSets are made by, as Kubernetes says it.
var templatePods = &user.DefaultInfo{
	Name:   "system:controller:replicaset-controller",
	Groups: []string{user.AllAuthenticated, access.Controllers, access.ControllerGroup("replicaset-controller")},
}

// askedPod is what admission plugins are told of the pods of a template. They have no names yet.
func askedPod(pod *core.Pod) admission.Attributes {
	return admission.NewAttributesRecord(pod, nil, corev1.SchemeGroupVersion.WithKind("Pod"), pod.Namespace, "",
		corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, &metav1.CreateOptions{}, false, templatePods)
}

// admitTemplate asks about the pods of a ReplicaSet's template what needs nobody else.
func (c *admissionChain) admitTemplate(ctx context.Context, pod *core.Pod) error {
	return c.security.Validate(ctx, askedPod(pod), nil)
}

// AsksAboutPods says whether there is a policy or a webhook that may be about pods that are
// created. Where there is none, pods of templates are made without asking for each.
func (s *Server) AsksAboutPods() bool {
	return asksAboutPods(s.config.Backend.View(), admissionv1.Create)
}

// asksAboutPods says whether there is a policy or a webhook that may be about pods with which so much is done.
func asksAboutPods(v *fsm.View, operation admissionv1.OperationType) (asks bool) {
	v.AdmissionRules(func(rules []admissionv1.RuleWithOperations) bool {
		asks = rules == nil || slices.ContainsFunc(rules, func(r admissionv1.RuleWithOperations) bool { return isAboutPods(r, operation) })
		return !asks
	})
	return asks
}

func isAboutPods(r admissionv1.RuleWithOperations, operation admissionv1.OperationType) bool {
	return (slices.Contains(r.Operations, operation) || slices.Contains(r.Operations, admissionv1.OperationAll)) &&
		(slices.Contains(r.APIGroups, "") || slices.Contains(r.APIGroups, "*")) &&
		slices.ContainsFunc(r.Resources, func(name string) bool { return name == "pods" || name == "pods/*" || name == "*" || name == "*/*" })
}

const (
	// podsAskedAbout is how many pods of a template are asked about at most; the rest follows.
	podsAskedAbout = 64
	// podsAskedAtOnce is how many of them at a time.
	podsAskedAtOnce = 8
)

// AskAboutPods asks policies and webhooks about each of the pods that a command makes of a
// template, as if each were created by a request, and gives the commands that make those that
// were taken, as they are then. refusal is why others were not; nil: all were.
func (s *Server) AskAboutPods(ctx context.Context, c *fsm.AdmitPods) (commands []*fsm.AdmitPods, refusal error) {
	n := min(int(c.Count), podsAskedAbout)
	pods, errs := make([]*corev1.Pod, n), make([]error, n)
	template := owned(c)
	places := make(chan struct{}, podsAskedAtOnce)
	var asking guard.Group
	for i := range n {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			asking.Wait()
			return nil, ctx.Err()
		}
		asking.Go(func() {
			defer func() { <-places }()
			pods[i], errs[i] = s.admission.ask(ctx, template)
		})
	}
	asking.Wait()
	var written []string // as bytes, of each command's template
	for i, p := range pods {
		if errs[i] != nil {
			if refusal == nil {
				refusal = errs[i]
			}
			continue
		}
		raw, err := p.Marshal()
		if err != nil {
			return nil, err
		}
		if at := slices.Index(written, string(raw)); at >= 0 {
			commands[at].Count++
			continue
		}
		made := *c
		made.Template, made.Count = fsm.PodWire{Object: p}, 1
		written, commands = append(written, string(raw)), append(commands, &made)
	}
	return commands, refusal
}

// owned is the pod of a command's template with its workload as its controller, which is written
// where the pod is made.
func owned(command *fsm.AdmitPods) *corev1.Pod {
	template, owner := command.Template.Object, command.Owner
	if owner == nil {
		return template
	}
	kind, ok := fsm.KindOf(owner.Resource)
	if !ok {
		return template // it is refused where the pods are made
	}
	yes, out := true, template.DeepCopy()
	out.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: kind.Group + "/v1", Kind: kind.Kind, Name: owner.Name, UID: types.UID(owner.UID), Controller: &yes, BlockOwnerDeletion: &yes,
	}}
	return out
}

// ask asks everybody about one pod of a template that is otherwise complete.
func (c *admissionChain) ask(ctx context.Context, template *corev1.Pod) (*corev1.Pod, error) {
	o := admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
	namespace, owners := template.Namespace, template.OwnerReferences
	made, err := finish(ctx, template.DeepCopy(), podCreation{pod.Strategy, c.backend.View}, func(p *core.Pod) error {
		name := p.Name // it is drawn when the pod is made
		p.Name = ""
		err := c.Interface.(admission.MutationInterface).Admit(ctx, askedPod(p), o)
		p.Name = name
		return err
	})
	if err != nil {
		return nil, err
	}
	made.Name, made.UID, made.CreationTimestamp = "", "", metav1.Time{}
	if made.Namespace != namespace || made.GenerateName != template.GenerateName {
		return nil, apierrors.NewBadRequest("the pod that came back has another name or namespace")
	}
	made.OwnerReferences = owners
	checked := &core.Pod{}
	if err := legacyscheme.Scheme.Convert(made, checked, nil); err != nil {
		return nil, err
	}
	if err := c.Interface.(admission.ValidationInterface).Validate(ctx, askedPod(checked), o); err != nil {
		return nil, err
	}
	return made, nil
}

// RefusalOf is an error of the API as the result of a command that was not proposed.
func RefusalOf(err error) fsm.Result {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	return fsm.Result{Code: s.Code, Reason: s.Reason, Message: s.Message, Details: s.Details}
}
