package apiserver

import (
	"fmt"
	"net"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
)

// ResolveService finds what is behind a service, as it is by a view.
func ResolveService(v *fsm.View, namespace, name string, port int32) (*url.URL, error) {
	return serviceEndpoints{func() *fsm.View { return v }}.ResolveEndpoint(namespace, name, port)
}

// serviceEndpoints finds what is behind a service that converts custom objects: one of its
// ready pods, since addresses of services mean something on nodes alone.
type serviceEndpoints struct{ view func() *fsm.View }

// ResolveEndpoint implements webhook.ServiceResolver.
func (s serviceEndpoints) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	v := s.view()
	row, ok := v.Objects.Get(fsm.ObjectKey("services", namespace, name))
	if !ok {
		return nil, fmt.Errorf("there is no service %s in the namespace %s", name, namespace)
	}
	var named *corev1.ServicePort
	ports := row.Value.(*corev1.Service).Spec.Ports
	for i := range ports {
		if ports[i].Port == port {
			named = &ports[i]
		}
	}
	if named == nil {
		return nil, fmt.Errorf("the service %s/%s has no port %d", namespace, name, port)
	}
	if row, ok := v.Objects.Get(fsm.ObjectKey("endpoints", namespace, name)); ok {
		for _, subset := range row.Value.(*corev1.Endpoints).Subsets {
			for _, p := range subset.Ports {
				if p.Name == named.Name && len(subset.Addresses) > 0 {
					return &url.URL{Scheme: "https", Host: net.JoinHostPort(subset.Addresses[0].IP, strconv.Itoa(int(p.Port)))}, nil
				}
			}
		}
	}
	return nil, fmt.Errorf("the service %s/%s has no ready pod", namespace, name)
}
