package apiserver

import (
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	nodeapi "k8s.io/kubernetes/pkg/apis/node"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"

	_ "k8s.io/kubernetes/pkg/apis/node/install" // into Kubernetes' scheme
)

func runtimeClassKind() *kind {
	return inNoNamespace(plainKind[nodeapi.RuntimeClass, nodev1.RuntimeClass](nodeapi.Resource("runtimeclasses")))
}

// nodeGroup serves RuntimeClasses: what a pod that names one costs beyond its
// containers, and which nodes can run it.
func (g *registry) nodeGroup() (genericapiserver.APIGroupInfo, error) {
	r, err := g.resource(description{
		kind: runtimeClassKind(), singular: "runtimeclass",
		version: nodev1.SchemeGroupVersion, table: kubernetesTable(),
		list: func() runtime.Object { return new(nodeapi.RuntimeClassList) },
	}.by(runtimeclass.Strategy))
	return groupOf(nodev1.SchemeGroupVersion, map[string]rest.Storage{"runtimeclasses": r}), err
}
