package sched

import (
	"math"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// The oracle's PodTopologySpread, InterPodAffinity and ImageLocality: straight from the API's objects, every count
// taken anew for every question.

// stander is a pod on a node, as these plugins see it.
type stander struct {
	pod     *corev1.Pod
	node    *corev1.Node
	leaving bool
}

// standing lists who is on which node: everybody but without, and on demand, as if they were there already, the
// nominated pods that count for a pod (NM4; ours: on every node).
func (o *oracle) standing(pod *corev1.Pod, nominated bool, without ...*plainPod) []stander {
	byName := map[string]*corev1.Node{}
	for _, n := range o.nodes {
		byName[n.Name] = n
	}
	var out []stander
	for _, p := range o.pods {
		if n, ok := byName[p.node]; ok && !slices.Contains(without, p) {
			out = append(out, stander{p.obj, n, p.leaving})
		}
	}
	for _, nom := range o.noms {
		if n, ok := byName[nom.node]; ok && nominated && o.seen(nom, pod) {
			out = append(out, stander{nom.pod, n, false})
		}
	}
	return out
}

// plainConstraint is a spread constraint with everything decided that its fields leave open.
type plainConstraint struct {
	corev1.TopologySpreadConstraint
	selector labels.Selector
}

// constraints returns the pod's spread constraints of one kind, its own or, where it has none, the cluster's; and
// whether a node without all of their keys is out (TS4).
func (o *oracle) constraints(pod *corev1.Pod, hard bool) (out []plainConstraint, allKeys bool) {
	all, system := pod.Spec.TopologySpreadConstraints, false
	var given labels.Selector
	if len(all) == 0 { // TS12
		all, system = o.defaults()
		if given = o.defaultSelector(pod); given.Empty() {
			return nil, true
		}
	}
	for _, c := range all {
		if (c.WhenUnsatisfiable == corev1.DoNotSchedule) != hard {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
		if err != nil {
			panic(err)
		}
		if given != nil {
			selector = given
		}
		for _, key := range c.MatchLabelKeys { // TS11
			if value, ok := pod.Labels[key]; ok && c.LabelSelector != nil {
				r, _ := labels.SelectorFromSet(labels.Set{key: value}).Requirements()
				selector = selector.Add(r...)
			}
		}
		out = append(out, plainConstraint{c, selector})
	}
	return out, !system
}

// defaults are the cluster's constraints, and whether they are the built-in ones (TS13, TS14).
func (o *oracle) defaults() ([]corev1.TopologySpreadConstraint, bool) {
	if o.config.PodTopologySpread.DefaultingType == berthv1.SpreadList {
		return o.config.PodTopologySpread.DefaultConstraints, false
	}
	return []corev1.TopologySpreadConstraint{
		{MaxSkew: 3, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway},
		{MaxSkew: 5, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway},
	}, true
}

// defaultSelector is that of the pod's services and of its owner together (TS12).
func (o *oracle) defaultSelector(pod *corev1.Pod) labels.Selector {
	selector := labels.NewSelector()
	o.state.Objects.Scan("services/"+pod.Namespace+"/", func(key string, obj *fsm.Object) bool {
		service, ok := obj.Value.(*corev1.Service)
		if !ok || service.Namespace != pod.Namespace {
			return false
		}
		if s := labels.SelectorFromSet(service.Spec.Selector); service.Spec.Selector != nil &&
			s.Matches(labels.Set(pod.Labels)) {
			r, _ := s.Requirements()
			selector = selector.Add(r...)
		}
		return true
	})
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "ReplicaSet" {
		if obj, ok := o.state.Objects.Get(fsm.ObjectKey("replicasets", pod.Namespace, owner.Name)); ok {
			if s, err := metav1.LabelSelectorAsSelector(obj.Value.(*appsv1.ReplicaSet).Spec.Selector); err == nil {
				r, _ := s.Requirements()
				selector = selector.Add(r...)
			}
		}
	}
	return selector
}

func hasKeys(n *corev1.Node, cs []plainConstraint) bool {
	return !slices.ContainsFunc(cs, func(c plainConstraint) bool {
		_, ok := n.Labels[c.TopologyKey]
		return !ok
	})
}

// included applies nodeAffinityPolicy (TS5) and nodeTaintsPolicy (TS6).
func (c *plainConstraint) included(n *corev1.Node, pod *corev1.Pod) bool {
	if c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor {
		if ok, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(n); !ok {
			return false
		}
	}
	if c.NodeTaintsPolicy == nil || *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyIgnore {
		return true
	}
	taints := slices.Clone(n.Spec.Taints)
	if n.Spec.Unschedulable { // Kubernetes puts the taint onto every cordoned node
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	for _, t := range taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule &&
			!slices.ContainsFunc(pod.Spec.Tolerations, func(l corev1.Toleration) bool {
				return model.Tolerates(&l, &t)
			}) {
			return false
		}
	}
	return true
}

// matching counts the pods that a constraint counts on one node (TS7).
func (c *plainConstraint) matching(n *corev1.Node, pod *corev1.Pod, all []stander) int {
	count := 0
	for _, s := range all {
		if s.node == n && s.pod.Namespace == pod.Namespace && !s.leaving && !c.selector.Empty() &&
			c.selector.Matches(labels.Set(s.pod.Labels)) {
			count++
		}
	}
	return count
}

// spreadFailures is PodTopologySpread's filter (TS1–TS9).
func (o *oracle) spreadFailures(n *corev1.Node, pod *corev1.Pod, all []stander) []model.ReasonKind {
	var out []model.ReasonKind
	cs, _ := o.constraints(pod, true)
	for _, c := range cs {
		value, ok := n.Labels[c.TopologyKey]
		if !ok {
			out = append(out, model.TopologyMissing)
			continue
		}
		domains := map[string]int{}
		for _, m := range o.nodes {
			if hasKeys(m, cs) && c.included(m, pod) {
				domains[m.Labels[c.TopologyKey]] += c.matching(m, pod, all)
			}
		}
		least := math.MaxInt32
		for _, count := range domains {
			least = min(least, count)
		}
		wanted := int32(1)
		if c.MinDomains != nil {
			wanted = *c.MinDomains
		}
		if len(domains) < int(wanted) { // TS3
			least = 0
		}
		self := 0
		if c.selector.Matches(labels.Set(pod.Labels)) { // TS8
			self = 1
		}
		if domains[value]+self-least > int(c.MaxSkew) { // TS2
			out = append(out, model.TopologySpread)
		}
	}
	return out
}

// termMatches says whether a pod is one of those that a term of owner's means.
func (o *oracle) termMatches(owner *corev1.Pod, t *corev1.PodAffinityTerm, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		panic(err)
	}
	add := func(keys []string, op func(value string) labels.Selector) {
		for _, key := range keys {
			if value, ok := owner.Labels[key]; ok && t.LabelSelector != nil {
				r, _ := op(key + "=" + value).Requirements()
				selector = selector.Add(r...)
			}
		}
	}
	parse := func(s string) labels.Selector {
		parsed, err := labels.Parse(s)
		if err != nil {
			panic(err)
		}
		return parsed
	}
	add(t.MatchLabelKeys, parse)
	add(t.MismatchLabelKeys, func(s string) labels.Selector { return parse(strings.Replace(s, "=", "!=", 1)) })
	there := slices.Contains(t.Namespaces, pod.Namespace)
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
		there = owner.Namespace == pod.Namespace
	}
	if t.NamespaceSelector != nil {
		namespaces, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
		if err != nil {
			panic(err)
		}
		there = there || namespaces.Matches(labels.Set(o.namespaces[pod.Namespace]))
	}
	return there && selector.Matches(labels.Set(pod.Labels))
}

