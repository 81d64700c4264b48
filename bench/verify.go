package bench

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// verify fails unless the states of all servers are equal, so many pods are
// bound, each to a node that is there, and no node has more than it offers.
func (c *cluster) verify(ctx context.Context, pods int) error {
	result, err := c.servers[0].Verify(ctx)
	if err != nil {
		return fmt.Errorf("compare the servers' states: %w", err)
	}
	if !result.Equal {
		return fmt.Errorf("the servers' states differ at index %d: %+v", result.Index, result.Servers)
	}
	v := c.servers[0].View()
	return errors.Join(verifyView(v, pods), verifyTopology(v))
}

// verifyView adds up by itself, from the objects alone: it trusts none of the
// state's own indexes.
func verifyView(v *fsm.View, pods int) error {
	used := map[string]model.Resources{}
	bound := 0
	var err error
	v.Pods.Scan("", func(key string, pod *corev1.Pod) bool {
		if pod.Spec.NodeName == "" || model.Terminal(pod) {
			return true
		}
		bound++
		if _, ok := v.Nodes.Get(pod.Spec.NodeName); !ok {
			err = fmt.Errorf("pod %s is bound to node %s, which is not there", key, pod.Spec.NodeName)
		}
		used[pod.Spec.NodeName] = used[pod.Spec.NodeName].Add(model.PodRequest(pod))
		return err == nil
	})
	if err != nil {
		return err
	}
	if bound != pods {
		return fmt.Errorf("%d pods are bound, and not %d", bound, pods)
	}
	var errs []error
	v.Nodes.Scan("", func(name string, node *corev1.Node) bool {
		errs = append(errs, verifyRoom(node, used[name]))
		return true
	})
	return errors.Join(errs...)
}

// verifyRoom fails if a node's pods ask for more than it offers.
func verifyRoom(node *corev1.Node, used model.Resources) error {
	offer := model.Allocatable(node)
	var errs []error
	for _, what := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods} {
		if used.Get(string(what)) > offer.Get(string(what)) {
			errs = append(errs, fmt.Errorf("node %s offers %d of %s, and its pods ask for %d", node.Name, offer.Get(string(what)), what, used.Get(string(what))))
		}
	}
	return errors.Join(errs...)
}
