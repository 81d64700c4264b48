package model

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// plainCluster is a cluster as plain lists. What a pod finds in it is worked out from the objects and the rules alone,
// anew for every question; it shares nothing with Topology and Judge.
type plainCluster struct {
	nodes      []*corev1.Node
	namespaces map[string]map[string]string
	pods       []*plainPod
}

// plainPod is on its node, or nominated to it.
type plainPod struct {
	pod       *corev1.Pod
	node      string
	nominated bool
	priority  int32 // of the nomination
}

func (p *plainCluster) node(name string) *corev1.Node {
	for _, n := range p.nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// present calls f for the pods that are on a node that exists, and for those nominated with at least the priority if
// they are to count.
func (p *plainCluster) present(priority int32, nominations bool, f func(q *plainPod, n *corev1.Node)) {
	for _, q := range p.pods {
		if q.nominated && (!nominations || q.priority < priority) {
			continue
		}
		if n := p.node(q.node); n != nil {
			f(q, n)
		}
	}
}

func plainSelector(s *metav1.LabelSelector) labels.Selector {
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		panic(err)
	}
	return sel
}

// spreadMatches says whether a pod counts for a constraint of another (TS7, TS11).
func spreadMatches(k *corev1.TopologySpreadConstraint, owner, other *corev1.Pod) bool {
	demands := !plainSelector(k.LabelSelector).Empty()
	for _, key := range k.MatchLabelKeys {
		_, has := owner.Labels[key]
		demands = demands || has
	}
	if !demands || owner.Namespace != other.Namespace || other.DeletionTimestamp != nil {
		return false
	}
	return spreadSelects(k, owner, other)
}

func spreadSelects(k *corev1.TopologySpreadConstraint, owner, other *corev1.Pod) bool {
	for _, key := range k.MatchLabelKeys {
		if v, ok := owner.Labels[key]; ok && other.Labels[key] != v {
			return false
		}
	}
	return plainSelector(k.LabelSelector).Matches(labels.Set(other.Labels))
}

func plainEligible(k *corev1.TopologySpreadConstraint, owner *corev1.Pod, n *corev1.Node) bool {
	if k.NodeAffinityPolicy == nil || *k.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor {
		if ok, _ := nodeaffinity.GetRequiredNodeAffinity(owner).Match(n); !ok {
			return false
		}
	}
	if k.NodeTaintsPolicy != nil && *k.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor {
		taints := n.Spec.Taints
		if n.Spec.Unschedulable {
			taints = append([]corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}, taints...)
		}
		for i := range taints {
			if taints[i].Effect == corev1.TaintEffectPreferNoSchedule {
				continue
			}
			ok := false
			for j := range owner.Spec.Tolerations {
				ok = ok || Tolerates(&owner.Spec.Tolerations[j], &taints[i])
			}
			if !ok {
				return false
			}
		}
	}
	return true
}

func constraintsOf(pod *corev1.Pod, when corev1.UnsatisfiableConstraintAction) []*corev1.TopologySpreadConstraint {
	var out []*corev1.TopologySpreadConstraint
	for i := range pod.Spec.TopologySpreadConstraints {
		if k := &pod.Spec.TopologySpreadConstraints[i]; k.WhenUnsatisfiable == when {
			out = append(out, k)
		}
	}
	return out
}

func hasKeys(n *corev1.Node, ks []*corev1.TopologySpreadConstraint) bool {
	for _, k := range ks {
		if _, ok := n.Labels[k.TopologyKey]; !ok {
			return false
		}
	}
	return true
}

func (p *plainCluster) spreadFails(pod *corev1.Pod, n *corev1.Node, nominations bool) (kinds []ReasonKind) {
	hard := constraintsOf(pod, corev1.DoNotSchedule)
	for _, k := range hard {
		value, ok := n.Labels[k.TopologyKey]
		if !ok {
			kinds = append(kinds, TopologyMissing)
			continue
		}
		domains := map[string]int{}
		for _, m := range p.nodes {
			if hasKeys(m, hard) && plainEligible(k, pod, m) {
				domains[m.Labels[k.TopologyKey]] += 0
			}
		}
		p.present(Priority(pod), nominations, func(q *plainPod, m *corev1.Node) {
			if hasKeys(m, hard) && plainEligible(k, pod, m) && spreadMatches(k, pod, q.pod) {
				domains[m.Labels[k.TopologyKey]]++
			}
		})
		least := math.MaxInt
		for _, c := range domains {
			least = min(least, c)
		}
		want := 1
		if k.MinDomains != nil {
			want = int(*k.MinDomains)
		}
		if len(domains) < want {
			least = 0
		}
		self := 0
		if spreadSelects(k, pod, pod) {
			self = 1
		}
		if domains[value]+self-least > int(k.MaxSkew) {
			kinds = append(kinds, TopologySpread)
		}
	}
	return kinds
}

// termMatches says whether an affinity term of owner is about other.
func (p *plainCluster) termMatches(owner *corev1.Pod, t *corev1.PodAffinityTerm, other *corev1.Pod) bool {
	in := false
	for _, ns := range t.Namespaces {
		in = in || ns == other.Namespace
	}
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
		in = owner.Namespace == other.Namespace
	}
	if t.NamespaceSelector != nil {
		in = in || plainSelector(t.NamespaceSelector).Matches(labels.Set(p.namespaces[other.Namespace]))
	}
	if !in || t.LabelSelector == nil {
		return false
	}
	for _, key := range t.MatchLabelKeys {
		if v, ok := owner.Labels[key]; ok && other.Labels[key] != v {
			return false
		}
	}
	for _, key := range t.MismatchLabelKeys {
		if v, ok := owner.Labels[key]; ok && other.Labels[key] == v {
			return false
		}
	}
	return plainSelector(t.LabelSelector).Matches(labels.Set(other.Labels))
}

