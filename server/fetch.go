package server

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/apiserver/noderights"
	"github.com/berth-dev/berth/apiserver/tokens"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/store"
)

// WorkerFetch implements rpc.WorkerHandler: a worker may read the config maps,
// secrets, service accounts and runtime classes that the pods on its node refer
// to, and no others.
func (s *Server) WorkerFetch(ctx context.Context, r *rpc.FetchRequest) (*rpc.FetchResponse, error) {
	leave, err := s.shares.waitFetch(ctx, r)
	if err != nil {
		return nil, err
	}
	defer leave()
	answer, err := s.fetched(ctx, r)
	if err != nil {
		return nil, err
	}
	return answer, s.shares.waitFetched(ctx, r.Node, len(answer.Object))
}

// fetched answers a worker's question for an object.
func (s *Server) fetched(ctx context.Context, r *rpc.FetchRequest) (*rpc.FetchResponse, error) {
	view := s.state.View()
	if r.Resource == services && r.Name == "" {
		return linkedServices(view, r, s.config.Services)
	}
	if r.Resource == fsm.PersistentVolumes && r.Name == "" {
		return s.volumesToGo(r)
	}
	if r.Gone {
		return new(rpc.FetchResponse), s.volumeGone(ctx, view, r)
	}
	if _, ok := view.PersistentVolume(r.Name); r.Resource == fsm.PersistentVolumes && !ok {
		return nil, fmt.Errorf("%w: %s %s", rpc.ErrNotFound, r.Resource, r.Name)
	}
	if !refersTo(view, r) {
		return nil, fmt.Errorf("%w: no pod on node %s refers to %s %s/%s", rpc.ErrForbidden, r.Node, r.Resource, r.Namespace, r.Name)
	}
	followed := false
	if r.Follow && isFollowed(r.Resource) {
		// The state is read after this: no change falls between.
		followed = s.rpc.Hub.Follow(r.Node, rpc.ObjectRef{Resource: r.Resource, Namespace: r.Namespace, Name: r.Name})
		view = s.state.View()
	}
	o, ok := view.Objects.Get(fsm.ObjectKey(r.Resource, r.Namespace, r.Name))
	if !ok {
		return nil, fmt.Errorf("%w: %s %s/%s", rpc.ErrNotFound, r.Resource, r.Namespace, r.Name)
	}
	revision, _ := strconv.ParseInt(o.Value.GetResourceVersion(), 10, 64) // the state's own
	if r.Have != 0 && r.Have == revision {
		return &rpc.FetchResponse{Revision: revision, Unchanged: true, Followed: followed}, nil
	}
	opened, err := s.vault.Open(o)
	if err != nil {
		return nil, err // the worker asks again, perhaps another server
	}
	raw, err := opened.Value.Marshal()
	if err != nil {
		return nil, err
	}
	if r.Have != 0 {
		// It changed for all who follow it at once; a pod that starts does not wait.
		if err := s.refetched.WaitN(ctx, min(len(raw), refetchedAtOnce)); err != nil {
			return nil, fmt.Errorf("%w: too much has changed that workers follow: %w", rpc.ErrBusy, err)
		}
	}
	return &rpc.FetchResponse{Object: raw, Revision: revision, Followed: followed}, nil
}

const (
	// refetchedPerSecond and refetchedAtOnce bound, in bytes, what workers are given
	// again of objects that have changed. Who waits gets the newest.
	refetchedPerSecond, refetchedAtOnce = 32 << 20, 64 << 20
)

// isFollowed: what pods mount and see change.
func isFollowed(resource string) bool { return resource == "configmaps" || resource == "secrets" }

