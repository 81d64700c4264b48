package apiserver

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"

	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install" // into Kubernetes' scheme

	"github.com/berth-dev/berth/fsm"
)

// maxMetrics bounds what an autoscaler looks at: each is asked for at every round. maxPolicies
// bounds how it may scale, for either direction.
const maxMetrics, maxPolicies = 16, 16

// autoscalingGroup serves what scales workloads, in both of Kubernetes' versions: what the
// first one has no fields for is in annotations there.
func (g *registry) autoscalingGroup() (genericapiserver.APIGroupInfo, error) {
	resources := map[string]rest.Storage{}
	err := g.workload(resources, description{
		kind:     plainKind[autoscaling.HorizontalPodAutoscaler, autoscalingv2.HorizontalPodAutoscaler](autoscaling.Resource(fsm.Autoscalers)),
		singular: "horizontalpodautoscaler", shortNames: []string{"hpa"}, categories: []string{"all"}, version: autoscalingv2.SchemeGroupVersion,
		list: func() runtime.Object { return new(autoscaling.HorizontalPodAutoscalerList) },
	}.by(horizontalpodautoscaler.Strategy), horizontalpodautoscaler.StatusStrategy)
	info := groupOf(autoscalingv2.SchemeGroupVersion, resources)
	info.PrioritizedVersions = []schema.GroupVersion{autoscalingv2.SchemeGroupVersion, autoscalingv1.SchemeGroupVersion}
	info.VersionedResourcesStorageMap[autoscalingv1.SchemeGroupVersion.Version] = resources
	return info, err
}

func (l *limits) autoscaler(path *field.Path, a *autoscaling.HorizontalPodAutoscaler) {
	l.count(path.Child("metrics"), len(a.Spec.Metrics), maxMetrics)
	for i := range a.Spec.Metrics {
		m := &a.Spec.Metrics[i]
		at := path.Child("metrics").Index(i)
		if m.Object != nil {
			l.selector(at.Child("object", "metric", "selector"), m.Object.Metric.Selector)
		}
		if m.Pods != nil {
			l.selector(at.Child("pods", "metric", "selector"), m.Pods.Metric.Selector)
		}
		if m.External != nil {
			l.selector(at.Child("external", "metric", "selector"), m.External.Metric.Selector)
		}
	}
	if b := a.Spec.Behavior; b != nil {
		if b.ScaleUp != nil {
			l.count(path.Child("behavior", "scaleUp", "policies"), len(b.ScaleUp.Policies), maxPolicies)
		}
		if b.ScaleDown != nil {
			l.count(path.Child("behavior", "scaleDown", "policies"), len(b.ScaleDown.Policies), maxPolicies)
		}
	}
}
