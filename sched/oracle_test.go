package sched

import (
	"cmp"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// oracle is the scheduler as one would write it on a blackboard: every decision looks at every node and every pod
// again, with no cache, no index and no increment. It follows kube-scheduler's text: filter, score, normalise, and for
// preemption remove, reprieve and choose.
type oracle struct {
	nodes   []*corev1.Node
	pods    []*plainPod
	noms    []plainNom
	budgets Budgets
	preempt bool

	config     berthv1.SchedulerConfigurationSpec
	namespaces map[string]map[string]string
	state      *fsm.View // for what belongs to a pod's services and owner
	greedy     bool      // victims are chosen as kube-scheduler does
	strict     bool
	cross      bool // victims may be on other nodes
}

type plainPod struct {
	obj     *corev1.Pod
	node    string
	leaving bool
	victim  bool // leaving because it was preempted
}

type plainNom struct {
	pod  *corev1.Pod
	node string
	made int64
	// waits are those that it waits for.
	waits []types.UID
}

type decision struct {
	kind    assumptionKind
	node    string
	best    fsm.BindDecision // of a binding: what it says of the nodes that fit; nothing where none was compared
	set     plainVictims
	reasons map[string]int // of a failure, by text
}

func newOracle(v *fsm.View, budgets Budgets) *oracle {
	spec := &v.SchedulerConfig().Spec
	o := &oracle{
		budgets: budgets, preempt: *spec.Preemption.Enabled,
		greedy: *spec.Preemption.SearchLimit == 0, strict: spec.Preemption.Budgets == berthv1.BudgetsStrict,
		config: *spec, namespaces: map[string]map[string]string{}, state: v,
	}
	v.Namespaces.Scan("", func(_ string, n *corev1.Namespace) bool {
		o.namespaces[n.Name] = n.Labels
		return true
	})
	v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
		o.nodes = append(o.nodes, n)
		return true
	})
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		if p.Spec.NodeName != "" && !model.Terminal(p) {
			o.pods = append(o.pods, &plainPod{obj: p, node: p.Spec.NodeName, leaving: p.DeletionTimestamp != nil,
				victim: model.PreemptionVictim(p)})
		}
		return true
	})
	v.Nominations.Scan("", func(key string, n *fsm.Nomination) bool {
		p, _ := v.Pods.Get(key)
		nom := plainNom{p, n.Node, n.FirstRevision, nil}
		for _, victim := range n.Victims {
			nom.waits = append(nom.waits, victim.UID)
		}
		o.noms = append(o.noms, nom)
		return true
	})
	return o
}

// usage sums up who is on the node: the pods that stay and, for NM4, the nominated pods of at least the pod's priority.
func (o *oracle) usage(n *corev1.Node, pod *corev1.Pod, nominated bool, without ...*plainPod) model.Usage {
	var u model.Usage
	for _, p := range o.pods {
		if p.node == n.Name && !slices.Contains(without, p) {
			u = u.With(model.ClassOf(model.Charged(p.obj)))
		}
	}
	for _, nom := range o.noms {
		if nominated && nom.node == n.Name && o.counts(nom, pod) {
			u = u.With(model.ClassOf(nom.pod))
		}
	}
	return u
}

// counts says whether a nomination takes away room from a pod: NM4, and the earlier of two equal ones on a node goes
// first.
func (o *oracle) counts(nom plainNom, pod *corev1.Pod) bool {
	return o.standsInTheWay(nom, pod, func(own plainNom) bool { return own.node == nom.node })
}

// seen says whether a nomination is seen by a pod's rules about other pods: there the earlier one goes first on any
// node.
func (o *oracle) seen(nom plainNom, pod *corev1.Pod) bool {
	return o.standsInTheWay(nom, pod, func(plainNom) bool { return true })
}

func (o *oracle) standsInTheWay(nom plainNom, pod *corev1.Pod, rivals func(own plainNom) bool) bool {
	if nom.pod.UID == pod.UID || model.Priority(nom.pod) < model.Priority(pod) {
		return false
	}
	return model.Priority(nom.pod) > model.Priority(pod) || !slices.ContainsFunc(o.noms, func(own plainNom) bool {
		return own.pod.UID == pod.UID && rivals(own) && own.made < nom.made
	})
}

