package model

import corev1 "k8s.io/api/core/v1"

// Topology counts pods by the domains of topology keys, for all terms that anybody asked for: spread constraints and
// inter-pod affinity, of the classes to be judged and of the pods that are placed. Its owner feeds it with every change of
// nodes, namespaces, pods and nominations; each costs only the terms that it is about. A Topology is not safe for
// concurrent use.
//
// Pods may be on nodes that the Topology does not know (yet): they count from when the node is put.
type Topology struct {
	version uint64
}

// NewTopology returns one without nodes or pods.
func NewTopology() *Topology { return &Topology{} }

// PutNode takes in a node that is new or changed. Nothing happens unless labels, taints or cordon differ.
func (t *Topology) PutNode(n *corev1.Node) {}

// RemoveNode forgets a node; pods on it no longer count.
func (t *Topology) RemoveNode(name string) {}

// PutNamespace takes in a namespace's labels, which namespaceSelectors see. A namespace never put has none.
func (t *Topology) PutNamespace(name string, labels map[string]string) {}

// RemoveNamespace forgets a namespace's labels.
func (t *Topology) RemoveNamespace(name string) {}

// AddPod adds a pod of the class that occupies the node. leaving says that its deletion has begun: it no longer counts
// for spread (TS7), but does for affinity.
func (t *Topology) AddPod(node string, c *Class, leaving bool) {}

// RemovePod takes away what AddPod added with the same arguments.
func (t *Topology) RemovePod(node string, c *Class, leaving bool) {}

// Nominate adds a pod of the class that is to come to the node: classes of at most the priority see it (NM4).
func (t *Topology) Nominate(node string, c *Class, priority int32) {}

// Unnominate takes away what Nominate added with the same arguments.
func (t *Topology) Unnominate(node string, c *Class, priority int32) {}

// Version grows with every change that can matter to a class with terms or about which placed pods have terms.
func (t *Topology) Version() uint64 { return t.version }

// Judge returns what the class sees; the first time, its terms are counted, which costs the nodes and the distinct
// classes placed in the namespaces that the terms are about. See Judge for how long the result may be used.
func (t *Topology) Judge(c *Class) *Judge { return &Judge{t: t, class: c} }

// CheckTopology is the part of Check that depends on the pods of all nodes; nil means that no such rule bars the node.
func CheckTopology(t *Topology, c *Class, node string) []Reason { return t.Judge(c).Reasons(node) }
