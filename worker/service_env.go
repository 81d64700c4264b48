package worker

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// maxServiceLinks is how many services a container's environment tells of. More would not fit into what the kernel lets
// a program have.
const maxServiceLinks = 1000

// serviceVariables are the environment variables that tell of services: of the API for every container, and of those of
// the pod's namespace unless the pod does not want it (enableServiceLinks). Services without an address have none.
func (r *resolver) serviceVariables(ctx context.Context) (order []string, values map[string]string, err error) {
	values = map[string]string{}
	set := func(name, value string) {
		if _, ok := values[name]; !ok {
			order = append(order, name)
		}
		values[name] = value
	}
	if r.apiHost != "" {
		port, err := strconv.ParseInt(r.apiPort, 10, 32)
		if err != nil {
			return nil, nil, fmt.Errorf("the port of the API: %w", err)
		}
		linkService(set, "kubernetes", r.apiHost, []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: int32(port)}})
	}
	if isStatic(r.pod.UID) { // it does not wait for what the servers know
		return order, values, nil
	}
	if links := r.pod.Spec.EnableServiceLinks; links != nil && !*links || r.getter == nil {
		return order, values, nil
	}
	services, err := r.getter.Services(ctx, r.pod.Namespace)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the services of namespace %s: %w", r.pod.Namespace, err)
	}
	if len(services) > maxServiceLinks {
		return nil, nil, fmt.Errorf("the namespace has %d services with addresses, and an environment tells of %d at most: "+
			"set spec.enableServiceLinks to false", len(services), maxServiceLinks)
	}
	for i := range services {
		s := &services[i]
		if s.Name == "kubernetes" && s.Namespace == corev1.NamespaceDefault && r.apiHost != "" {
			continue // told already, where the pod reaches it
		}
		linkService(set, s.Name, s.Spec.ClusterIP, s.Spec.Ports)
	}
	return order, values, nil
}

// linkService sets what Kubernetes sets for one service.
func linkService(set func(name, value string), service, host string, ports []corev1.ServicePort) {
	if len(ports) == 0 {
		return
	}
	prefix := variableName(service)
	set(prefix+"_SERVICE_HOST", host)
	set(prefix+"_SERVICE_PORT", strconv.Itoa(int(ports[0].Port)))
	for i := range ports {
		if ports[i].Name != "" {
			set(prefix+"_SERVICE_PORT_"+variableName(ports[i].Name), strconv.Itoa(int(ports[i].Port)))
		}
	}
	for i := range ports {
		port, protocol := strconv.Itoa(int(ports[i].Port)), string(ports[i].Protocol)
		url := strings.ToLower(protocol) + "://" + net.JoinHostPort(host, port)
		if i == 0 {
			set(prefix+"_PORT", url)
		}
		one := prefix + "_PORT_" + port + "_" + strings.ToUpper(protocol)
		set(one, url)
		set(one+"_PROTO", strings.ToLower(protocol))
		set(one+"_PORT", port)
		set(one+"_ADDR", host)
	}
}

func variableName(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
