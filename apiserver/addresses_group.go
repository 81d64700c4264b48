package apiserver

import (
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"

	_ "k8s.io/kubernetes/pkg/apis/networking/install" // into Kubernetes' scheme

	"github.com/berth-dev/berth/fsm"
)

// networkingGroup serves the ranges that services get their addresses from, and the addresses
// that somebody has, which for services come and go with them in the state machine; and ingresses.
func (g *registry) networkingGroup() (genericapiserver.APIGroupInfo, error) {
	ranges := description{
		kind:     inNoNamespace(plainKind[networking.ServiceCIDR, networkingv1.ServiceCIDR](networking.Resource(fsm.ServiceCIDRs))),
		singular: "servicecidr", version: networkingv1.SchemeGroupVersion, table: kubernetesTable(),
		list: func() runtime.Object { return new(networking.ServiceCIDRList) },
	}.by(servicecidr.Strategy)
	addresses := description{
		kind:     inNoNamespace(plainKind[networking.IPAddress, networkingv1.IPAddress](networking.Resource(fsm.IPAddresses))),
		singular: "ipaddress", shortNames: []string{"ip"}, version: networkingv1.SchemeGroupVersion, table: kubernetesTable(),
		list: func() runtime.Object { return new(networking.IPAddressList) },
	}.by(ipaddress.Strategy)
	r, err := g.resource(plain(ranges))
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	a, err := g.resource(plain(addresses))
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	resources := map[string]rest.Storage{
		fsm.ServiceCIDRs:             r,
		fsm.ServiceCIDRs + "/status": partOf(r, servicecidr.StatusStrategy),
		fsm.IPAddresses:              a,
	}
	err = g.ingresses(resources)
	return groupOf(networkingv1.SchemeGroupVersion, resources), err
}
