package fsm

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-dev/berth/model"
)

// RegisterNode is what a worker says of its machine when it joins, and from
// time to time: a new node is stored as it is; of a known one the labels that
// the worker sets, its amounts, addresses, conditions and system information
// are brought up to date, and what users have set is left alone: taints,
// cordon, other labels, and extended resources that the worker knows nothing
// of.
//
// Refuses: 409 if another machine is alive under this name; 422 if a node would
// have more labels, annotations, resources or conditions than one can have.
type RegisterNode struct {
	Node NodeWire `msgpack:"node"`
}

// Apply implements Command.
func (c *RegisterNode) Apply(tx *Tx) Result {
	node := c.Node.Object
	if node == nil || node.Name == "" {
		return refuseBadRequest("RegisterNode without a node")
	}
	v := tx.view
	// The worker keeps to it too; a row must not grow by what a worker claims.
	node.Status.Images = node.Status.Images[:min(len(node.Status.Images), maxNodeImages)]
	if r, ok := checkGrowth(new(corev1.Node), node); !ok {
		return r
	}
	old, known := v.Nodes.Get(node.Name)
	if !known {
		node.CreationTimestamp = tx.now()
		node.UID = tx.newUID()
		tx.setNodeSaid(node, node)
		tx.stampTaints(node)
		put(tx, v.Nodes, node.Name, node)
		tx.nodeEvent(node, corev1.EventTypeNormal, "RegisteredNode", fmt.Sprintf("Node %s registered", node.Name))
		return Result{Table: v.Nodes.Name(), Object: node}
	}
	heard := NodeReady(old) || SaidUnready(old)
	if before, now := old.Status.NodeInfo.SystemUUID, node.Status.NodeInfo.SystemUUID; before != "" && before != now && heard {
		return refuseConflict(nodeResource.groupResource(), node.Name, fmt.Sprintf(
			"another machine is connected under the name %s; give this worker a name of its own, or stop the other one", node.Name))
	}
	next := mergeNode(old, node)
	if r, ok := checkGrowth(old, next); !ok {
		return r
	}
	tx.setNodeSaid(next, node)
	if equality.Semantic.DeepEqual(next, old) {
		return Result{Table: v.Nodes.Name(), Object: old}
	}
	tx.putNode(next)
	switch c := nodeReadyCondition(next); {
	case NodeReady(next) && !NodeReady(old):
		tx.nodeEvent(next, corev1.EventTypeNormal, "NodeReady", c.Message)
	case !NodeReady(next) && NodeReady(old):
		tx.nodeEvent(next, corev1.EventTypeWarning, "NodeNotReady", c.Message)
	}
	return Result{Table: v.Nodes.Name(), Object: next}
}

// checkGrowth refuses to let a worker give its node more than a node can have: a
// worker that says something else each time would make the row grow for ever.
func checkGrowth(old, next *corev1.Node) (Result, bool) {
	meta, status := field.NewPath("metadata"), field.NewPath("status")
	var errs field.ErrorList
	count := func(path *field.Path, before, now, most int) {
		if now > most && now > before {
			errs = append(errs, field.TooMany(path, now, most))
		}
	}
	count(meta.Child("labels"), len(old.Labels), len(next.Labels), model.MaxLabels)
	count(meta.Child("annotations"), len(old.Annotations), len(next.Annotations), model.MaxLabels)
	count(status.Child("capacity"), len(old.Status.Capacity), len(next.Status.Capacity), model.MaxNodeResources)
	count(status.Child("allocatable"), len(old.Status.Allocatable), len(next.Status.Allocatable), model.MaxNodeResources)
	count(status.Child("conditions"), len(old.Status.Conditions), len(next.Status.Conditions), model.MaxConditions)
	if n := next.Size(); n > maxNodeBytes && n > old.Size() {
		errs = append(errs, field.TooLong(field.NewPath(""), "", maxNodeBytes))
	}
	if len(errs) > 0 {
		return refusal(apierrors.NewInvalid(nodeResource.groupKind(), next.Name, errs)), false
	}
	return Result{}, true
}

// maxNodeBytes is far above what a node of a worker has: fifty images, a
// hundred volumes, and what users have written on it.
const maxNodeBytes = 1 << 20

// maxNodeImages is how many images of a node are kept, as in Kubernetes.
const maxNodeImages = 50

// putNode stores a changed node.
func (tx *Tx) putNode(next *corev1.Node) {
	tx.stampTaints(next)
	put(tx, tx.view.Nodes, next.Name, next)
}

