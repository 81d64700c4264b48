package server

import (
	"context"
	"net"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/rpc"
)

// streams leads into pods through the worker's own connection, whichever server
// holds it, or through the port of the node's kubelet (apiserver.Streams).
type streams struct{ *Server }

// Open implements apiserver.Streams.
func (s streams) Open(ctx context.Context, pod *corev1.Pod, what, container string) (net.Conn, error) {
	if pod.Spec.NodeName == "" {
		return nil, noHost(pod)
	}
	if k, err := s.kubeletOf(pod.Spec.NodeName); k != nil || err != nil {
		return s.reachKubelet(ctx, k, err)
	}
	body, err := (&rpc.StreamRequest{PodUID: string(pod.UID), Container: container, What: what}).Encode()
	if err != nil {
		return nil, err
	}
	return s.openTunnel(ctx, pod.Spec.NodeName, rpc.KindStream, body)
}

// Dial implements apiserver.Streams.
func (s streams) Dial(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error) {
	if pod.Spec.NodeName == "" {
		return nil, noHost(pod)
	}
	switch k, err := s.kubeletOf(pod.Spec.NodeName); {
	case err != nil:
		return nil, err
	case k != nil:
		return s.kubeletForward(ctx, k, pod, port)
	}
	body, err := (&rpc.DialRequest{PodUID: string(pod.UID), Port: port}).Encode()
	if err != nil {
		return nil, err
	}
	return s.openTunnel(ctx, pod.Spec.NodeName, rpc.KindDial, body)
}

// nodes leads to workers through their own connections, and to kubelets (apiserver.Nodes).
type nodes struct{ *Server }

// Open implements apiserver.Nodes.
func (n nodes) Open(ctx context.Context, node string) (net.Conn, error) {
	if k, err := n.kubeletOf(node); k != nil || err != nil {
		return n.reachKubelet(ctx, k, err)
	}
	return n.openTunnel(ctx, node, rpc.KindNode, nil)
}