// tellFollowers tells the workers that follow an object of a change.
func (s *Server) tellFollowers(c *store.Change) bool {
	o, ok := c.New.(*fsm.Object)
	if !ok || o == nil {
		if o, ok = c.Old.(*fsm.Object); !ok || o == nil {
			return false
		}
	}
	s.endRevoked(o)
	if isCarried(o.Resource) && s.rpc.Hub.ServicesWanted() {
		s.pushService(c, o)
	}
	if volume, ok := o.Value.(*corev1.PersistentVolume); ok {
		if node := model.LocalVolumeNode(volume); node != "" {
			s.rpc.Hub.ObjectChanged(rpc.ObjectRef{Resource: fsm.PersistentVolumes, Namespace: node})
		}
	}
	if isFollowed(o.Resource) {
		s.rpc.Hub.ObjectChanged(rpc.ObjectRef{Resource: o.Resource, Namespace: o.Value.GetNamespace(), Name: o.Value.GetName()})
	}
	return true
}

// WorkerToken implements rpc.WorkerHandler: a worker may have those tokens that
// the pods on its node mount (NodeRestriction's rule), and no others.
func (s *Server) WorkerToken(ctx context.Context, r *rpc.TokenRequest) (*rpc.TokenResponse, error) {
	if n := len(r.Namespace) + len(r.Pod) + len(r.PodUID) + len(r.Audience); n > maxTokenBytes {
		return nil, fmt.Errorf("%w: what worker %s says of the token that it asks for has %d bytes", rpc.ErrInvalid, r.Node, n)
	}
	if err := s.shares.waitToken(ctx, r.Node); err != nil {
		return nil, err
	}
	pod, ok := s.state.View().Pods.Get(fsm.PodKey(r.Namespace, r.Pod))
	if !ok || string(pod.UID) != r.PodUID || pod.Spec.NodeName != r.Node || model.Terminal(pod) {
		return nil, fmt.Errorf("%w: no pod %s/%s of that UID is on node %s", rpc.ErrForbidden, r.Namespace, r.Pod, r.Node)
	}
	if !mountsToken(&pod.Spec, r) {
		return nil, fmt.Errorf("%w: pod %s/%s mounts no token for the audience %q that is good for %d seconds",
			rpc.ErrForbidden, r.Namespace, r.Pod, r.Audience, r.ExpirationSeconds)
	}
	token, life, err := s.accounts.ForPod(ctx, tokens.Request{Pod: pod, Audience: r.Audience, ExpirationSeconds: r.ExpirationSeconds})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: %w", rpc.ErrNotFound, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", rpc.ErrBusy, err)
	}
	return &rpc.TokenResponse{Token: token, LifeSeconds: int64(life.Seconds())}, nil
}

// maxTokenBytes bounds the names and the audience in a question for a token.
const maxTokenBytes = 16 << 10

func mountsToken(spec *corev1.PodSpec, r *rpc.TokenRequest) bool {
	for i := range spec.Volumes {
		p := spec.Volumes[i].Projected
		if p == nil {
			continue
		}
		for j := range p.Sources {
			t := p.Sources[j].ServiceAccountToken
			if t != nil && t.Audience == r.Audience && t.ExpirationSeconds != nil && *t.ExpirationSeconds == r.ExpirationSeconds {
				return true
			}
		}
	}
	return false
}

// refersTo: what Kubernetes' agents may read, a worker may. Beyond it, it keeps the volumes of its node, and
// what its pods name here and not there.
func refersTo(view *fsm.View, r *rpc.FetchRequest) bool {
	if volume, ok := view.PersistentVolume(r.Name); r.Resource == fsm.PersistentVolumes && ok && r.Namespace == "" && model.LocalVolumeNode(volume) == r.Node {
		return true
	}
	if noderights.Needs(view, r.Node, r.Resource, r.Namespace, r.Name) {
		return true
	}
	found := false
	view.PodsOnNode(r.Node, func(pod *corev1.Pod) bool {
		switch r.Resource {
		case "runtimeclasses":
			found = r.Namespace == "" && pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName == r.Name
		case noderights.Secrets:
			found = pod.Namespace == r.Namespace && pullsWith(view, pod, r.Name)
		default:
			return false
		}
		return !found
	})
	return found
}

