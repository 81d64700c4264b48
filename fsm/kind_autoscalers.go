package fsm

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"github.com/berth-dev/berth/codec"
)

// Autoscalers is the resource of what scales workloads by what their pods use.
const Autoscalers = "horizontalpodautoscalers"

// SinceAutoscalers is the version of the rules that brought them.
const SinceAutoscalers = 13

func autoscalerKind() ObjectKind {
	return ObjectKind{
		Group: autoscalingv2.GroupName, Resource: Autoscalers, Kind: "HorizontalPodAutoscaler", Since: SinceAutoscalers,
		New: func() codec.Object { return new(autoscalingv2.HorizontalPodAutoscaler) },
	}
}