func affinityOf(pod *corev1.Pod) (affinity *corev1.PodAffinity, anti *corev1.PodAntiAffinity) {
	affinity, anti = &corev1.PodAffinity{}, &corev1.PodAntiAffinity{}
	if a := pod.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			affinity = a.PodAffinity
		}
		if a.PodAntiAffinity != nil {
			anti = a.PodAntiAffinity
		}
	}
	return affinity, anti
}

// together says whether two nodes are in one domain of a key.
func together(a, b *corev1.Node, key string) bool {
	x, there := a.Labels[key]
	y, here := b.Labels[key]
	return there && here && x == y
}

// affinityFailures is InterPodAffinity's filter, both ways (AF2).
func (o *oracle) affinityFailures(n *corev1.Node, pod *corev1.Pod, all []stander) []model.ReasonKind {
	var out []model.ReasonKind
	affinity, anti := affinityOf(pod)
	required := affinity.RequiredDuringSchedulingIgnoredDuringExecution
	if len(required) > 0 && !o.affinityHolds(n, pod, required, all) {
		out = append(out, model.PodAffinity)
	}
	for _, s := range all {
		for _, t := range anti.RequiredDuringSchedulingIgnoredDuringExecution {
			if together(n, s.node, t.TopologyKey) && o.termMatches(pod, &t, s.pod) {
				out = append(out, model.PodAntiAffinity)
			}
		}
		_, carried := affinityOf(s.pod)
		for _, t := range carried.RequiredDuringSchedulingIgnoredDuringExecution {
			if together(n, s.node, t.TopologyKey) && o.termMatches(s.pod, &t, pod) {
				out = append(out, model.ExistingAntiAffinity)
			}
		}
	}
	return out
}

