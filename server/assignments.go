package server

import (
	"bytes"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/rpc"
)

// WorkerAssignments implements rpc.WorkerHandler: all the pods of a node, unless
// the worker knows them. A worker may come from a server that is ahead of this one, so the state has to
// catch up first; if it does not soon, the worker had better go back.
func (s *Server) WorkerAssignments(ctx context.Context, node string, since int64, told []byte) (*rpc.Assignments, error) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	for {
		view := s.state.View()
		if view.Revision() >= max(since, s.pushed.Load()) {
			// It was deleted since the hello, when this stream was not known yet.
			if _, there := view.Nodes.Get(node); !there {
				return nil, rpc.ErrNodeGone
			}
			return assignmentsOf(view, node, !s.knows(view, node, since, told))
		}
		if err := s.state.Feed().Wait(ctx, view.Revision()); err != nil {
			return nil, fmt.Errorf("waiting for revision %d: %w", since, err)
		}
	}
}

// catchUpTimeout bounds how long a worker waits for this server to catch up.
const catchUpTimeout = 10 * time.Second

// changesOfKnown is how many changes are looked through at most for one that a worker has not heard of.
const changesOfKnown = 4096

// knows says whether a worker was told of all pods of its node as they are: nothing of them has changed since the revision up to which it was
// told, by another server, and they are the same by the sum told. That would be the same whatever became of this cluster's log since
// then. When a server is gone, its workers come to the others at once, and each would be sent all of its pods.
func (s *Server) knows(view *fsm.View, node string, since int64, told []byte) bool {
	if since == 0 || len(told) == 0 || s.mayHaveMissed(view, node, since) {
		return false
	}
	has := rpc.Told{}
	view.PodsOnNode(node, func(pod *corev1.Pod) bool {
		has.Add(pod)
		return true
	})
	return bytes.Equal(has.Sum(), told)
}

// mayHaveMissed says whether a pod of a node has changed between a revision and the view, in whatever way, as far as that can be told.
func (s *Server) mayHaveMissed(view *fsm.View, node string, since int64) bool {
	for at, looked := since, 0; at < view.Revision(); {
		changes, err := s.state.Feed().After(at, changesOfKnown)
		looked += len(changes)
		// None are left where the feed has not got yet what the view shows.
		if err != nil || len(changes) == 0 || looked >= changesOfKnown {
			return true
		}
		for i := range changes {
			if podOf(changes[i].Old, node) || podOf(changes[i].New, node) {
				return true
			}
		}
		at = changes[len(changes)-1].Revision
	}
	return false
}

func podOf(row any, node string) bool {
	pod, ok := row.(*corev1.Pod)
	return ok && pod.Spec.NodeName == node
}

// assignmentsOf is what a worker is sent: its node's labels, and its pods if full.
func assignmentsOf(view *fsm.View, node string, full bool) (*rpc.Assignments, error) {
	a := &rpc.Assignments{Full: full, Revision: view.Revision()}
	var err error
	if n, ok := view.Nodes.Get(node); ok {
		if a.Node, err = labelsOf(n); err != nil {
			return nil, err
		}
	}
	if !full {
		return a, nil
	}
	view.PodsOnNode(node, func(pod *corev1.Pod) bool {
		var raw []byte
		if raw, err = pod.Marshal(); err == nil {
			a.Pods = append(a.Pods, raw)
		}
		return err == nil
	})
	return a, err
}

// labelsOf is what a worker is told of its node: by its labels the worker admits pods.
func labelsOf(n *corev1.Node) ([]byte, error) {
	return (&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}).Marshal()
}
