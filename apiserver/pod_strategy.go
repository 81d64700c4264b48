package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

const (
	// defaultServiceAccount is the one that every namespace has.
	defaultServiceAccount = "default"
	// defaultTolerationSeconds is how long a pod stays on a lost node unless it
	// says otherwise (AD8).
	defaultTolerationSeconds = 300
)

// podCreation is upstream's strategy together with what Kubernetes does to new
// pods in admission and what needs no other object.
type podCreation struct {
	rest.RESTCreateStrategy
	view func() *fsm.View
}

// PrepareForCreate implements rest.RESTCreateStrategy.
func (s podCreation) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	s.RESTCreateStrategy.PrepareForCreate(ctx, obj)
	completePod(s.view(), genericapirequest.NamespaceValue(ctx), obj.(*core.Pod))
}

// completePod fills in what a new pod does not say. It may be called again: who was asked since
// may have added containers.
func completePod(view *fsm.View, namespace string, pod *core.Pod) {
	if _, mirrored := pod.Annotations[corev1.MirrorPodAnnotationKey]; pod.Spec.ServiceAccountName == "" && !mirrored {
		pod.Spec.ServiceAccountName = defaultServiceAccount
	}
	tolerateLostNode(pod)
	mountAccount(view, namespace, pod)
}

// podDefaults is an admission plugin that does so before others are asked about the pod.
type podDefaults struct{ view func() *fsm.View }

var _ admission.MutationInterface = podDefaults{}

// Handles implements admission.Interface.
func (podDefaults) Handles(o admission.Operation) bool { return o == admission.Create }

// Admit implements admission.MutationInterface.
func (d podDefaults) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if pod, ok := a.GetObject().(*core.Pod); ok && a.GetSubresource() == "" {
		completePod(d.view(), a.GetNamespace(), pod)
	}
	return nil
}

// Validate implements rest.RESTCreateStrategy.
func (s podCreation) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return append(s.RESTCreateStrategy.Validate(ctx, obj), model.ValidateDisruptionPolicy(metaOf(obj).GetAnnotations())...)
}

// podChange is the same for changed pods.
type podChange struct{ rest.RESTUpdateStrategy }

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (s podChange) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.RESTUpdateStrategy.PrepareForUpdate(ctx, obj, old)
	pod, before := obj.(*core.Pod), old.(*core.Pod)
	// AD4: whoever sends the manifest again does not take the priority away.
	if pod.Spec.Priority == nil {
		pod.Spec.Priority = before.Spec.Priority
	}
	if pod.Spec.PreemptionPolicy == nil {
		pod.Spec.PreemptionPolicy = before.Spec.PreemptionPolicy
	}
	tolerateLostNode(pod)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s podChange) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old)
	now, before := metaOf(obj).GetAnnotations(), metaOf(old).GetAnnotations()
	if now[model.DisruptionPolicyAnnotation] == before[model.DisruptionPolicyAnnotation] {
		return errs // a controller's template may have brought it
	}
	return append(errs, model.ValidateDisruptionPolicy(now)...)
}

// tolerateLostNode adds the default tolerations (AD8), unless the pod has its
// own for the same taint.
func tolerateLostNode(pod *core.Pod) {
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if tolerates(pod, taint) {
			continue
		}
		seconds := int64(defaultTolerationSeconds)
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, core.Toleration{
			Key: taint, Operator: core.TolerationOpExists, Effect: core.TaintEffectNoExecute, TolerationSeconds: &seconds,
		})
	}
}

func tolerates(pod *core.Pod, taint string) bool {
	for _, t := range pod.Spec.Tolerations {
		if (t.Key == taint || t.Key == "") && (t.Effect == core.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
