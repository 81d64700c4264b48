package apiserver

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"

	"github.com/berth-dev/berth/fsm"
)

func limitRangeDescription() description {
	return description{
		kind:     plainKind[core.LimitRange, corev1.LimitRange](core.Resource(fsm.LimitRanges)),
		singular: "limitrange", shortNames: []string{"limits"}, version: corev1.SchemeGroupVersion,
		list:  func() runtime.Object { return new(core.LimitRangeList) },
		table: rest.NewDefaultTableConvertor(core.Resource(fsm.LimitRanges)), // of these kubectl shows no more
	}.by(limitrange.Strategy)
}

// limitRanges is Kubernetes' admission plugin over the state: new pods get the
// defaults of their namespace's limit ranges, and are refused for what those do not
// allow. It goes by this server's view, as Kubernetes goes by its caches.
type limitRanges struct{ view func() *fsm.View }

var (
	_ admission.MutationInterface   = limitRanges{}
	_ admission.ValidationInterface = limitRanges{}
)

// Handles implements admission.Interface: what a pod asks for changes later only where it is resized.
func (limitRanges) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Admit implements admission.MutationInterface.
func (l limitRanges) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return l.each(a, limitranger.PodMutateLimitFunc)
}

// Validate implements admission.ValidationInterface.
func (l limitRanges) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if claim, ok := a.GetObject().(*core.PersistentVolumeClaim); ok && a.GetSubresource() == "" && a.GetOperation() == admission.Create {
		for _, r := range l.view().LimitRangesOf(a.GetNamespace()) {
			if err := limitranger.PersistentVolumeClaimValidateLimitFunc(r, claim); err != nil {
				return admission.NewForbidden(a, err)
			}
		}
	}
	return l.each(a, limitranger.PodValidateLimitFunc)
}

func (l limitRanges) each(a admission.Attributes, f func(*corev1.LimitRange, *core.Pod) error) error {
	pod, ok := a.GetObject().(*core.Pod)
	if resize := a.GetSubresource() == "resize"; !ok || resize != (a.GetOperation() == admission.Update) || !resize && a.GetSubresource() != "" {
		return nil
	}
	for _, r := range l.view().LimitRangesOf(a.GetNamespace()) {
		if err := f(r, pod); err != nil {
			return admission.NewForbidden(a, err)
		}
	}
	return nil
}

// limitTemplate does the same to the pod of a template.
func limitTemplate(view *fsm.View, pod *core.Pod) error {
	ranges := view.LimitRangesOf(pod.Namespace)
	for _, f := range []func(*corev1.LimitRange, *core.Pod) error{limitranger.PodMutateLimitFunc, limitranger.PodValidateLimitFunc} {
		for _, r := range ranges {
			if err := f(r, pod); err != nil {
				name := pod.GenerateName
				if name == "" {
					name = pod.Name
				}
				return apierrors.NewForbidden(core.Resource("pods"), name, err)
			}
		}
	}
	return nil
}

// limitRange bounds a limit range: each of its amounts is compared with every
// container of a new pod.
func (l *limits) limitRange(path *field.Path, r *core.LimitRange) {
	l.count(path, len(r.Spec.Limits), maxLimits)
	for i := range r.Spec.Limits {
		item, at := &r.Spec.Limits[i], path.Index(i)
		for _, list := range []struct {
			name    string
			amounts core.ResourceList
		}{
			{"min", item.Min}, {"max", item.Max}, {"default", item.Default}, {"defaultRequest", item.DefaultRequest},
			{"maxLimitRequestRatio", item.MaxLimitRequestRatio},
		} {
			l.count(at.Child(list.name), len(list.amounts), maxResources)
			for _, name := range slices.Sorted(maps.Keys(list.amounts)) {
				if q := list.amounts[name]; q.Sign() < 0 { // upstream looks at what pods ask for alone
					l.ErrorList = append(l.ErrorList, field.Invalid(at.Child(list.name).Key(string(name)), q.String(), "must not be negative"))
				}
			}
		}
	}
}

const maxLimits = 16 // of one limit range: upstream knows three types