// check runs the filters with the nominated pods and without them; both must pass (NM4).
func (o *oracle) check(n *corev1.Node, pod *corev1.Pod, without ...*plainPod) []model.Reason {
	var out []model.Reason
	add := func(r model.Reason) {
		if !slices.ContainsFunc(out, func(have model.Reason) bool {
			return have.Kind == r.Kind &&
				have.Resource == r.Resource
		}) {
			out = append(out, r)
		}
	}
	for _, nominated := range []bool{true, false} {
		u := o.usage(n, pod, nominated, without...)
		for _, r := range model.Check(model.ClassOf(pod), n, model.Allocatable(n), &u) {
			add(r)
		}
		if !o.enforced(n, pod) {
			add(model.Reason{Kind: model.EnforcedAffinity})
		}
		all := o.standing(pod, nominated, without...)
		for _, kind := range append(o.spreadFailures(n, pod, all), o.affinityFailures(n, pod, all)...) {
			add(model.Reason{Kind: kind})
		}
	}
	return out
}

func (o *oracle) decide(pod *corev1.Pod) decision {
	var own string
	var waits []types.UID
	for _, nom := range o.noms {
		if nom.pod.UID == pod.UID {
			own, waits = nom.node, nom.waits
		}
	}
	var feasible []*corev1.Node
	reasons := map[string]int{}
	failures := map[string][]model.Reason{}
	for _, n := range o.nodes {
		why := o.check(n, pod)
		if len(why) == 0 {
			if n.Name == own {
				return decision{kind: assumeBind, node: own} // NM5
			}
			feasible = append(feasible, n)
		}
		for _, r := range why {
			reasons[r.Text()]++
		}
		failures[n.Name] = why
	}
	if len(feasible) > 0 {
		order := o.ranking(feasible, pod)
		return decision{kind: assumeBind, node: order[0], best: fsm.BindDecision{
			Feasible: int32(len(order)), Score: o.totals(feasible, pod)[order[0]], RunnerUp: append(order, "")[1],
		}}
	}
	fail := decision{kind: assumeFail, reasons: reasons}
	if !o.preempt || model.NeverPreempts(pod) {
		return fail
	}
	if why, ok := failures[own]; ok && resolvable(why) { // PR3, T5
		for _, p := range o.pods {
			if p.node == own && p.victim && model.Priority(p.obj) < model.Priority(pod) || slices.Contains(waits, p.obj.UID) {
				return fail
			}
		}
	}
	if set, ok := o.preemption(pod, failures); ok {
		return decision{kind: assumePreempt, node: set.node, set: set}
	}
	return fail
}

// feasible lists the nodes that pass every filter.
func (o *oracle) feasible(pod *corev1.Pod) []*corev1.Node {
	return slices.DeleteFunc(slices.Clone(o.nodes), func(n *corev1.Node) bool { return len(o.check(n, pod)) > 0 })
}

func resolvable(reasons []model.Reason) bool {
	return !slices.ContainsFunc(reasons, func(r model.Reason) bool { return !r.Kind.Resolvable() })
}

// totals scores the nodes as kube-scheduler's plugins do.
func (o *oracle) totals(nodes []*corev1.Node, pod *corev1.Pod) map[string]int64 {
	c := model.ClassOf(pod)
	profile := o.profile(pod)
	strategy := profile.ScoringStrategy()
	weight := func(plugin string) int64 { return int64(profile.Weight(plugin)) }
	all := o.standing(pod, false)
	spread, attraction := o.spreadScores(nodes, pod, all), o.affinityScores(nodes, pod, all)
	total := map[string]int64{}
	affinity, taints := map[string]int64{}, map[string]int64{}
	var maxAffinity, maxTaints int64
	for _, n := range nodes {
		u := o.usage(n, pod, false)
		total[n.Name] = weight("NodeResourcesFit")*plainFit(&strategy, c, model.Allocatable(n), &u) +
			weight("NodeResourcesBalancedAllocation")*plainBalanced(c, n, u) +
			weight("PodTopologySpread")*spread[n.Name] + weight("InterPodAffinity")*attraction[n.Name] +
			weight("ImageLocality")*o.imageScore(n, pod)
		affinity[n.Name], taints[n.Name] = c.PreferredAffinity(n)+o.addedPreference(n, pod), c.PreferNoScheduleCount(n)
		maxAffinity, maxTaints = max(maxAffinity, affinity[n.Name]), max(maxTaints, taints[n.Name])
	}
	for _, n := range nodes {
		if maxAffinity > 0 {
			total[n.Name] += weight("NodeAffinity") * (100 * affinity[n.Name] / maxAffinity)
		}
		t := int64(100)
		if maxTaints > 0 {
			t = 100 - 100*taints[n.Name]/maxTaints
		}
		total[n.Name] += weight("TaintToleration") * t
	}
	return total
}

