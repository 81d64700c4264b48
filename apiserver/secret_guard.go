package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/berth-dev/berth/access"
)

// secretGuard is an admission plugin: a pod, or a template of pods, that refers
// to a secret is written by those who may read the namespace's secrets. Or
// whoever may not would run a pod that tells. Controllers make what follows from a
// template, whose writer was asked.
type secretGuard struct{}

var _ admission.ValidationInterface = secretGuard{}

// Handles implements admission.Interface.
func (secretGuard) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Validate implements admission.ValidationInterface.
func (secretGuard) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	spec := podSpecOf(a.GetObject())
	if spec == nil || isController(a.GetUserInfo()) {
		return nil
	}
	secret := secretIn(spec)
	if secret == "" {
		return nil
	}
	if old := podSpecOf(a.GetOldObject()); old != nil && equality.Semantic.DeepEqual(old, spec) {
		return nil // labels, scale and the like do not make it tell
	}
	if yes, err := mayReadSecrets(ctx, a.GetNamespace()); yes || err != nil {
		return err
	}
	return admission.NewForbidden(a, fmt.Errorf("it refers to the secret %q, and User %q cannot get resource \"secrets\" in API group \"\" in the namespace %q",
		secret, a.GetUserInfo().GetName(), a.GetNamespace()))
}

// secretIn is a secret that a pod refers to; empty: there is none.
func secretIn(spec *core.PodSpec) string {
	var secret string
	podutil.VisitPodSecretNames(&core.Pod{Spec: *spec}, func(name string) bool {
		secret = name
		return false
	}, podutil.AllContainers)
	return secret
}

// podSpecOf is what pods are made of, nil for objects of which none are.
func podSpecOf(obj runtime.Object) *core.PodSpec {
	if pod, ok := obj.(*core.Pod); ok {
		return &pod.Spec
	}
	if template, _ := podTemplateOf(obj); template != nil {
		return &template.Spec
	}
	return nil
}

// revisionGuard is an admission plugin: revisions of StatefulSets and DaemonSets, which hold templates that were
// asked about when they were written, are written by controllers, whatever roles say, and so is which of them a StatefulSet's pods are of. Nor is a Deployment's controller asked to
// write another revision's template in its own name.
type revisionGuard struct{}

var _ admission.ValidationInterface = revisionGuard{}

// Handles implements admission.Interface.
func (revisionGuard) Handles(o admission.Operation) bool { return secretGuard{}.Handles(o) }

// Validate implements admission.ValidationInterface.
func (revisionGuard) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if isController(a.GetUserInfo()) || slices.Contains(groupsOf(a.GetUserInfo()), access.Masters) {
		return nil
	}
	if a.GetResource().GroupResource() == apps.Resource("controllerrevisions") {
		return admission.NewForbidden(a, errors.New("revisions hold templates of pods; controllers and system:masters write them"))
	}
	if now, ok := a.GetObject().(*apps.StatefulSet); ok {
		if old, ok := a.GetOldObject().(*apps.StatefulSet); ok && old != nil && !sameRevisions(&now.Status, &old.Status) {
			return admission.NewForbidden(a, errors.New("status.currentRevision, status.updateRevision: pods are made of what they name; controllers and system:masters write them"))
		}
	}
	if d, ok := a.GetObject().(*apps.Deployment); ok && d.Spec.RollbackTo != nil && !hadRollback(a.GetOldObject()) {
		return admission.NewForbidden(a, fmt.Errorf("metadata.annotations[%s]: its controller would write a template that nobody is asked about; write the template itself, as kubectl rollout undo does",
			appsv1.DeprecatedRollbackTo))
	}
	return nil
}

func sameRevisions(a, b *apps.StatefulSetStatus) bool {
	return a.CurrentRevision == b.CurrentRevision && a.UpdateRevision == b.UpdateRevision
}

// hadRollback: the annotation was there before, and its controller takes it away.
func hadRollback(old runtime.Object) bool {
	d, ok := old.(*apps.Deployment)
	return ok && d != nil && d.Spec.RollbackTo != nil
}
