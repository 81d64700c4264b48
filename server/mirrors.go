package server

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/rpc"
)

// maxMirrorBytes bounds what a worker says of a static pod.
const maxMirrorBytes = 1 << 20

// WorkerMirror implements rpc.WorkerHandler: a worker has objects in the API that show its static pods, and no others. They
// are made as everybody's pods are: whoever is asked about pods is asked about them.
func (s *Server) WorkerMirror(ctx context.Context, r *rpc.MirrorRequest) (*rpc.MirrorResponse, error) {
	leave, err := s.shares.waitMirror(ctx, r.Node)
	if err != nil {
		return nil, err
	}
	defer leave()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "http://" + s.config.Name, Transport: s.api.Local(workerUser(r.Node), access.Mirrors), QPS: -1, // nobody dials it
	})
	if err != nil {
		return nil, err
	}
	view := s.state.View()
	if len(r.Pod) == 0 {
		return new(rpc.MirrorResponse), s.removeMirror(ctx, view, client, r)
	}
	said := new(corev1.Pod)
	if len(r.Pod) > maxMirrorBytes {
		return nil, fmt.Errorf("%w: a static pod of node %s has more than %d bytes", rpc.ErrInvalid, r.Node, maxMirrorBytes)
	}
	if err := codec.UnmarshalForeign(r.Pod, said); err != nil {
		return nil, fmt.Errorf("%w: a static pod of node %s is none: %w", rpc.ErrInvalid, r.Node, err)
	}
	node, ok := view.Nodes.Get(r.Node)
	if !ok {
		return nil, fmt.Errorf("%w: node %s", rpc.ErrNotFound, r.Node)
	}
	pod, err := apiserver.MirrorOf(said, node)
	if err != nil {
		return nil, fmt.Errorf("%w: %s/%s mirrors no static pod of node %s: %w", rpc.ErrForbidden, said.Namespace, said.Name, r.Node, err)
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if there, ok := s.state.View().Pods.Get(fsm.PodKey(pod.Namespace, pod.Name)); ok && isMirrorOn(there, r.Node) {
			err = nil // the worker is told of it, and says whether it is the right one
		}
	}
	return new(rpc.MirrorResponse), mirrorError(pod.Namespace, pod.Name, err)
}

// removeMirror removes one of the worker's own mirrors, at once: nothing runs that would have to end first.
func (s *Server) removeMirror(ctx context.Context, view *fsm.View, client kubernetes.Interface, r *rpc.MirrorRequest) error {
	pod, ok := view.Pods.Get(fsm.PodKey(r.Namespace, r.Name))
	if !ok || string(pod.UID) != r.UID {
		return nil
	}
	if !isMirrorOn(pod, r.Node) {
		return fmt.Errorf("%w: %s/%s is no mirror of a static pod on node %s", rpc.ErrForbidden, r.Namespace, r.Name, r.Node)
	}
	uid := types.UID(r.UID)
	err := client.CoreV1().Pods(r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &uid},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return mirrorError(r.Namespace, r.Name, err)
}

func isMirrorOn(pod *corev1.Pod, node string) bool {
	return pod.Spec.NodeName == node && pod.Annotations[corev1.MirrorPodAnnotationKey] != ""
}

// mirrorError tells a worker why: what is said of its pod stays so, and what is said of this server may not.
func mirrorError(namespace, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return fmt.Errorf("%w: the mirror of %s/%s: %w", rpc.ErrInvalid, namespace, name, err)
	}
	return fmt.Errorf("%w: the mirror of %s/%s: %w", rpc.ErrBusy, namespace, name, err)
}
