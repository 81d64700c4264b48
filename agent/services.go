package agent

import (
	"context"
	"net/netip"
	"sync/atomic"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/worker/runtime/cri"
	"github.com/berth-dev/berth/worker/runtime/naming"
	"github.com/berth-dev/berth/worker/services"
)

// servicesAnnotation of a node says whether it carries services, and else why not.
const servicesAnnotation = "berth.dev/services"

// carriedServices is a node's part in services; nil does nothing.
type carriedServices struct {
	node *services.Node
	rt   atomic.Pointer[cri.Runtime]
}

// openServices opens the node's part in services, where it is to have one. Where nobody has asked for it, a machine that does
// not let it is none that cannot be a worker.
func openServices(c *WorkerConfig, link *uplink) error {
	if c.Services.Mode != "on" && (c.Services.Mode != "auto" || c.Runtime != "cri") {
		return nil
	}
	s := &carriedServices{}
	var ip netip.Addr
	if len(c.Node.Addresses) > 0 {
		ip, _ = netip.ParseAddr(c.Node.Addresses[0]) // a node without one carries all the same
	}
	said := "carried"
	node, err := services.Open(context.Background(), services.Options{
		Node: c.Node.Name, NodeIP: ip, Domain: c.Services.Domain, HasPod: s.hasPod, Resolvers: cri.ResolverFiles(),
		Registry: legacyregistry.Registerer(), Logger: c.Logger,
	})
	switch {
	case err == nil:
		s.node, link.services = node, s
	case c.Services.Mode == "on":
		return err
	default:
		said = "not carried: " + err.Error()
		c.Logger.Warn("this node does not carry services, and its pods find none by name", "reason", err)
	}
	if c.Node.Annotations == nil {
		c.Node.Annotations = map[string]string{}
	}
	c.Node.Annotations[servicesAnnotation] = said
	return nil
}

func (s *carriedServices) close() {
	if s != nil {
		s.node.Close()
	}
}

// pods says whose pods may ask for names.
func (s *carriedServices) pods(rt *cri.Runtime) {
	if s != nil {
		s.rt.Store(rt)
	}
}

func (s *carriedServices) hasPod(address string) bool {
	rt := s.rt.Load()
	return rt != nil && rt.HasAddress(address)
}

// clusterDNS is what the runtime is told of names.
func (s *carriedServices) clusterDNS() func(ctx context.Context) (*naming.ClusterDNS, error) {
	if s == nil {
		return nil
	}
	return func(ctx context.Context) (*naming.ClusterDNS, error) {
		servers, domain, err := s.node.Resolver(ctx)
		if err != nil || len(servers) == 0 {
			return nil, err
		}
		return &naming.ClusterDNS{Servers: servers, Domain: domain}, nil
	}
}

// Carry implements rpc.WorkerAgent.
func (u *uplink) Carry(s *rpc.Services) error {
	if u.services == nil {
		return nil // nobody has asked for them
	}
	d := services.Delta{Full: s.Full, Revision: s.Revision, Topology: s.Topology, Objects: make([]services.Object, len(s.Objects))}
	for i, o := range s.Objects {
		d.Objects[i] = services.Object{Resource: o.Resource, Namespace: o.Namespace, Name: o.Name, Raw: o.Object}
	}
	return u.services.node.Table.Take(d)
}
