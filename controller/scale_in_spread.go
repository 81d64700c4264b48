package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/owners"
)

// Scale-in that keeps pods spread, for ReplicaSets that ask for it: TS16 says
// that nothing keeps a spread after removals, and in Kubernetes nothing does.

// spread is one constraint of the pods, with the pods that it counts.
type spread struct {
	key        string
	hard       bool
	maxSkew    int
	minDomains int
	nodes      map[string]string // eligible nodes: their domain
	domains    map[string]int    // every eligible domain: pods that count there
}

// cell are the candidates whose nodes are in the same domains of all
// constraints, those that go first in front.
type cell struct {
	domains []string // one for each constraint; "" where the node has none
	pods    []*candidate
}

// spreadScaleIn takes pods from the fullest domains. all are in the order of
// the rules; those without a node, or on a node that the constraints do not
// know, go first.
func spreadScaleIn(spreads []*spread, all []*candidate, count int) []Victim {
	var out []Victim
	var cells []*cell
	byDomains := map[string]*cell{}
	for _, c := range all {
		domains, ok := domainsOf(spreads, c.pod)
		switch {
		case !ok && len(out) < count && c.pod.Spec.NodeName == "":
			out = append(out, Victim{Key: c.key, Pod: c.pod, Rule: RuleUnassigned})
		case !ok && len(out) < count:
			out = append(out, Victim{Key: c.key, Pod: c.pod, Rule: RuleSpread, Detail: "its node is in no domain"})
		case ok:
			id := strings.Join(domains, "\x00")
			if byDomains[id] == nil {
				byDomains[id] = &cell{domains: domains}
				cells = append(cells, byDomains[id])
			}
			byDomains[id].pods = append(byDomains[id].pods, c)
		}
	}
	count -= len(out)
	chosen := takeFromFullest(spreads, cells, count, nil)
	if skewed(spreads, cells, chosen) {
		if b := feasible(spreads, cells, count); b != nil {
			chosen = takeFromFullest(spreads, cells, count, b)
		}
	}
	return append(out, named(spreads, cells, chosen)...)
}

// named are the chosen pods, each cell's first ones first.
func named(spreads []*spread, cells []*cell, chosen []int) []Victim {
	left, next := counts(spreads), make([]int, len(cells))
	out := make([]Victim, len(chosen))
	for n, i := range chosen {
		c, pod := cells[i], cells[i].pods[next[i]]
		out[n] = Victim{Key: pod.key, Pod: pod.pod, Rule: RuleSpread,
			Detail: fmt.Sprintf("%s=%s holds %d", spreads[0].key, c.domains[0], left[0][c.domains[0]])}
		next[i]++
		for s := range spreads {
			left[s][c.domains[s]]--
		}
	}
	return out
}