func required(pod *corev1.Pod) (affinity, anti []corev1.PodAffinityTerm) {
	if a := pod.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			affinity = a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		}
		if a.PodAntiAffinity != nil {
			anti = a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		}
	}
	return affinity, anti
}

func preferred(pod *corev1.Pod) (affinity, anti []corev1.WeightedPodAffinityTerm) {
	if a := pod.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			affinity = a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		}
		if a.PodAntiAffinity != nil {
			anti = a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		}
	}
	return affinity, anti
}

func together(a, b *corev1.Node, key string) bool {
	x, okA := a.Labels[key]
	y, okB := b.Labels[key]
	return okA && okB && x == y
}

func (p *plainCluster) affinityFails(pod *corev1.Pod, n *corev1.Node, nominations bool) (kinds []ReasonKind) {
	affinity, anti := required(pod)
	matchesAll := func(q *corev1.Pod) bool {
		for i := range affinity {
			if !p.termMatches(pod, &affinity[i], q) {
				return false
			}
		}
		return len(affinity) > 0
	}
	labelled, found, anywhere := true, true, false
	for i := range affinity {
		key := affinity[i].TopologyKey
		_, ok := n.Labels[key]
		labelled = labelled && ok
		near := false
		p.present(Priority(pod), nominations, func(q *plainPod, m *corev1.Node) {
			if matchesAll(q.pod) {
				near = near || together(n, m, key)
				_, counted := m.Labels[key]
				anywhere = anywhere || counted
			}
		})
		found = found && near
	}
	if !labelled || !found && (anywhere || !matchesAll(pod)) {
		kinds = append(kinds, PodAffinity)
	}
	mine, theirs := false, false
	p.present(Priority(pod), nominations, func(q *plainPod, m *corev1.Node) {
		for i := range anti {
			mine = mine || p.termMatches(pod, &anti[i], q.pod) && together(n, m, anti[i].TopologyKey)
		}
		_, carried := required(q.pod)
		for i := range carried {
			theirs = theirs || p.termMatches(q.pod, &carried[i], pod) && together(n, m, carried[i].TopologyKey)
		}
	})
	if mine {
		kinds = append(kinds, PodAntiAffinity)
	}
	if theirs {
		kinds = append(kinds, ExistingAntiAffinity)
	}
	return kinds
}

// fails is the verdict on one node (NM4: with and without nominations).
func (p *plainCluster) fails(pod *corev1.Pod, n *corev1.Node) map[ReasonKind]bool {
	out := map[ReasonKind]bool{}
	for _, nominations := range []bool{false, true} {
		for _, k := range append(p.spreadFails(pod, n, nominations), p.affinityFails(pod, n, nominations)...) {
			out[k] = true
		}
	}
	return out
}

// rawSpread is the score before normalisation (TS10); system: the constraints are the cluster's own.
func (p *plainCluster) rawSpread(pod *corev1.Pod, n *corev1.Node, feasible []*corev1.Node, system bool) (int64, bool) {
	soft := constraintsOf(pod, corev1.ScheduleAnyway)
	scored := func(m *corev1.Node) bool { return system || hasKeys(m, soft) }
	if !scored(n) {
		return 0, false
	}
	var score float64
	for _, k := range soft {
		value, ok := n.Labels[k.TopologyKey]
		if !ok {
			continue
		}
		size, seen := 0, map[string]bool{}
		for _, m := range feasible {
			if scored(m) && (k.TopologyKey == corev1.LabelHostname || !seen[m.Labels[k.TopologyKey]]) {
				seen[m.Labels[k.TopologyKey]] = true
				size++
			}
		}
		count := 0
		p.present(0, false, func(q *plainPod, m *corev1.Node) {
			if !spreadMatches(k, pod, q.pod) {
				return
			}
			if k.TopologyKey == corev1.LabelHostname {
				if m == n {
					count++
				}
			} else if scored(m) && m.Labels[k.TopologyKey] == value && together(n, m, k.TopologyKey) && plainEligible(k, pod, m) {
				count++
			}
		})
		score += float64(count)*math.Log(float64(size+2)) + float64(k.MaxSkew-1)
	}
	return int64(math.Round(score)), true
}

func (p *plainCluster) rawAffinity(pod *corev1.Pod, n *corev1.Node, hardWeight int64) int64 {
	var score int64
	weigh := func(owner *corev1.Pod, t *corev1.PodAffinityTerm, weight int64, other *corev1.Pod, m *corev1.Node) {
		if p.termMatches(owner, t, other) && together(n, m, t.TopologyKey) {
			score += weight
		}
	}
	both := func(owner, other *corev1.Pod, m *corev1.Node) {
		like, dislike := preferred(owner)
		for i := range like {
			weigh(owner, &like[i].PodAffinityTerm, int64(like[i].Weight), other, m)
		}
		for i := range dislike {
			weigh(owner, &dislike[i].PodAffinityTerm, -int64(dislike[i].Weight), other, m)
		}
	}
	p.present(0, false, func(q *plainPod, m *corev1.Node) {
		both(pod, q.pod, m)
		both(q.pod, pod, m)
		must, _ := required(q.pod)
		for i := range must {
			weigh(q.pod, &must[i], hardWeight, pod, m)
		}
	})
	return score
}
