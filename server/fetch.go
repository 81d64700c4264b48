package server

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/rpc"
)

// WorkerFetch implements rpc.WorkerHandler: a worker may read the config maps,
// secrets, service accounts and runtime classes that the pods on its node refer
// to, and no others.
func (s *Server) WorkerFetch(_ context.Context, r *rpc.FetchRequest) (*rpc.FetchResponse, error) {
	view := s.state.View()
	if !refersTo(view, r) {
		return nil, fmt.Errorf("%w: no pod on node %s refers to %s %s/%s", rpc.ErrForbidden, r.Node, r.Resource, r.Namespace, r.Name)
	}
	o, ok := view.Objects.Get(fsm.ObjectKey(r.Resource, r.Namespace, r.Name))
	if !ok {
		return nil, fmt.Errorf("%w: %s %s/%s", rpc.ErrNotFound, r.Resource, r.Namespace, r.Name)
	}
	raw, err := o.Value.Marshal()
	if err != nil {
		return nil, err
	}
	return &rpc.FetchResponse{Object: raw}, nil
}

func refersTo(view *fsm.View, r *rpc.FetchRequest) bool {
	found := false
	view.PodsOnNode(r.Node, func(pod *corev1.Pod) bool {
		switch {
		case r.Resource == "runtimeclasses":
			found = r.Namespace == "" && pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName == r.Name
		case pod.Namespace != r.Namespace:
		case r.Resource == serviceAccounts:
			found = pod.Spec.ServiceAccountName == r.Name
		default:
			found = podRefersTo(&pod.Spec, r.Resource, r.Name) || r.Resource == "secrets" && pullsWith(view, pod, r.Name)
		}
		return !found
	})
	return found
}

const serviceAccounts = "serviceaccounts"

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

func podRefersTo(spec *corev1.PodSpec, resource, name string) bool {
	for i := range spec.Volumes {
		if volumeRefersTo(&spec.Volumes[i], resource, name) {
			return true
		}
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			if containerRefersTo(&containers[i], resource, name) {
				return true
			}
		}
	}
	return false
}

func volumeRefersTo(v *corev1.Volume, resource, name string) bool {
	if resource == "configmaps" && v.ConfigMap != nil && v.ConfigMap.Name == name ||
		resource == "secrets" && v.Secret != nil && v.Secret.SecretName == name {
		return true
	}
	if v.Projected == nil {
		return false
	}
	for _, p := range v.Projected.Sources {
		if resource == "configmaps" && p.ConfigMap != nil && p.ConfigMap.Name == name ||
			resource == "secrets" && p.Secret != nil && p.Secret.Name == name {
			return true
		}
	}
	return false
}

func containerRefersTo(c *corev1.Container, resource, name string) bool {
	for _, from := range c.EnvFrom {
		if resource == "configmaps" && from.ConfigMapRef != nil && from.ConfigMapRef.Name == name ||
			resource == "secrets" && from.SecretRef != nil && from.SecretRef.Name == name {
			return true
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		if ref := e.ValueFrom.ConfigMapKeyRef; resource == "configmaps" && ref != nil && ref.Name == name {
			return true
		}
		if ref := e.ValueFrom.SecretKeyRef; resource == "secrets" && ref != nil && ref.Name == name {
			return true
		}
	}
	return false
}
