package fsm

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/model"
)

// SetNodeHealth records changes of nodes' health, which is all that the log
// ever hears of heartbeats: the Ready condition, and the taints that keep pods
// away and let those go that do not tolerate them (PD12); of a node that nobody
// hears its pressure is not known either. A lost node's nominations end (NM7) and
// its pods are no longer ready, so many of them (MaxUnready) each time that it is
// said.
//
// Refuses: 400 for a health that is none. Nodes that are gone are passed over.
type SetNodeHealth struct {
	Nodes []NodeHealth `msgpack:"nodes"`
}

// NodeHealth is one node's new health.
type NodeHealth struct {
	Name string `msgpack:"name"`
	// Ready is True, False or Unknown.
	Ready string `msgpack:"ready"`
	// Reason and Message are the condition's. Without a reason those that it has
	// stay, as whoever posted it wrote them.
	Reason  string `msgpack:"reason,omitempty"`
	Message string `msgpack:"message,omitempty"`
	// LetGo adds the NoExecute taint, which ends the pods that do not
	// tolerate it (for longer).
	LetGo bool `msgpack:"let_go,omitempty"`
}

// Apply implements Command.
func (c *SetNodeHealth) Apply(tx *Tx) Result {
	for _, h := range c.Nodes {
		switch corev1.ConditionStatus(h.Ready) {
		case corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown:
		default:
			return refuseBadRequest(fmt.Sprintf("SetNodeHealth: node %s cannot be %q", h.Name, h.Ready))
		}
	}
	for _, h := range c.Nodes {
		tx.part(h.Name, func() { tx.setHealth(h) })
	}
	return Result{}
}

func (tx *Tx) setHealth(h NodeHealth) {
	old, ok := tx.view.Nodes.Get(h.Name)
	if !ok {
		return
	}
	status := corev1.ConditionStatus(h.Ready)
	was := nodeReadyCondition(old)
	event := h.Message
	if h.Reason == "" && was != nil {
		h.Reason, h.Message = was.Reason, was.Message
	}
	next := old.DeepCopy()
	tx.setNodeReady(next, status, h.Reason, h.Message, h.LetGo)
	if status == corev1.ConditionUnknown {
		tx.forgetPressure(next, h.Message)
	}
	if !equality.Semantic.DeepEqual(next, old) {
		tx.putNode(next)
	}
	// Of a node that no worker of ours is behind the condition is there before: it is
	// the taint that makes the difference.
	before, after := awayTaint(old), awayTaint(next)
	switch {
	case was != nil && was.Status == status && before == after:
	case status == corev1.ConditionTrue:
		tx.nodeEvent(next, corev1.EventTypeNormal, "NodeReady", turned(event, next.Name, "NodeReady"))
	default:
		tx.nodeEvent(next, corev1.EventTypeWarning, "NodeNotReady", turned(event, next.Name, "NodeNotReady"))
		tx.releaseNominationsOn(h.Name, anyPriority, "", because("node "+h.Name+" is not ready"))
	}
	if status != corev1.ConditionTrue {
		tx.unreadyPods(h.Name)
	}
}

// forgetPressure sets a node's pressure conditions to Unknown, as Kubernetes' node
// lifecycle controller does: it is what it was when the node was heard last.
func (tx *Tx) forgetPressure(n *corev1.Node, message string) {
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		c := corev1.NodeCondition{
			Type: t, Status: corev1.ConditionUnknown, Reason: NodeStatusUnknown, Message: message, LastTransitionTime: tx.now(),
		}
		if was := nodeCondition(n, t); was == nil {
			c.Reason, c.Message, c.LastHeartbeatTime = NodeStatusNeverUpdated, "the node's status was never posted", n.CreationTimestamp
		} else if was.Status == corev1.ConditionUnknown {
			continue
		} else {
			c.LastHeartbeatTime = was.LastHeartbeatTime
		}
		setNodeCondition(n, c)
	}
}

// Kubernetes' reasons for conditions of a node that are not known, because nobody
// hears it, or ever did.
const (
	NodeStatusUnknown      = "NodeStatusUnknown"
	NodeStatusNeverUpdated = "NodeStatusNeverUpdated"
)

// turned is what an event says of a node's health, in Kubernetes' words if nobody has
// others.
func turned(message, node, reason string) string {
	if message != "" {
		return message
	}
	return fmt.Sprintf("Node %s status is now: %s", node, reason)
}

// awayTaint is the key of the taint that keeps pods away from a node that is not
// ready; "" for none.
func awayTaint(n *corev1.Node) string {
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoSchedule && (t.Key == corev1.TaintNodeUnreachable || t.Key == corev1.TaintNodeNotReady) {
			return t.Key
		}
	}
	return ""
}

// MaxUnready is how many pods of a node one SetNodeHealth marks as not ready.
const MaxUnready = 500

// ReadyPodsOnNode calls f for the pods of a node that are said to be ready and
// have not ended, until f returns false.
func (v *View) ReadyPodsOnNode(node string, f func(pod *corev1.Pod) bool) {
	v.PodsOnNode(node, func(pod *corev1.Pod) bool {
		c := findCondition(&pod.Status, corev1.PodReady)
		return c == nil || c.Status != corev1.ConditionTrue || model.Terminal(pod) || f(pod)
	})
}

func (tx *Tx) unreadyPods(node string) {
	var pods []*corev1.Pod
	tx.view.ReadyPodsOnNode(node, func(pod *corev1.Pod) bool {
		pods = append(pods, pod)
		return len(pods) < MaxUnready
	})
	for _, pod := range pods {
		tx.modifyPod(PodKey(pod.Namespace, pod.Name), pod, func(pod *corev1.Pod) {
			setCondition(&pod.Status, corev1.PodCondition{
				Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "NodeNotReady",
				Message: "Node is not ready", LastTransitionTime: tx.now(),
			})
		})
	}
}