// affinityHolds: in the node's domain of every key is a pod that matches all terms; or, so that a first one can come,
// no such pod is anywhere and the pod matches its own terms.
func (o *oracle) affinityHolds(n *corev1.Node, pod *corev1.Pod, terms []corev1.PodAffinityTerm, all []stander) bool {
	matchesAll := func(p *corev1.Pod) bool {
		for _, t := range terms {
			if !o.termMatches(pod, &t, p) {
				return false
			}
		}
		return true
	}
	holds, anywhere := true, false
	for _, t := range terms {
		if _, ok := n.Labels[t.TopologyKey]; !ok {
			return false
		}
		here := false
		for _, s := range all {
			if !matchesAll(s.pod) {
				continue
			}
			here = here || together(n, s.node, t.TopologyKey)
			_, ok := s.node.Labels[t.TopologyKey]
			anywhere = anywhere || ok
		}
		holds = holds && here
	}
	return holds || !anywhere && matchesAll(pod)
}

// spreadScores is PodTopologySpread's score (TS10), normalised.
func (o *oracle) spreadScores(nodes []*corev1.Node, pod *corev1.Pod, all []stander) map[string]int64 {
	cs, allKeys := o.constraints(pod, false)
	if len(cs) == 0 {
		return nil
	}
	var scored []*corev1.Node
	for _, n := range nodes {
		if !allKeys || hasKeys(n, cs) {
			scored = append(scored, n)
		}
	}
	raw := map[string]int64{}
	least, most := int64(math.MaxInt64), int64(0)
	for _, n := range scored {
		sum := 0.0
		for _, c := range cs {
			value, ok := n.Labels[c.TopologyKey]
			if !ok {
				continue
			}
			count, size := 0, len(scored)
			if c.TopologyKey == corev1.LabelHostname {
				count = c.matching(n, pod, all)
			} else {
				domains := map[string]bool{}
				for _, m := range scored {
					domains[m.Labels[c.TopologyKey]] = true
				}
				size = len(domains)
				for _, m := range o.nodes {
					if m.Labels[c.TopologyKey] == value && (!allKeys || hasKeys(m, cs)) && c.included(m, pod) {
						count += c.matching(m, pod, all)
					}
				}
			}
			sum += float64(count)*math.Log(float64(size+2)) + float64(c.MaxSkew-1)
		}
		raw[n.Name] = int64(math.Round(sum))
		least, most = min(least, raw[n.Name]), max(most, raw[n.Name])
	}
	out := map[string]int64{}
	for name, r := range raw {
		out[name] = 100
		if most > 0 {
			out[name] = 100 * (most + least - r) / most
		}
	}
	return out
}

// affinityScores is InterPodAffinity's score, both ways, normalised.
func (o *oracle) affinityScores(nodes []*corev1.Node, pod *corev1.Pod, all []stander) map[string]int64 {
	raw := map[string]int64{}
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for _, n := range nodes {
		sum := int64(0)
		for _, s := range all {
			add := func(owner *corev1.Pod, t *corev1.PodAffinityTerm, other *corev1.Pod, weight int64) {
				if together(n, s.node, t.TopologyKey) && o.termMatches(owner, t, other) {
					sum += weight
				}
			}
			preferred := func(owner, other *corev1.Pod) {
				affinity, anti := affinityOf(owner)
				for _, t := range affinity.PreferredDuringSchedulingIgnoredDuringExecution {
					add(owner, &t.PodAffinityTerm, other, int64(t.Weight))
				}
				for _, t := range anti.PreferredDuringSchedulingIgnoredDuringExecution {
					add(owner, &t.PodAffinityTerm, other, -int64(t.Weight))
				}
			}
			preferred(pod, s.pod)
			preferred(s.pod, pod)
			required, _ := affinityOf(s.pod)
			for _, t := range required.RequiredDuringSchedulingIgnoredDuringExecution {
				add(s.pod, &t, pod, int64(*o.config.HardPodAffinityWeight))
			}
		}
		raw[n.Name] = sum
		least, most = min(least, sum), max(most, sum)
	}
	out := map[string]int64{}
	for name, r := range raw {
		if most > least {
			out[name] = int64(100 * (float64(r-least) / float64(most-least)))
		}
	}
	return out
}

// imageScore is ImageLocality's score of one node.
func (o *oracle) imageScore(n *corev1.Node, pod *corev1.Pod) int64 {
	const mb = 1 << 20
	canonical := func(name string) string {
		if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
			return name + ":latest"
		}
		return name
	}
	size := func(m *corev1.Node, name string) (int64, bool) {
		for _, i := range m.Status.Images {
			if slices.Contains(i.Names, name) {
				return i.SizeBytes, true
			}
		}
		return 0, false
	}
	containers := append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)
	var sum int64
	for _, c := range containers {
		bytes, ok := size(n, canonical(c.Image))
		if !ok {
			continue
		}
		holders := 0
		for _, m := range o.nodes {
			if _, ok := size(m, canonical(c.Image)); ok {
				holders++
			}
		}
		sum += int64(float64(bytes) * (float64(holders) / float64(len(o.nodes))))
	}
	most := int64(1000*mb) * int64(len(containers))
	return 100 * (min(max(sum, 23*mb), most) - 23*mb) / (most - 23*mb)
}