// volumesToGo are the volumes of which nothing is to be left on a worker's node. They are followed all together: whatever
// happens to a volume of the node, its worker asks again.
func (s *Server) volumesToGo(r *rpc.FetchRequest) (*rpc.FetchResponse, error) {
	if r.Namespace != r.Node {
		return nil, fmt.Errorf("%w: the volumes of node %q are not those of %s", rpc.ErrForbidden, r.Namespace, r.Node)
	}
	// The state is read after this: no change falls between.
	resp := &rpc.FetchResponse{Followed: r.Follow && s.rpc.Hub.Follow(r.Node, rpc.ObjectRef{Resource: r.Resource, Namespace: r.Node})}
	list := new(corev1.PersistentVolumeList)
	s.state.View().EndingVolumes(func(volume *corev1.PersistentVolume) bool {
		if model.LocalVolumeNode(volume) == r.Node && model.MayRemove(volume) {
			one := corev1.PersistentVolume{}
			one.Name = volume.Name
			list.Items = append(list.Items, one)
		}
		return len(list.Items) < maxVolumesToGo
	})
	var err error
	resp.Object, err = list.Marshal()
	return resp, err
}

// maxVolumesToGo bounds what one answer names: the next one names the others.
const maxVolumesToGo = 1000

// volumeGone lets a volume go of which nothing is on its node any more.
func (s *Server) volumeGone(ctx context.Context, view *fsm.View, r *rpc.FetchRequest) error {
	volume, ok := view.PersistentVolume(r.Name)
	if !ok || r.Resource != fsm.PersistentVolumes || model.LocalVolumeNode(volume) != r.Node || !model.MayRemove(volume) {
		return fmt.Errorf("%w: no volume %s that is to go is on node %s", rpc.ErrForbidden, r.Name, r.Node)
	}
	c, err := controller.LetGo(volume)
	if err != nil {
		return err
	}
	_, err = s.Propose(ctx, fsm.Proposal{User: workerUser(r.Node), Groups: workerGroups, Command: c})
	return err
}

const serviceAccounts, services = "serviceaccounts", "services"

// linkedServices are the services of a namespace that pods' environments tell of:
// those with an address behind which somebody is, as seen from the node. Those that services get
// here are told where they lead somewhere. A worker may have those of the namespaces of its pods.
func linkedServices(view *fsm.View, r *rpc.FetchRequest, ranges Services) (*rpc.FetchResponse, error) {
	found := false
	view.PodsOnNode(r.Node, func(pod *corev1.Pod) bool {
		found = pod.Namespace == r.Namespace
		return !found
	})
	if !found {
		return nil, fmt.Errorf("%w: no pod on node %s is in namespace %s", rpc.ErrForbidden, r.Node, r.Namespace)
	}
	list := &corev1.ServiceList{}
	view.Objects.Scan(fsm.ObjectKey(services, r.Namespace, ""), func(_ string, o *fsm.Object) bool {
		s := o.Value.(*corev1.Service)
		if ip := s.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone && (r.Carried || !isGiven(view, ranges, s)) {
			link := corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: s.Spec.Ports}}
			link.Namespace, link.Name = s.Namespace, s.Name
			list.Items = append(list.Items, link)
		}
		return len(list.Items) <= maxLinkedServices
	})
	raw, err := list.Marshal()
	if err != nil {
		return nil, err
	}
	return &rpc.FetchResponse{Object: raw}, nil
}

// maxLinkedServices is more than a worker puts into an environment, by one.
const maxLinkedServices = 1000

// pullsWith says whether a secret is for the images of a pod: the pod names it, or, where it names none, its service
// account does.
func pullsWith(view *fsm.View, pod *corev1.Pod, secret string) bool {
	refs := pod.Spec.ImagePullSecrets
	if len(refs) == 0 && pod.Spec.ServiceAccountName != "" {
		if o, ok := view.Objects.Get(fsm.ObjectKey(serviceAccounts, pod.Namespace, pod.Spec.ServiceAccountName)); ok {
			refs = o.Value.(*corev1.ServiceAccount).ImagePullSecrets
		}
	}
	return slices.ContainsFunc(refs, func(ref corev1.LocalObjectReference) bool { return ref.Name == secret })
}
