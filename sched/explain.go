package sched

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// NodeVerdict is what one node says to a pod.
type NodeVerdict struct {
	Node string
	// Reasons are all that keep the pod off; none means that it fits.
	Reasons []Reason
	// Preemption says what evicting pods of lower priority would do; "" where the pod fits or may not preempt.
	Preemption string
	// Victims are those who would have to be evicted, on this node or others, by key, most important first; Ending
	// those who are ending anyway and would have to be waited for.
	Victims []string
	Ending  []string
}

// Explain asks every node of a state about a pod, bound or not, in the order of the nodes' names. A bound pod is asked
// about as if it were not yet there. goOn is asked before each node, and may take its time to let others work; nil: it goes on
// until ctx ends. When either says so first the answer is its error.
func Explain(ctx context.Context, state *fsm.View, pod *corev1.Pod, goOn func() error) ([]NodeVerdict, error) {
	return ExplainOn(ctx, state, pod, func(string) bool { return true }, goOn)
}

// ExplainOn asks only some of the nodes.
func ExplainOn(ctx context.Context, state *fsm.View, pod *corev1.Pod, asked func(node string) bool, goOn func() error) ([]NodeVerdict, error) {
	if goOn == nil {
		goOn = ctx.Err
	}
	c := state.EffectiveClass(model.ClassOf(pod), pod)
	rules := rulesWithout(state, c, pod)
	mayPreempt := *state.SchedulerConfig().Spec.Preemption.Enabled && !c.NeverPreempts
	budgets := &stateBudgets{state: state, known: map[types.UID]*Budget{}}
	v := &View{byName: map[string]int32{}, topo: rules}
	list := func(n *node) {
		if n.pods == nil {
			addPods(state, n, pod)
		}
	}
	state.Nodes.Scan("", func(name string, obj *corev1.Node) bool {
		if rules == nil && !asked(name) { // its pods are in nobody's way elsewhere
			return true
		}
		v.byName[name] = int32(len(v.nodes))
		v.nodes = append(v.nodes, *nodeWithout(state, obj, pod, c))
		n := &v.nodes[len(v.nodes)-1]
		if n.slot = v.byName[name]; rules != nil && mayPreempt {
			list(n) // those of one node may be in the way on another
		}
		return true
	})
	how := preemptingOf(state.SchedulerConfig())
	question := newProblem(c, how)
	question.meter = &meter{left: explainWork}
	question.solver.Meter = question.meter
	var blockers *blockerSearch
	if rules != nil {
		question.topo = &topoProblem{view: v, judge: rules.Judge(c), most: int(how.otherNodes), meter: question.meter}
		blockers = &blockerSearch{
			state: state, view: v, judge: rules.Judge(c), class: c, asked: pod, list: list,
			terms: map[uint64]map[int32]*Blockers{},
		}
	}
	out := make([]NodeVerdict, 0, len(v.nodes))
	for i := range v.nodes {
		if !asked(v.nodes[i].name) {
			continue
		}
		if err := cmp.Or(ctx.Err(), goOn()); err != nil {
			return nil, fmt.Errorf("%d of %d nodes were asked: %w", i, len(v.nodes), err)
		}
		if question.meter.out() {
			question.solver.Limit = 0
		}
		out = append(out, NodeVerdict{Node: v.nodes[i].name})
		n, verdict := &v.nodes[i], &out[len(out)-1]
		var scratch model.Usage
		for _, r := range model.Check(c, n.obj, n.alloc, n.usageOf(c, &scratch)) {
			verdict.Reasons = append(verdict.Reasons, Reason{Reason: r, Blockers: keptFrom(c, n, &r)})
		}
		if rules != nil {
			verdict.Reasons = append(verdict.Reasons, blockers.reasons(n.name)...)
		}
		if len(verdict.Reasons) > 0 && mayPreempt {
			list(n)
			question.explain(n, budgets, verdict)
		}
	}
	return out, nil
}

// explainWork is how much work the searches for victims of one question may be. On the nodes that are asked when it is
// used up victims are chosen by reprieve alone, as without a search.
const explainWork = 50 * stepWork