// ranking orders the nodes by their scores, the highest first; ties by the ring.
func (o *oracle) ranking(nodes []*corev1.Node, pod *corev1.Pod) []string {
	total := o.totals(nodes, pod)
	var left, out []string
	for _, n := range nodes {
		left = append(left, n.Name)
	}
	for len(left) > 0 {
		best := int64(math.MinInt64)
		var tied []string
		for _, name := range left {
			s := total[name]
			if s > best {
				best, tied = s, nil
			}
			if s == best {
				tied = append(tied, name)
			}
		}
		out = append(out, onRing(tied, pod))
		left = slices.DeleteFunc(left, func(name string) bool { return name == out[len(out)-1] })
	}
	return out
}

func plainBalanced(c *model.Class, n *corev1.Node, u model.Usage) int64 {
	if c.Request.MilliCPU == 0 && c.Request.MemoryBytes == 0 {
		return 0
	}
	alloc := model.Allocatable(n)
	score := func(r model.Resources) int64 {
		var fractions []float64
		for _, name := range []string{"cpu", "memory"} {
			if alloc.Get(name) > 0 {
				fractions = append(fractions, math.Min(1, float64(r.Get(name))/float64(alloc.Get(name))))
			}
		}
		deviation := 0.0
		if len(fractions) == 2 {
			deviation = math.Abs((fractions[0] - fractions[1]) / 2)
		}
		return int64((1 - deviation) * 100)
	}
	return 50 + (50+score(u.Requested.Add(c.Request))-score(u.Requested))/2
}

// onRing takes the first of the nodes at or after the pod.
func onRing(nodes []string, pod *corev1.Pod) string {
	slices.SortFunc(nodes, func(a, b string) int {
		return cmp.Or(cmp.Compare(hash64(a), hash64(b)), cmp.Compare(a, b))
	})
	at := hash64(string(pod.UID))
	for _, n := range nodes {
		if hash64(n) >= at {
			return n
		}
	}
	return nodes[0]
}

// spend takes a healthy pod that is evicted off what its budgets allow.
func (o *oracle) spend(p *plainPod) {
	if p.leaving || !model.Healthy(p.obj) {
		return
	}
	for _, b := range o.budgets.Of(p.obj.Namespace, p.obj.Labels) {
		if b.row != nil {
			b.spending++
			b.settle()
		}
	}
}

// assume lays a decision over the oracle's cluster.
func (o *oracle) assume(pod *corev1.Pod, d decision) {
	drop := func(uid types.UID) {
		o.noms = slices.DeleteFunc(o.noms, func(n plainNom) bool { return n.pod.UID == uid })
	}
	switch d.kind {
	case assumeBind:
		drop(pod.UID)
		o.pods = append(o.pods, &plainPod{obj: pod, node: d.node})
	case assumePreempt:
		drop(pod.UID)
		o.noms = slices.DeleteFunc(o.noms, func(n plainNom) bool { // NM3
			return n.node == d.node && model.Priority(n.pod) < model.Priority(pod)
		})
		o.noms = append(o.noms, plainNom{pod, d.node, math.MaxInt64, uidsOf(slices.Concat(d.set.pods, d.set.waits))})
		for _, p := range o.pods {
			if slices.Contains(d.set.pods, p) || slices.Contains(d.set.waits, p) {
				o.spend(p)
				p.leaving, p.victim = true, true
			}
		}
	}
}