// takeFromFullest gives the cells that pods are taken from, one by one: always
// from the one whose domains hold the most, of those that hold equally many
// from the one whose next pod goes first by the rules. bounds, if given, are
// kept.
func takeFromFullest(spreads []*spread, cells []*cell, count int, b *bounds) []int {
	left := counts(spreads)
	next := make([]int, len(cells))
	var chosen []int
	for range count {
		best := -1
		for i, c := range cells {
			if next[i] == len(c.pods) || b != nil && !b.mayTake(left, c) {
				continue
			}
			if best < 0 || fuller(left, c, cells[best], c.pods[next[i]], cells[best].pods[next[best]], b) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		chosen = append(chosen, best)
		next[best]++
		for s := range spreads {
			left[s][cells[best].domains[s]]--
		}
	}
	return chosen
}

func fuller(left []map[string]int, a, b *cell, podA, podB *candidate, limits *bounds) bool {
	if limits != nil { // what is above its bound first
		if over, under := limits.over(left, a), limits.over(left, b); over != under {
			return over > under
		}
	}
	for s := range left {
		if x, y := left[s][a.domains[s]], left[s][b.domains[s]]; x != y {
			return x > y
		}
	}
	order, _ := compareCandidates(podA, podB)
	return order < 0
}

func counts(spreads []*spread) []map[string]int {
	out := make([]map[string]int, len(spreads))
	for i, s := range spreads {
		out[i] = map[string]int{}
		// order does not matter: one map is copied to another
		for domain, n := range s.domains {
			out[i][domain] = n
		}
	}
	return out
}

// skewed: after the chosen removals a hard constraint is violated.
func skewed(spreads []*spread, cells []*cell, chosen []int) bool {
	left := counts(spreads)
	for _, i := range chosen {
		for s := range spreads {
			left[s][cells[i].domains[s]]--
		}
	}
	for i, s := range spreads {
		if s.hard && s.skew(left[i]) > s.maxSkew {
			return true
		}
	}
	return false
}

// skew is the most that a domain has above the least (TS2, TS3).
func (s *spread) skew(left map[string]int) int {
	least, most := -1, 0
	// order does not matter: least and most
	for _, n := range left {
		if least < 0 || n < least {
			least = n
		}
		most = max(most, n)
	}
	if len(left) < s.minDomains {
		least = 0
	}
	return most - max(least, 0)
}

// bounds are how many pods each domain of each hard constraint may keep.
type bounds struct{ least, most []int }

func (b *bounds) mayTake(left []map[string]int, c *cell) bool {
	for s := range b.least {
		if left[s][c.domains[s]] <= b.least[s] {
			return false
		}
	}
	return true
}

// over is by how much the cell's domains are above their bounds.
func (b *bounds) over(left []map[string]int, c *cell) int {
	n := 0
	for s := range b.most {
		n += max(0, left[s][c.domains[s]]-b.most[s])
	}
	return n
}

// feasibleSteps bounds the search for bounds.
const feasibleSteps = 20_000_000

// feasible looks for bounds within which count pods can be taken so that all
// hard constraints hold; nil if there are none, or if the search gives up. For
// each constraint it tries the least that a domain keeps, from the evenest on.
func feasible(spreads []*spread, cells []*cell, count int) *bounds {
	b := &bounds{least: make([]int, len(spreads)), most: make([]int, len(spreads))}
	left := max(1, feasibleSteps/max(1, count*len(cells)))
	var try func(s int) bool
	try = func(s int) bool {
		if s == len(spreads) {
			left--
			chosen := takeFromFullest(spreads, cells, count, b)
			return len(chosen) == count && !skewed(spreads, cells, chosen)
		}
		if !spreads[s].hard {
			b.least[s], b.most[s] = 0, 1<<30
			return try(s + 1)
		}
		for least := spreads[s].highestLeast(count); least >= 0 && left > 0; least-- {
			b.least[s], b.most[s] = least, least+spreads[s].maxSkew
			if try(s + 1) {
				return true
			}
		}
		return false
	}
	if !try(0) {
		return nil
	}
	return b
}

// highestLeast is the most that the emptiest domain can keep when count pods
// go.
func (s *spread) highestLeast(count int) int {
	if len(s.domains) < max(s.minDomains, 1) {
		return 0
	}
	least, sum := -1, 0
	// order does not matter: the least, and the sum
	for _, n := range s.domains {
		if least < 0 || n < least {
			least = n
		}
		sum += n
	}
	return max(0, min(least, (sum-count)/len(s.domains)))
}

// spreadsOf are the distinct constraints of the candidates: hard ones first,
// and of those the ones with fewer domains, so that zones come before hosts.
func spreadsOf(v *fsm.View, all []*candidate) []*spread {
	var out []*spread
	seen := map[string]bool{}
	var last *corev1.TopologySpreadConstraint
	for _, c := range all {
		constraints := c.pod.Spec.TopologySpreadConstraints
		if len(constraints) == 0 || &constraints[0] == last {
			continue // most pods share their constraints with the one before
		}
		last = &constraints[0]
		for i := range constraints {
			selector, ok := spreadSelector(&constraints[i], c.pod)
			id := fmt.Sprint(constraints[i].TopologyKey, constraints[i].WhenUnsatisfiable, selector)
			if !ok || seen[id] {
				continue
			}
			seen[id] = true
			out = append(out, newSpread(v, &constraints[i], c.pod, selector))
		}
	}
	slices.SortStableFunc(out, func(a, b *spread) int {
		return cmp.Or(compareBool(b.hard, a.hard), cmp.Compare(len(a.domains), len(b.domains)), strings.Compare(a.key, b.key))
	})
	return out
}

// spreadSelector is a constraint's selector with the pod's values of its
// matchLabelKeys (TS11).
func spreadSelector(c *corev1.TopologySpreadConstraint, pod *corev1.Pod) (labels.Selector, bool) {
	if c.LabelSelector == nil {
		return nil, false // TS7: counts nobody
	}
	s := c.LabelSelector.DeepCopy()
	for _, key := range c.MatchLabelKeys {
		if value, ok := pod.Labels[key]; ok {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	return selector, err == nil && !selector.Empty()
}

// newSpread finds the domains of a constraint and counts in them (TS3–TS7).
func newSpread(v *fsm.View, c *corev1.TopologySpreadConstraint, pod *corev1.Pod, selector labels.Selector) *spread {
	s := &spread{
		key: c.TopologyKey, hard: c.WhenUnsatisfiable == corev1.DoNotSchedule, maxSkew: int(c.MaxSkew), minDomains: 1,
		nodes: map[string]string{}, domains: map[string]int{},
	}
	if c.MinDomains != nil {
		s.minDomains = int(*c.MinDomains)
	}
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	v.Nodes.Scan("", func(name string, n *corev1.Node) bool {
		if counted(c, pod, &affinity, n) {
			s.nodes[name] = n.Labels[c.TopologyKey]
			s.domains[n.Labels[c.TopologyKey]] += 0
		}
		return true
	})
	v.Pods.Scan(pod.Namespace+"/", func(_ string, p *corev1.Pod) bool {
		domain, eligible := s.nodes[p.Spec.NodeName]
		if eligible && owners.Active(p) && selector.Matches(labels.Set(p.Labels)) {
			s.domains[domain]++
		}
		return true
	})
	return s
}

// counted: a node's domain counts for a constraint (TS4, TS5, TS6).
func counted(c *corev1.TopologySpreadConstraint, pod *corev1.Pod, affinity *nodeaffinity.RequiredNodeAffinity, n *corev1.Node) bool {
	for i := range pod.Spec.TopologySpreadConstraints {
		other := &pod.Spec.TopologySpreadConstraints[i]
		if _, ok := n.Labels[other.TopologyKey]; !ok && other.WhenUnsatisfiable == c.WhenUnsatisfiable {
			return false
		}
	}
	if c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor {
		if match, err := affinity.Match(n); err != nil || !match {
			return false
		}
	}
	if c.NodeTaintsPolicy == nil || *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyIgnore {
		return true
	}
	return !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) &&
			matching(pod.Spec.Tolerations, &t) == nil
	})
}

// domainsOf are the domains that a pod's node is in, one for each constraint;
// false if it is in none of one of them.
func domainsOf(spreads []*spread, pod *corev1.Pod) ([]string, bool) {
	out := make([]string, len(spreads))
	for i, s := range spreads {
		domain, ok := s.nodes[pod.Spec.NodeName]
		if !ok {
			return nil, false
		}
		out[i] = domain
	}
	return out, true
}
