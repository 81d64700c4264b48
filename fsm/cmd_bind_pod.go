package fsm

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// BindPod gives a waiting pod its node because somebody other than Berth's
// scheduler says so. Where the pod may go is the caller's judgement; that it
// fits in is not.
//
// Refuses: 404 for a pod or node that is not there; 409 if the pod is bound,
// ending or gated, or if the node has no room for it, or its claims no volumes there.
type BindPod struct {
	Key  string `msgpack:"key"`
	UID  string `msgpack:"uid,omitempty"`
	Node string `msgpack:"node"`
}

// Apply implements Command.
func (c *BindPod) Apply(tx *Tx) Result {
	name := nameOfKey(c.Key)
	pod, ok := tx.view.Pods.Get(c.Key)
	if !ok {
		return refuseNotFound(podResource.groupResource(), name)
	}
	conflict := func(why string) Result { return refuseConflict(bindingResource.groupResource(), name, why) }
	if r, ok := (Precondition{UID: c.UID}).check(pod, podResource); !ok {
		return r
	}
	switch {
	case model.Terminating(pod):
		return conflict(fmt.Sprintf("pod %s is being deleted, cannot be assigned to a host", name))
	case model.Terminal(pod):
		return conflict(fmt.Sprintf("pod %s has ended, cannot be assigned to a host", name))
	case pod.Spec.NodeName != "":
		return conflict(fmt.Sprintf("pod %s is already assigned to node %q", name, pod.Spec.NodeName))
	case model.Gated(pod):
		return conflict(fmt.Sprintf("pod %s has non-empty .spec.schedulingGates", name))
	}
	node, ok := tx.view.Nodes.Get(c.Node)
	if !ok {
		return refuseNotFound(nodeResource.groupResource(), c.Node)
	}
	if why := tx.view.noRoom(c.Key, pod, node); why != "" {
		return conflict(why)
	}
	class := tx.view.ruledClass(tx.view.classOf(pod), pod).class
	if why := tx.view.neverAtOnce(pod, node, class); why != "" {
		return conflict(why)
	}
	if why := tx.bindClaims(pod, node, class); why != "" {
		return conflict(why)
	}
	pod = tx.bind(c.Key, pod, c.Node)
	return Result{Table: tx.view.Pods.Name(), Object: pod}
}

// noRoom says why the node can not hold the pod beside what is there and what
// is promised to others that it must not overtake (NM4); "" if it can.
func (v *live) noRoom(key string, pod *corev1.Pod, node *corev1.Node) string {
	c := v.classOf(pod)
	u := v.taken(node.Name, c, key)
	return explain(node.Name, model.CheckUsage(c, *v.usage.Offer(node.Name), &u))
}

func explain(node string, reasons []model.Reason) string {
	if len(reasons) == 0 {
		return ""
	}
	texts := make([]string, len(reasons))
	for i, r := range reasons {
		texts[i] = r.Explain()
	}
	return fmt.Sprintf("node %s does not take the pod: %s", node, strings.Join(texts, ", "))
}

func nameOfKey(key string) string {
	_, name, ok := strings.Cut(key, "/")
	if !ok {
		return key
	}
	return name
}