// rulesWithout is what the state's pods ask of each other, without one of them and without the nominations that are not
// in its way; nil where there is nothing that can keep the class off a node.
func rulesWithout(state *fsm.View, c *model.Class, pod *corev1.Pod) *model.Topology {
	rules := state.RulesFor(c)
	if rules == nil {
		return nil
	}
	key := fsm.PodKey(pod.Namespace, pod.Name)
	if stored, ok := state.Pods.Get(key); ok && stored.UID == pod.UID && stored.Spec.NodeName != "" &&
		!model.Terminal(stored) {
		rules.RemovePod(stored.Spec.NodeName, model.ClassOf(state.Charged(stored)), model.Terminating(stored))
	}
	own, _ := state.Nominations.Get(key)
	state.Nominations.Scan("", func(_ string, nom *fsm.Nomination) bool {
		if yieldsTo(nom, own, pod.UID) {
			rules.Unnominate(nom.Node, nom.Class(), nom.Priority)
		}
		return true
	})
	return rules
}

// nodeWithout is the node as a state shows it, without the pod and its nomination, and with its other pods counted but
// not listed.
func nodeWithout(state *fsm.View, obj *corev1.Node, pod *corev1.Pod, c *model.Class) *node {
	n := &node{name: obj.Name, obj: obj, alloc: model.Allocatable(obj), usage: *state.Usage(obj.Name)}
	if stored, ok := state.Pods.Get(fsm.PodKey(pod.Namespace, pod.Name)); ok && stored.UID == pod.UID &&
		stored.Spec.NodeName == obj.Name && !model.Terminal(stored) {
		n.usage = n.usage.Without(c)
	}
	own, _ := state.Nominations.Get(fsm.PodKey(pod.Namespace, pod.Name))
	if own != nil && own.Node != obj.Name {
		own = nil // for room it matters on its node only
	}
	state.NominationsOnNode(obj.Name, func(nom *fsm.Nomination) bool {
		if !yieldsTo(nom, own, pod.UID) { // NM4
			n.noms = append(n.noms, &nomination{Claim: nom.Claim()})
		}
		return true
	})
	return n
}

// addPods lists the node's pods but for one.
func addPods(state *fsm.View, n *node, except *corev1.Pod) {
	state.ClassesOnNode(n.name, func(obj *corev1.Pod, c *model.Class) bool {
		if obj.UID != except.UID && !model.Terminal(obj) {
			p := newPod(obj, c)
			p.Slot = n.slot
			n.pods = append(n.pods, p)
		}
		return true
	})
	slices.SortFunc(n.pods, moreImportant)
}

// explain adds to a node's verdict what preempting there would do: the same search as the scheduler's.
func (p *problem) explain(n *node, budgets Budgets, verdict *NodeVerdict) {
	for _, r := range verdict.Reasons {
		if !r.Kind.Resolvable() {
			verdict.Preemption = "Preemption is not helpful for scheduling"
			return
		}
	}
	set := p.chooseVictims(n, budgets)
	switch set.verdict {
	case verdictNoVictims:
		verdict.Preemption = "No preemption victims found for incoming pod"
	case verdictStillFails:
		verdict.Preemption = "would not fit even without all pods of lower priority"
		if o := p.topo; o != nil && o.tooFar {
			verdict.Preemption = fmt.Sprintf(
				"pods of more than %d other nodes would have to go (preemption.maxOtherNodes)", o.most)
		}
	case verdictBlocked:
		verdict.Preemption = lacking(set.blocked)
		if len(set.blocked) == 0 {
			verdict.Preemption = "would not fit without evicting pods that its own affinity needs" // PR14
		}
	case verdictCandidate:
		verdict.Preemption = "would fit after evicting"
		if len(set.victims) == 0 {
			verdict.Preemption = "will fit when pods that are ending have gone"
		}
		verdict.Victims, verdict.Ending = keys(set.victims), keys(set.waits)
	}
}

func keys(pods []*pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.key)
	}
	return out
}
