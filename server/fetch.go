package server

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/rpc"
)

// WorkerFetch implements rpc.WorkerHandler: a worker may read the config maps
// and secrets that the pods on its node refer to, and no others.
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
		found = pod.Namespace == r.Namespace && podRefersTo(&pod.Spec, r.Resource, r.Name)
		return !found
	})
	return found
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
