package server

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/store"
)

const endpointSlices = "endpointslices"

// isCarried: workers that carry services are sent these.
func isCarried(resource string) bool { return resource == services || resource == endpointSlices }

// loadServices reads what workers that carry services are sent. What the change feed remembers of those
// that went spares workers that come from another server from being sent everything.
func (s *Server) loadServices() rpc.LoadedServices {
	view := s.state.View()
	out := rpc.LoadedServices{Revision: view.Revision()}
	out.Horizon, out.Gone = s.goneServices(out.Revision)
	for _, resource := range []string{services, endpointSlices} {
		view.Objects.Scan(resource+"/", func(_ string, o *fsm.Object) bool {
			revision, _ := strconv.ParseInt(o.Value.GetResourceVersion(), 10, 64) // the state's own
			if sent, ok := s.serviceObject(o); ok {
				out.Objects = append(out.Objects, rpc.ServiceRevision{ServiceObject: sent, Revision: revision})
			}
			return true
		})
	}
	return out
}

// goneServices are those that went until a revision, and since when it is known.
func (s *Server) goneServices(revision int64) (since int64, gone []rpc.ServiceRevision) {
	feed := s.state.Feed()
	since = feed.First()
	for at := since; at < revision; {
		changes, err := feed.After(at, pushBatch)
		if err != nil || len(changes) == 0 {
			return revision, nil // it has moved on
		}
		for i := range changes {
			c := &changes[i]
			at = c.Revision
			if o, ok := c.Old.(*fsm.Object); ok && o != nil && isGone(c) && isCarried(o.Resource) && at <= revision {
				gone = append(gone, rpc.ServiceRevision{ServiceObject: rpc.ServiceObject{ObjectRef: refOf(o)}, Revision: at})
			}
		}
	}
	return min(since, revision), gone
}

// isGone: the change, of a plain object, is its end.
func isGone(c *store.Change) bool {
	now, ok := c.New.(*fsm.Object)
	return !ok || now == nil
}

// pushService hands a change to the workers that carry services.
func (s *Server) pushService(c *store.Change, o *fsm.Object) {
	sent := rpc.ServiceObject{ObjectRef: refOf(o)}
	if !isGone(c) {
		var ok bool
		if sent, ok = s.serviceObject(o); !ok {
			return
		}
	}
	s.rpc.Hub.PutService(rpc.ServiceRevision{ServiceObject: sent, Revision: c.Revision})
}

func refOf(o *fsm.Object) rpc.ObjectRef {
	return rpc.ObjectRef{Resource: o.Resource, Namespace: o.Value.GetNamespace(), Name: o.Value.GetName()}
}

// serviceObject is an object as workers need it, without what is of use to others only.
func (s *Server) serviceObject(o *fsm.Object) (rpc.ServiceObject, bool) {
	var raw []byte
	var err error
	switch v := o.Value.(type) {
	case *corev1.Service:
		sent := &corev1.Service{ObjectMeta: lean(&v.ObjectMeta), Spec: v.Spec, Status: corev1.ServiceStatus{LoadBalancer: v.Status.LoadBalancer}}
		raw, err = sent.Marshal()
	case *discoveryv1.EndpointSlice:
		sent := &discoveryv1.EndpointSlice{
			ObjectMeta: lean(&v.ObjectMeta), AddressType: v.AddressType, Ports: v.Ports, Endpoints: make([]discoveryv1.Endpoint, len(v.Endpoints)),
		}
		for i := range v.Endpoints {
			e := &v.Endpoints[i]
			sent.Endpoints[i] = discoveryv1.Endpoint{
				Addresses: e.Addresses, Conditions: e.Conditions, Hostname: e.Hostname, NodeName: e.NodeName, Zone: e.Zone, Hints: e.Hints,
			}
		}
		raw, err = sent.Marshal()
	default:
		return rpc.ServiceObject{}, false
	}
	if err != nil {
		s.log.Error("workers can not be sent a service", "resource", o.Resource, "namespace", o.Value.GetNamespace(), "name", o.Value.GetName(), "error", err)
		return rpc.ServiceObject{}, false
	}
	return rpc.ServiceObject{ObjectRef: refOf(o), Object: raw}, true
}

// lean keeps of an object's metadata what says which service it is and how it is carried.
func lean(m *metav1.ObjectMeta) metav1.ObjectMeta {
	out := metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID}
	about := func(of map[string]string) map[string]string {
		var kept map[string]string
		for key, value := range of {
			if prefix, _, ok := strings.Cut(key, "/"); ok && (strings.HasSuffix(prefix, "kubernetes.io") || strings.HasSuffix(prefix, "berth.dev")) {
				if kept == nil {
					kept = map[string]string{}
				}
				kept[key] = value
			}
		}
		return kept
	}
	out.Labels, out.Annotations = about(m.Labels), about(m.Annotations)
	delete(out.Annotations, corev1.LastAppliedConfigAnnotation)
	return out
}

// topologyOf are the labels of a node by which endpoints are chosen.
func (s *Server) topologyOf(node string) map[string]string {
	n, ok := s.state.View().Nodes.Get(node)
	if !ok {
		return nil
	}
	out := map[string]string{}
	for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if value, ok := n.Labels[key]; ok {
			out[key] = value
		}
	}
	return out
}
