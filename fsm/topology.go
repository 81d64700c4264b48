package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// The rules between pods are rechecked with counters by topology domain. The
// live view makes them when somebody first needs them, and from then on the
// tables' index functions keep them in step; in a cluster whose pods have no
// such rules nobody ever does.

// topology is the live view's counters.
func (v *live) topology() *model.Topology {
	if v.cache.topology == nil {
		v.cache.topology = v.countAll()
	}
	return v.cache.topology
}

// RulesFor counts all pods of a view for somebody who wants to know by which
// rules between pods a class is kept off nodes. It costs a walk over the pods,
// but is nil, for nothing, where no such rule can be. It is the caller's own.
func (v *View) RulesFor(c *model.Class) *model.Topology {
	if !c.HasHardTopology() && v.guards == 0 {
		return nil
	}
	return v.countAll()
}

func (v *View) countAll() *model.Topology {
	t := model.NewTopology()
	v.Namespaces.Scan("", func(name string, ns *corev1.Namespace) bool {
		t.PutNamespace(name, ns.Labels)
		return true
	})
	v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
		t.PutNode(n)
		return true
	})
	v.podsByNode.Scan("", func(_ string, p placed) bool {
		if node := usedNode(p.pod); node != "" {
			t.AddPod(node, p.class, model.Terminating(p.pod))
		}
		return true
	})
	v.Nominations.Scan("", func(_ string, n *Nomination) bool {
		t.Nominate(n.Node, n.class, n.Priority)
		return true
	})
	return t
}

// countPod tells the counters of a pod that came, left, began to leave or
// changed its class.
func (v *live) countPod(from, to string, old, new *corev1.Pod, was, is *model.Class) {
	leaving := old != nil && model.Terminating(old)
	leaves := new != nil && model.Terminating(new)
	if from == to && was == is && leaving == leaves {
		return
	}
	if from != "" {
		v.countGuard(was, -1)
	}
	if to != "" {
		v.countGuard(is, 1)
	}
	t := v.cache.topology
	if t == nil {
		return
	}
	if from != "" {
		t.RemovePod(from, was, leaving)
	}
	if to != "" {
		t.AddPod(to, is, leaves)
	}
}

// countGuard counts the pods, placed or nominated, that keep others away.
func (v *live) countGuard(c *model.Class, by int) {
	if c.KeepsAway() {
		v.guards += by
	}
}

func (v *live) countNomination(n *Nomination, by int) {
	v.countGuard(n.class, by)
	switch t := v.cache.topology; {
	case t == nil:
	case by > 0:
		t.Nominate(n.Node, n.class, n.Priority)
	default:
		t.Unnominate(n.Node, n.class, n.Priority)
	}
}

func indexNamespace(v *live, name string, _, new *corev1.Namespace, _, hasNew bool) {
	switch t := v.cache.topology; {
	case t == nil:
	case hasNew:
		t.PutNamespace(name, new.Labels)
	default:
		t.RemoveNamespace(name)
	}
}

// barredFrom returns the rules between pods that keep a waiting pod off a
// node, were the given pods gone. self is the pod's key: its own nomination
// does not stand in its way, nor do those of its priority that were made after
// it, for they were made with it counted.
func (v *live) barredFrom(c ruled, node, self string, without []*corev1.Pod) []model.Reason {
	if !c.class.HasHardTopology() && v.guards == 0 {
		return nil
	}
	t := v.topology()
	if v.judge(c).Plain() {
		return nil
	}
	for _, pod := range without {
		t.RemovePod(pod.Spec.NodeName, v.classOn(pod), model.Terminating(pod))
	}
	aside := v.yielding(self)
	for _, n := range aside {
		t.Unnominate(n.Node, n.class, n.Priority)
	}
	out := v.judge(c).Reasons(node)
	for _, n := range aside {
		t.Nominate(n.Node, n.class, n.Priority)
	}
	for _, pod := range without {
		t.AddPod(pod.Spec.NodeName, v.classOn(pod), model.Terminating(pod))
	}
	return out
}

// yielding are the nominations that do not stand in a pod's way.
func (v *View) yielding(self string) []*Nomination {
	own, ok := v.Nominations.Get(self)
	if !ok {
		return nil
	}
	out := []*Nomination{own}
	v.Nominations.Scan("", func(_ string, n *Nomination) bool {
		if n.YieldsTo(own) {
			out = append(out, n)
		}
		return true
	})
	return out
}

// obstacles are all reasons that keep a waiting pod off a node, were the given
// pods gone: what the node is, what it has room for, what other pods demand.
// The given pods may be on other nodes too.
func (v *live) obstacles(c ruled, node *corev1.Node, self string, without []*corev1.Pod) []model.Reason {
	offer := v.offer(node.Name)
	u := v.withNominations(*v.Usage(node.Name), node.Name, c.class.Priority, c.class.RunsAtMostSeconds, self)
	for _, pod := range without {
		if pod.Spec.NodeName == node.Name {
			u = u.Without(v.classOn(pod))
		}
	}
	var out []model.Reason
	if !c.fits(node, offer, &u) {
		out = c.check(node, offer, &u)
	}
	return append(out, v.barredFrom(c, node.Name, self, without)...)
}
