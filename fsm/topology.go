package fsm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/usage"
)

// The rules between pods are rechecked with counters by topology domain. The
// tables' index functions keep them in step from the first row on, whether a pod
// has such rules or not: to count all pods when the first one has would take
// longer than one entry may. A fork makes them when it first needs them.

// topology is the live view's counters.
func (v *live) topology() *model.Topology {
	if v.cache.counters.topology == nil {
		v.cache.counters = &counters{topology: v.countAll()}
	}
	return v.cache.counters.topology
}

// costCounted is the work of counting a pod or node for the first time.
const costCounted = 10

// RulesFor counts all pods of a view for somebody who wants to know by which
// rules between pods a class is kept off nodes. It costs a walk over the pods,
// but is nil, for nothing, where no such rule can be. It is the caller's own.
func (v *View) RulesFor(c *model.Class) *model.Topology {
	if !v.HasRulesFor(c) {
		return nil
	}
	return v.countAll()
}

// HasRulesFor says whether there may be rules between pods that keep a class off nodes.
func (v *View) HasRulesFor(c *model.Class) bool { return c.HasHardTopology() || v.usage.KeepAway() }

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
func (v *live) countPod(old, now *corev1.Pod, was, is *model.Class) {
	from, to := usage.NodeOf(old), usage.NodeOf(now)
	leaving := old != nil && model.Terminating(old)
	leaves := now != nil && model.Terminating(now)
	if from == to && was == is && leaving == leaves {
		return
	}
	if from != "" {
		v.cache.counters.tell(told{sign: -1, node: from, class: was, leaving: leaving})
	}
	if to != "" {
		v.cache.counters.tell(told{sign: 1, node: to, class: is, leaving: leaves})
	}
}

// countNomination is countPod for a nomination.
func (v *live) countNomination(old, now *Nomination) {
	if old != nil {
		v.cache.counters.tell(nominal(old, -1))
	}
	if now != nil {
		v.cache.counters.tell(nominal(now, 1))
	}
}

func nominal(n *Nomination, sign int32) told {
	return told{sign: sign, nominal: true, node: n.Node, class: n.Class(), priority: n.Priority}
}

func indexNamespace(v *live, name string, old, now *corev1.Namespace, hadOld, hasNow bool) {
	what := told{namespace: name, namespaceIsGone: !hasNow}
	if hadOld {
		what.wasLabels = old.Labels
	}
	if hasNow {
		what.isLabels = now.Labels
	}
	v.cache.counters.tell(what)
}

// barredFrom returns the rules between pods that keep a waiting pod off a
// node, were the given pods gone. self is the pod's key: its own nomination
// does not stand in its way, nor do those of its priority that were made after
// it, for they were made with it counted.
func (v *live) barredFrom(c ruled, node, self string, without []*corev1.Pod) (out []model.Reason) {
	if v.minds(c) {
		v.supposeGone(c, self, without, func() { out = v.judge(c).Reasons(node) })
	}
	return out
}

// minds says whether a rule between pods can keep the class off a node.
func (v *live) minds(c ruled) bool {
	if !c.class.HasHardTopology() && !v.usage.KeepAway() {
		return false
	}
	v.billJudge(c.class)
	return !v.judge(c).Plain()
}

// supposeGone calls f while the counters take some pods for gone, and the nominations
// that yield to a waiting pod.
func (v *live) supposeGone(c ruled, self string, pods []*corev1.Pod, f func()) {
	v.billUnits(len(pods) * costWithout)
	aside := make([]told, 0, len(pods))
	for _, pod := range pods {
		aside = append(aside, v.placed(pod, -1))
	}
	for _, n := range v.yielding(c, self) {
		aside = append(aside, nominal(n, -1))
	}
	v.cache.counters.peek(aside, f)
}

// placed is what the counters are told of a pod on its node that comes or goes.
func (v *live) placed(pod *corev1.Pod, sign int32) told {
	return told{sign: sign, node: pod.Spec.NodeName, class: v.usage.ClassOf(pod), leaving: model.Terminating(pod)}
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

// obstacles is what keeps a waiting pod off a node.
type obstacles struct {
	class  ruled
	node   *corev1.Node
	offer  *model.Resources
	used   model.Usage
	fits   bool
	barred []model.Reason
}

// obstacles finds all that keeps a waiting pod off a node, were the given pods gone: what
// the node is, what it has room for, what other pods demand. The given pods may be on
// other nodes too.
func (v *live) obstacles(c ruled, node *corev1.Node, self string, without []*corev1.Pod) obstacles {
	c = ruled{c.class.WithoutHolders(func(uid string) bool {
		return slices.ContainsFunc(without, func(pod *corev1.Pod) bool { return string(pod.UID) == uid })
	})}
	o := obstacles{
		class: c, node: node, offer: v.usage.Offer(node.Name),
		used: v.taken(node.Name, c.class, self),
	}
	for _, pod := range without {
		if pod.Spec.NodeName == node.Name {
			o.used = o.used.Without(v.usage.ClassOf(pod))
		}
	}
	v.billUnits(v.askCost(c, node))
	o.fits = c.fits(node, o.offer, &o.used)
	o.barred = v.barredFrom(c, node.Name, self, without)
	return o
}

// none says that the node takes the pod.
func (o *obstacles) none() bool { return o.fits && len(o.barred) == 0 }

// reasons names all of them.
func (o *obstacles) reasons() []model.Reason {
	if o.fits {
		return o.barred
	}
	return append(o.class.check(o.node, o.offer, &o.used), o.barred...)
}
