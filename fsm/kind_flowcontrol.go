package fsm

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"github.com/berth-dev/berth/codec"
)

// The resources by which requests are told apart, and share what a server can answer at a time.
const (
	FlowSchemas    = "flowschemas"
	PriorityLevels = "prioritylevelconfigurations"
)

// SinceFlowControl is the version of the rules that brought them.
const SinceFlowControl = 15

// MaxFlowControls bounds the objects of each: every request is compared with every schema.
const MaxFlowControls = 512

func flowSchemaKind() ObjectKind {
	return ObjectKind{
		Group: flowcontrolv1.GroupName, Resource: FlowSchemas, Kind: "FlowSchema", ClusterScoped: true,
		Since: SinceFlowControl, MostInNamespace: MaxFlowControls, New: func() codec.Object { return new(flowcontrolv1.FlowSchema) },
	}
}

func priorityLevelKind() ObjectKind {
	return ObjectKind{
		Group: flowcontrolv1.GroupName, Resource: PriorityLevels, Kind: "PriorityLevelConfiguration", ClusterScoped: true,
		Since: SinceFlowControl, MostInNamespace: MaxFlowControls, New: func() codec.Object { return new(flowcontrolv1.PriorityLevelConfiguration) },
	}
}