func mergeNode(old, said *corev1.Node) *corev1.Node {
	next := old.DeepCopy()
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, said.Labels)
	if next.Annotations == nil && len(said.Annotations) > 0 {
		next.Annotations = map[string]string{}
	}
	maps.Copy(next.Annotations, said.Annotations)
	next.Status.Capacity = mergeAmounts(old.Status.Capacity, said.Status.Capacity)
	next.Status.Allocatable = mergeAmounts(old.Status.Allocatable, said.Status.Allocatable)
	next.Status.NodeInfo = said.Status.NodeInfo
	next.Status.Addresses = said.Status.Addresses
	next.Status.DaemonEndpoints = said.Status.DaemonEndpoints
	next.Status.Images = said.Status.Images
	for _, c := range said.Status.Conditions {
		setNodeCondition(next, c)
	}
	return next
}

func mergeAmounts(old, said corev1.ResourceList) corev1.ResourceList {
	next := corev1.ResourceList{}
	maps.Copy(next, old)
	maps.Copy(next, said)
	return next
}

// NodeReady says whether a node is said to be ready.
func NodeReady(n *corev1.Node) bool {
	c := nodeReadyCondition(n)
	return c != nil && c.Status == corev1.ConditionTrue
}

// nodeReadyCondition is nil if nobody has ever said whether the node is ready.
func nodeReadyCondition(n *corev1.Node) *corev1.NodeCondition {
	return nodeCondition(n, corev1.NodeReady)
}

// nodeCondition is nil for one that the node does not have.
func nodeCondition(n *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == t })
	if i < 0 {
		return nil
	}
	return &n.Status.Conditions[i]
}

// setNodeCondition changes a node that is not stored yet.
func setNodeCondition(n *corev1.Node, c corev1.NodeCondition) {
	i := slices.IndexFunc(n.Status.Conditions, func(o corev1.NodeCondition) bool { return o.Type == c.Type })
	if i < 0 {
		n.Status.Conditions = append(n.Status.Conditions, c)
		return
	}
	if n.Status.Conditions[i].Status == c.Status {
		c.LastTransitionTime = n.Status.Conditions[i].LastTransitionTime
		c.LastHeartbeatTime = n.Status.Conditions[i].LastHeartbeatTime // heartbeats are not replicated
	}
	n.Status.Conditions[i] = c
}

// SaidUnready says whether the node's own worker says that it can start no pods.
func SaidUnready(n *corev1.Node) bool {
	c := nodeReadyCondition(n)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == model.ReasonWorkerUnready
}

// setNodeSaid sets the Ready condition of a node whose worker is heard: it is ready, unless the worker says that it can
// start no pods.
func (tx *Tx) setNodeSaid(n, said *corev1.Node) {
	if SaidUnready(said) {
		tx.setNodeReady(n, corev1.ConditionFalse, model.ReasonWorkerUnready, nodeReadyCondition(said).Message, false)
		return
	}
	tx.setNodeReady(n, corev1.ConditionTrue, "WorkerReady", "the worker is connected", false)
}

// setNodeReady sets the Ready condition and the taints that go with it (PD12):
// NoSchedule at once, NoExecute when the pods there are to be let go.
func (tx *Tx) setNodeReady(n *corev1.Node, status corev1.ConditionStatus, reason, message string, letGo bool) {
	c := corev1.NodeCondition{Type: corev1.NodeReady, Status: status, Reason: reason, Message: message, LastTransitionTime: tx.now()}
	if status == corev1.ConditionTrue {
		c.LastHeartbeatTime = tx.now()
	} else if was := nodeReadyCondition(n); was != nil {
		c.LastHeartbeatTime = was.LastHeartbeatTime // that it is silent is no heartbeat
	}
	setNodeCondition(n, c)
	wanted := ""
	switch status {
	case corev1.ConditionUnknown:
		wanted = corev1.TaintNodeUnreachable
	case corev1.ConditionFalse:
		wanted = corev1.TaintNodeNotReady
	}
	taints := slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t corev1.Taint) bool {
		return t.Key != wanted && (t.Key == corev1.TaintNodeUnreachable || t.Key == corev1.TaintNodeNotReady)
	})
	add := func(effect corev1.TaintEffect) {
		if !slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.Key == wanted && t.Effect == effect }) {
			taints = append(taints, corev1.Taint{Key: wanted, Effect: effect})
		}
	}
	if wanted != "" {
		add(corev1.TaintEffectNoSchedule)
		if letGo {
			add(corev1.TaintEffectNoExecute)
		}
	}
	n.Spec.Taints = taints
	if len(taints) == 0 {
		n.Spec.Taints = nil
	}
}

// stampTaints writes on NoExecute taints when they were added: from then on
// the pods' toleration seconds count.
func (tx *Tx) stampTaints(n *corev1.Node) {
	for i := range n.Spec.Taints {
		if t := &n.Spec.Taints[i]; t.Effect == corev1.TaintEffectNoExecute && t.TimeAdded == nil {
			now := tx.now()
			t.TimeAdded = &now
		}
	}
}
