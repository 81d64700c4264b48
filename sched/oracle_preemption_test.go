package sched

import (
	"cmp"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

type plainVictims struct {
	node       string
	pods       []*plainPod
	waits      []*plainPod
	violations int
}

func (o *oracle) preemption(pod *corev1.Pod, failures map[string][]model.Reason) (plainVictims, bool) {
	var candidates []plainVictims
	for _, n := range o.nodes {
		if !resolvable(failures[n.Name]) { // PR4
			continue
		}
		if c, ok := o.victimsOn(n, pod); ok {
			candidates = append(candidates, c)
		}
	}
	if len(candidates) == 0 {
		return plainVictims{}, false
	}
	return chooseNode(candidates, pod), true
}

// victimsOn tries every set of the pods of lower priority.
func (o *oracle) victimsOn(n *corev1.Node, pod *corev1.Pod) (plainVictims, bool) {
	var stay, leaving []*plainPod
	for _, p := range o.pods {
		if p.node != n.Name || model.Priority(p.obj) >= model.Priority(pod) {
			continue
		}
		if p.leaving {
			leaving = append(leaving, p)
		} else {
			stay = append(stay, p)
		}
	}
	if o.cross {
		return o.victimsAnywhere(n, pod)
	}
	if len(stay)+len(leaving) == 0 || len(o.check(n, pod, append(slices.Clone(leaving), stay...)...)) > 0 { // PR6
		return plainVictims{}, false
	}
	byImportance(stay)
	if o.greedy {
		return o.reprieved(n, pod, stay, leaving)
	}
	affinity, _ := affinityOf(pod)
	seeks := len(affinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 // PR14
	u := o.usage(n, pod, true, append(slices.Clone(leaving), stay...)...)
	c, alloc := model.ClassOf(pod), model.Allocatable(n)
	best, found := plainVictims{}, false
	var try func(u model.Usage, left, gone []*plainPod)
	try = func(u model.Usage, left, gone []*plainPod) {
		if model.UsageFailures(c, &alloc, &u) != 0 {
			return // and so with more of them kept
		}
		if len(left) > 0 {
			try(u, left[1:], append(slices.Clone(gone), left[0]))
			try(u.With(model.ClassOf(model.Charged(left[0].obj))), left[1:], gone)
			return
		}
		set, ok := o.judge(n, pod, gone)
		if ok && (!found || cheaper(set, best)) && (!seeks || o.opens(n, pod, slices.Concat(gone, leaving))) {
			best, found = set, true
		}
	}
	try(u, stay, nil)
	if found {
		best.waits = o.waits(n, pod, best.pods, leaving)
	}
	return best, found
}

// victimsAnywhere tries every set of pods of lower priority, on whatever nodes they are. Leaving ones are as good as
// gone.
func (o *oracle) victimsAnywhere(n *corev1.Node, pod *corev1.Pod) (plainVictims, bool) {
	var stay, leaving []*plainPod
	for _, p := range o.pods {
		switch {
		case model.Priority(p.obj) >= model.Priority(pod):
		case p.leaving:
			leaving = append(leaving, p)
		case p.node == n.Name || o.matters(pod, p.obj):
			stay = append(stay, p)
		}
	}
	byImportance(stay)
	slices.Reverse(stay)
	best, found := plainVictims{}, false
	for set := range 1 << len(stay) {
		var gone []*plainPod
		for i, p := range stay {
			if set>>i&1 == 1 {
				gone = append(gone, p)
			}
		}
		c, ok := o.judge(n, pod, gone)
		if ok && (!found || cheaper(c, best)) && elsewhere(c) <= int64(*o.config.Preemption.MaxOtherNodes) &&
			o.opens(n, pod, append(gone, leaving...)) {
			best, found = c, true
		}
	}
	if found {
		best.waits = o.waits(n, pod, best.pods, leaving)
	}
	return best, found
}

// opens says whether the pod can go to a node when the pods given are gone.
func (o *oracle) opens(n *corev1.Node, pod *corev1.Pod, gone []*plainPod) bool {
	if len(o.check(n, pod, gone...)) > 0 {
		return false
	}
	for _, p := range o.pods {
		if p.leaving && !slices.Contains(gone, p) {
			gone = append(gone, p)
		}
	}
	// PR14: a pod that required affinity needs has to stay, and not to be leaving either.
	return !slices.ContainsFunc(o.check(n, pod, gone...), func(r model.Reason) bool { return r.Kind == model.PodAffinity })
}

// matters says whether a pod on another node can make a difference to one: a hard rule of either is about the other.
func (o *oracle) matters(pod, other *corev1.Pod) bool {
	hard, _ := o.constraints(pod, true)
	if other.Namespace == pod.Namespace && slices.ContainsFunc(hard,
		func(c plainConstraint) bool { return c.selector.Matches(labels.Set(other.Labels)) }) {
		return true
	}
	about := func(owner, other *corev1.Pod) func(t corev1.PodAffinityTerm) bool {
		return func(t corev1.PodAffinityTerm) bool { return o.termMatches(owner, &t, other) }
	}
	affinity, anti := affinityOf(pod)
	_, carried := affinityOf(other)
	return slices.ContainsFunc(affinity.RequiredDuringSchedulingIgnoredDuringExecution, about(pod, other)) ||
		slices.ContainsFunc(anti.RequiredDuringSchedulingIgnoredDuringExecution, about(pod, other)) ||
		slices.ContainsFunc(carried.RequiredDuringSchedulingIgnoredDuringExecution, about(other, pod))
}

func elsewhere(c plainVictims) int64 {
	nodes := map[string]bool{}
	for _, p := range c.pods {
		nodes[p.node] = true
	}
	delete(nodes, c.node)
	return int64(len(nodes))
}

// judge counts what evicting the pods would violate; false if that must not be.
func (o *oracle) judge(n *corev1.Node, pod *corev1.Pod, gone []*plainPod) (plainVictims, bool) {
	out := plainVictims{node: n.Name, pods: gone}
	spent := map[*Budget]int32{}
	for _, p := range gone {
		for _, b := range o.budgets.Of(p.obj.Namespace, p.obj.Labels) {
			if b.Disrupted != nil && b.Disrupted(p.obj.Name) {
				continue
			}
			hard := o.isStrict(pod) || b.protects(model.Priority(pod))
			if hard && b.spares(p.obj) {
				continue
			}
			if spent[b]++; spent[b] > b.Allowed {
				if hard {
					return out, false
				}
				out.violations++
			}
		}
	}
	return out, true
}

func (o *oracle) isStrict(pod *corev1.Pod) bool {
	bound := *pod.Spec.Priority < model.SystemCriticalPriority ||
		o.config.Preemption.SystemClassBudgets == berthv1.BudgetsStrict
	return o.strict && bound || model.DemandsStrictBudgets(pod)
}

// waits are those that are leaving and whose room is needed too.
func (o *oracle) waits(n *corev1.Node, pod *corev1.Pod, victims, leaving []*plainPod) []*plainPod {
	gone := append(slices.Clone(victims), leaving...)
	byImportance(leaving)
	var out []*plainPod
	for _, p := range leaving {
		without := slices.DeleteFunc(slices.Clone(gone), func(q *plainPod) bool { return q == p })
		if len(o.check(n, pod, without...)) > 0 {
			out = append(out, p)
		} else {
			gone = without
		}
	}
	return out
}

// reprieved is kube-scheduler's choice (PR8, PR9). Whose eviction must not be is not touched: those who have to go in
// any case, because of a port, count before the others there, or nobody could be evicted where one may be.
func (o *oracle) reprieved(n *corev1.Node, pod *corev1.Pod, stay, leaving []*plainPod) (plainVictims, bool) {
	inOrder := slices.Clone(stay)
	slices.SortStableFunc(inOrder, func(a, b *plainPod) int {
		return cmp.Compare(min(portsIn(b.obj, pod), 1),
			min(portsIn(a.obj, pod), 1))
	})
	bad, never := o.beyond(pod, stay, false), o.beyond(pod, inOrder, true)
	var forbidden, violating, rest []*plainPod
	for _, p := range stay { // PR8
		switch {
		case slices.Contains(never, p):
			forbidden = append(forbidden, p)
		case slices.Contains(bad, p):
			violating = append(violating, p)
		default:
			rest = append(rest, p)
		}
	}
	if len(o.check(n, pod, append(append(slices.Clone(leaving), violating...), rest...)...)) > 0 {
		return plainVictims{}, false
	}
	gone := slices.Concat(leaving, violating, rest)
	var victims []*plainPod
	for _, p := range append(violating, rest...) { // PR9
		without := slices.DeleteFunc(slices.Clone(gone), func(q *plainPod) bool { return q == p })
		if len(o.check(n, pod, without...)) > 0 {
			victims = append(victims, p)
		} else {
			gone = without
		}
	}
	byImportance(victims)
	out, _ := o.judge(n, pod, victims)
	out.waits = o.waits(n, pod, victims, leaving)
	return out, true
}

// beyond returns those of the pods that, evicted in this order, find a budget used up: one that must not be violated,
// or one that may be.
func (o *oracle) beyond(pod *corev1.Pod, inOrder []*plainPod, hard bool) []*plainPod {
	spent := map[*Budget]int32{}
	var out []*plainPod
	for _, p := range inOrder {
		for _, b := range o.budgets.Of(p.obj.Namespace, p.obj.Labels) {
			if b.Disrupted != nil && b.Disrupted(p.obj.Name) || hard != (o.isStrict(pod) || b.protects(model.Priority(pod))) ||
				hard && b.spares(p.obj) {
				continue
			}
			if spent[b]++; spent[b] > b.Allowed && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// portsIn is how many of a pod's host ports another one wants.
func portsIn(held, wanted *corev1.Pod) int {
	count := 0
	for _, port := range model.ClassOf(held).Ports {
		if slices.ContainsFunc(model.ClassOf(wanted).Ports, func(p model.HostPort) bool {
			return p.Port == port.Port && p.Protocol == port.Protocol && (p.IP == port.IP || p.IP == model.AnyHostIP || port.IP == model.AnyHostIP)
		}) {
			count++
		}
	}
	return count
}

func byImportance(pods []*plainPod) {
	slices.SortFunc(pods, func(a, b *plainPod) int { // PR7
		return cmp.Or(
			-cmp.Compare(model.Priority(a.obj), model.Priority(b.obj)),
			cmp.Compare(model.StartUnixNano(a.obj), model.StartUnixNano(b.obj)),
			cmp.Compare(a.obj.UID, b.obj.UID))
	})
}

func cheaper(a, b plainVictims) bool {
	for _, criterion := range criteria {
		if x, y := criterion(a), criterion(b); x != y {
			return x < y
		}
	}
	return false
}

func equallyCheap(a, b plainVictims) bool { return !cheaper(a, b) && !cheaper(b, a) }

func uidsOf(pods []*plainPod) []types.UID {
	var out []types.UID
	for _, p := range pods {
		out = append(out, p.obj.UID)
	}
	return out
}

// criteria are what nodes and choices are compared by (PR10, T3), less being better.
var criteria = []func(c plainVictims) int64{
	func(c plainVictims) int64 { return int64(c.violations) },
	func(c plainVictims) int64 { return highestOf(c.pods) },
	func(c plainVictims) int64 {
		var sum int64
		for _, p := range c.pods {
			sum += int64(model.Priority(p.obj)) + math.MaxInt32 + 1
		}
		return sum
	},
	func(c plainVictims) int64 { return int64(len(c.pods)) },
	func(c plainVictims) int64 {
		earliest := model.NeverStarted
		for _, p := range c.pods {
			if int64(model.Priority(p.obj)) == highestOf(c.pods) {
				earliest = min(earliest, model.StartUnixNano(p.obj))
			}
		}
		return -earliest
	},
	func(c plainVictims) int64 { return min(elsewhere(c), 1) },
}

func highestOf(pods []*plainPod) int64 {
	highest := int64(math.MinInt64)
	for _, p := range pods {
		highest = max(highest, int64(model.Priority(p.obj)))
	}
	return highest
}

// chooseNode narrows the candidates down criterion by criterion (PR10, T3).
func chooseNode(all []plainVictims, pod *corev1.Pod) plainVictims {
	for _, criterion := range criteria {
		least := int64(math.MaxInt64)
		for _, c := range all {
			least = min(least, criterion(c))
		}
		all = slices.DeleteFunc(slices.Clone(all), func(c plainVictims) bool { return criterion(c) != least })
	}
	var names []string
	for _, c := range all {
		names = append(names, c.node)
	}
	name := onRing(names, pod)
	return all[slices.IndexFunc(all, func(c plainVictims) bool { return c.node == name })]
}
