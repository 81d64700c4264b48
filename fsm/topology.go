package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/usage"
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

// costCounted is the work of counting a pod or node for the first time.
const costCounted = 10

// RulesFor counts all pods of a view for somebody who wants to know by which
// rules between pods a class is kept off nodes. It costs a walk over the pods,
// but is nil, for nothing, where no such rule can be. It is the caller's own.
func (v *View) RulesFor(c *model.Class) *model.Topology {
	if !c.HasHardTopology() && !v.usage.KeepAway() {
		return nil
	}
	return v.countAll()
}

func (v *View) countAll() *model.Topology {
	t := model.NewTopology()
	defer func() { t.Charge(int64(v.Pods.Len()+v.Nodes.Len()+v.Nominations.Len()) * costCounted) }()
	v.Namespaces.Scan("", func(name string, ns *corev1.Namespace) bool {
		t.PutNamespace(name, ns.Labels)
		return true
	})
	v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
		t.PutNode(n)
		return true
	})
	v.usage.Pods(func(pod *corev1.Pod, c *model.Class) bool {
		if node := usage.NodeOf(pod); node != "" {
			t.AddPod(node, c, model.Terminating(pod))
		}
		return true
	})
	v.Nominations.Scan("", func(_ string, n *Nomination) bool {
		t.Nominate(n.Node, n.Class(), n.Priority)
		return true
	})
	return t
}

// countPod tells the counters of a pod that came, left, began to leave or
// changed its class.
func (v *live) countPod(old, new *corev1.Pod, was, is *model.Class) {
	t := v.cache.topology
	if t == nil {
		return
	}
	from, to := usage.NodeOf(old), usage.NodeOf(new)
	leaving := old != nil && model.Terminating(old)
	leaves := new != nil && model.Terminating(new)
	if from == to && was == is && leaving == leaves {
		return
	}
	if from != "" {
		t.RemovePod(from, was, leaving)
	}
	if to != "" {
		t.AddPod(to, is, leaves)
	}
}

// countNomination is countPod for a nomination.
func (v *live) countNomination(old, new *Nomination) {
	t := v.cache.topology
	if t == nil {
		return
	}
	if old != nil {
		t.Unnominate(old.Node, old.Class(), old.Priority)
	}
	if new != nil {
		t.Nominate(new.Node, new.Class(), new.Priority)
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
	if !c.class.HasHardTopology() && !v.usage.KeepAway() {
		return nil
	}
	v.billJudge(c.class)
	t := v.topology()
	if v.judge(c).Plain() {
		return nil
	}
	v.billUnits(len(without) * costWithout)
	for _, pod := range without {
		t.RemovePod(pod.Spec.NodeName, v.usage.ClassOf(pod), model.Terminating(pod))
	}
	aside := v.yielding(c, self)
	for _, n := range aside {
		t.Unnominate(n.Node, n.Class(), n.Priority)
	}
	out := v.judge(c).Reasons(node)
	for _, n := range aside {
		t.Nominate(n.Node, n.Class(), n.Priority)
	}
	for _, pod := range without {
		t.AddPod(pod.Spec.NodeName, v.usage.ClassOf(pod), model.Terminating(pod))
	}
	return out
}

// yielding are the nominations that a rule of the class is about, or the other
// way round, and that do not stand in the way of a pod of it: its own, and those
// that yield to it.
func (v *live) yielding(c ruled, self string) []*Nomination {
	own, ok := v.Nominations.Get(self)
	if !ok {
		return nil
	}
	var out []*Nomination
	looked, judge, minded := int64(0), v.judge(c), map[*model.Class]bool{}
	v.usage.Yielding(own, func(n *Nomination) {
		looked++
		is, known := minded[n.Class()]
		if !known {
			is = judge.Minds(n.Class())
			minded[n.Class()] = is
		}
		if is {
			out = append(out, n)
		}
	})
	v.billUnits(int(looked)*costLooked + len(out)*costYield)
	v.topology().Charge(looked)
	return out
}

// obstacles are all reasons that keep a waiting pod off a node, were the given
// pods gone: what the node is, what it has room for, what other pods demand.
// The given pods may be on other nodes too.
func (v *live) obstacles(c ruled, node *corev1.Node, self string, without []*corev1.Pod) []model.Reason {
	offer := v.usage.Offer(node.Name)
	u := v.usage.Taken(node.Name, c.class.Priority, c.class.RunsAtMostSeconds, self)
	for _, pod := range without {
		if pod.Spec.NodeName == node.Name {
			u = u.Without(v.usage.ClassOf(pod))
		}
	}
	var out []model.Reason
	if !c.fits(node, offer, &u) {
		out = c.check(node, offer, &u)
	}
	return append(out, v.barredFrom(c, node.Name, self, without)...)
}
