package apiserver

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"

	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install" // into Kubernetes' scheme

	"github.com/berth-dev/berth/fsm"
)

// flowGroup serves what says whose requests share what a server can answer at a time.
func (g *registry) flowGroup() (genericapiserver.APIGroupInfo, error) {
	schemas := description{
		kind:     inNoNamespace(plainKind[flowcontrol.FlowSchema, flowcontrolv1.FlowSchema](flowcontrol.Resource(fsm.FlowSchemas))),
		singular: "flowschema", version: flowcontrolv1.SchemeGroupVersion, table: kubernetesTable(),
		list: func() runtime.Object { return new(flowcontrol.FlowSchemaList) },
	}.by(flowschema.Strategy)
	levels := description{
		kind:     inNoNamespace(plainKind[flowcontrol.PriorityLevelConfiguration, flowcontrolv1.PriorityLevelConfiguration](flowcontrol.Resource(fsm.PriorityLevels))),
		singular: "prioritylevelconfiguration", version: flowcontrolv1.SchemeGroupVersion, table: kubernetesTable(),
		list: func() runtime.Object { return new(flowcontrol.PriorityLevelConfigurationList) },
	}.by(prioritylevelconfiguration.Strategy)
	s, err := g.resource(plain(schemas))
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	l, err := g.resource(plain(levels))
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	return groupOf(flowcontrolv1.SchemeGroupVersion, map[string]rest.Storage{
		fsm.FlowSchemas:                s,
		fsm.FlowSchemas + "/status":    partOf(s, flowschema.StatusStrategy),
		fsm.PriorityLevels:             l,
		fsm.PriorityLevels + "/status": partOf(l, prioritylevelconfiguration.StatusStrategy),
	}), nil
}
