package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
)

// nodeCreation is upstream's strategy together with what Kubernetes does to new
// nodes in admission (TaintNodesByCondition): no pod goes to one before its status
// says that it is ready. The taint is taken away by the leader (controller.NodeLifecycle).
type nodeCreation struct{ rest.RESTCreateStrategy }

// PrepareForCreate implements rest.RESTCreateStrategy.
func (s nodeCreation) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	s.RESTCreateStrategy.PrepareForCreate(ctx, obj)
	node := obj.(*core.Node)
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == core.NodeReady && c.Status == core.ConditionTrue {
			return
		}
	}
	for _, t := range node.Spec.Taints {
		if t.Key == corev1.TaintNodeNotReady && t.Effect == core.TaintEffectNoSchedule {
			return
		}
	}
	node.Spec.Taints = append(node.Spec.Taints, core.Taint{Key: corev1.TaintNodeNotReady, Effect: core.TaintEffectNoSchedule})
}
