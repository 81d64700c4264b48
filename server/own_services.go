package server

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-dev/berth/fsm"
)

const (
	// apiServiceName is the name of the service that stands for the cluster's API, in the namespace
	// default, and dnsServiceName of that which stands for names, in kube-system. Clients of Kubernetes, and
	// workers, take them for granted, and users their addresses: the first and the tenth.
	apiServiceName, dnsServiceName = "kubernetes", "kube-dns"
	apiServiceAddress              = 1
	dnsServiceAddress              = 10

	standardPort, dnsPort = 443, 53
	// ownServicesInterval is how often the leader looks whether they are as they are to be.
	ownServicesInterval = 2 * time.Second
)

// ownServices are the commands that make the cluster's own services what they are to be: they are
// made where they are not there, and the API's gets the address that it had none of.
func (s *Server) ownServices(v *fsm.View, now metav1.Time) ([]fsm.Command, error) {
	var out []fsm.Command
	put := func(service *corev1.Service, create bool) error {
		raw, err := service.Marshal()
		out = append(out, &fsm.PutObject{Resource: services, Raw: raw, Create: create})
		return err
	}
	address := func(offset int) string {
		if v.Version() < fsm.SinceServiceAddresses {
			return ""
		}
		first := s.config.Services.First()
		a := first.Addr()
		for range offset {
			a = a.Next()
		}
		if !first.Contains(a) || v.AddressTaken(a.String()) {
			return ""
		}
		return a.String()
	}
	meta := func(namespace, name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, UID: types.UID(uuid.NewUUID()), CreationTimestamp: now}
	}
	old, ok := v.Objects.Get(fsm.ObjectKey(services, corev1.NamespaceDefault, apiServiceName))
	switch at := address(apiServiceAddress); {
	case !ok:
		target := standardPort
		if _, port, err := net.SplitHostPort(s.config.HTTPAddr); err == nil {
			if n, err := strconv.Atoi(port); err == nil {
				target = n
			}
		}
		labels := map[string]string{"component": "apiserver", "provider": "kubernetes"}
		api := ownService(meta(corev1.NamespaceDefault, apiServiceName, labels), at,
			corev1.ServicePort{Name: "https", Protocol: corev1.ProtocolTCP, Port: standardPort, TargetPort: intstr.FromInt(target)})
		if err := put(api, true); err != nil {
			return nil, err
		}
	case at != "" && old.Value.(*corev1.Service).Spec.ClusterIP == corev1.ClusterIPNone:
		api := old.Value.(*corev1.Service).DeepCopy()
		giveAddress(&api.Spec, at)
		if err := put(api, false); err != nil {
			return nil, err
		}
	}
	if _, ok := v.Objects.Get(fsm.ObjectKey(services, metav1.NamespaceSystem, dnsServiceName)); !ok {
		if at := address(dnsServiceAddress); at != "" {
			labels := map[string]string{"k8s-app": dnsServiceName, "kubernetes.io/name": "CoreDNS"}
			names := ownService(meta(metav1.NamespaceSystem, dnsServiceName, labels), at,
				corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: dnsPort, TargetPort: intstr.FromInt(dnsPort)},
				corev1.ServicePort{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: dnsPort, TargetPort: intstr.FromInt(dnsPort)})
			if err := put(names, true); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// ownService is a service of the cluster's own; without an address it is headless.
func ownService(meta metav1.ObjectMeta, address string, ports ...corev1.ServicePort) *corev1.Service {
	single, cluster := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
	s := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone},
		SessionAffinity: corev1.ServiceAffinityNone, IPFamilyPolicy: &single, InternalTrafficPolicy: &cluster, Ports: ports,
	}}
	if address != "" {
		giveAddress(&s.Spec, address)
	}
	return s
}

func giveAddress(spec *corev1.ServiceSpec, address string) {
	spec.ClusterIP, spec.ClusterIPs, spec.IPFamilies = address, []string{address}, []corev1.IPFamily{corev1.IPv4Protocol}
	if netip.MustParseAddr(address).Is6() {
		spec.IPFamilies[0] = corev1.IPv6Protocol
	}
}

// keepOwnServices keeps the cluster's own services, and the endpoints of the API, while this server leads.
func (s *Server) keepOwnServices(ctx context.Context) {
	told, addresses := false, &addressKeeper{server: s}
	for ctx.Err() == nil {
		now := metav1.NewTime(s.node.Clock().Time())
		addresses.keep(ctx, s.state.View(), now)
		v := s.state.View()
		commands, err := s.ownServices(v, now)
		if err == nil {
			var of []fsm.Command
			of, err = s.apiEndpoints(v, now)
			commands = append(commands, of...)
		}
		if err != nil {
			s.log.Error("the cluster's own services can not be encoded", "error", err)
		}
		s.proposeAll(ctx, v, commands)
		if _, ok := v.Objects.Get(fsm.ObjectKey(services, metav1.NamespaceSystem, dnsServiceName)); !ok && len(commands) == 0 &&
			v.Version() >= fsm.SinceServiceAddresses && !told {
			told = true
			s.log.Warn("pods find no names of the cluster: another service has the address of kube-system/kube-dns, or the range has none",
				"range", s.config.Services.First(), "offset", dnsServiceAddress)
		}
		select {
		case <-ctx.Done():
		case <-time.After(ownServicesInterval):
		}
	}
}
