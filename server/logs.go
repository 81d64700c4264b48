package server

import (
	"context"
	"errors"
	"io"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/rpc"
)

// logs opens containers' logs through the worker's own connection, whichever
// server holds it, or through the port of the node's kubelet (apiserver.Logs).
type logs struct{ *Server }

// Open implements apiserver.Logs.
func (l logs) Open(ctx context.Context, pod *corev1.Pod, container string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
	if pod.Spec.NodeName == "" {
		return nil, noHost(pod)
	}
	switch k, err := l.kubeletOf(pod.Spec.NodeName); {
	case err != nil:
		return nil, err
	case k != nil:
		return l.kubeletLog(ctx, k, pod, container, o)
	}
	r := &rpc.LogsRequest{
		Namespace: pod.Namespace, Pod: pod.Name, PodUID: string(pod.UID), Container: container,
		Follow: o.Follow, Previous: o.Previous, Timestamps: o.Timestamps,
		TailLines: o.TailLines, SinceSeconds: o.SinceSeconds, LimitBytes: o.LimitBytes,
	}
	if o.SinceTime != nil {
		at := o.SinceTime.UnixNano()
		r.SinceTimeUnixNano = &at
	}
	body, err := r.Encode()
	if err != nil {
		return nil, err
	}
	tunnel, err := l.openTunnel(ctx, pod.Spec.NodeName, rpc.KindLogs, body)
	if err != nil {
		return nil, err
	}
	return logReader{tunnel, pod.Spec.NodeName}, nil
}

// logReader gives the worker's refusals the form of the API's.
type logReader struct {
	*rpc.Tunnel
	node string
}

func (r logReader) Read(b []byte) (int, error) {
	n, err := r.Tunnel.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = tunnelError(r.node, err)
	}
	return n, err
}
