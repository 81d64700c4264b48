package model

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// podMatch says which pods a term is about: those in some namespaces with some labels.
type podMatch struct {
	id string // equal for two that match the same pods by the same words

	namespaces []string        // sorted
	nsSelector labels.Selector // nil: only the namespaces listed
	selector   labels.Selector
	// demanded are the labels that every pod matched must have; key and value are the first of them, by which those who
	// cannot match are passed over: empty when the selector demands no such label.
	demanded   []demandedLabel
	key, value string
	nobody     bool // no pod is meant
}

type demandedLabel struct{ key, value string }

func newPodMatch(namespaces []string, nsSelector, selector labels.Selector) *podMatch {
	m := &podMatch{namespaces: namespaces, nsSelector: nsSelector, selector: selector}
	slices.Sort(m.namespaces)
	m.namespaces = slices.Compact(m.namespaces)
	requirements, selectable := selector.Requirements()
	m.nobody = !selectable
	for _, r := range requirements {
		if op := r.Operator(); op != selection.In && op != selection.Equals && op != selection.DoubleEquals {
			continue
		}
		if values := r.ValuesUnsorted(); len(values) == 1 {
			m.demanded = append(m.demanded, demandedLabel{r.Key(), values[0]})
		}
	}
	if len(m.demanded) > 0 {
		m.key, m.value = m.demanded[0].key, m.demanded[0].value
	}
	var b strings.Builder
	for _, ns := range m.namespaces {
		b.WriteString(ns)
		b.WriteByte(',')
	}
	if nsSelector != nil {
		b.WriteByte('|')
		b.WriteString(nsSelector.String())
	}
	b.WriteByte('\n')
	b.WriteString(describeSelector(selector))
	m.id = b.String()
	return m
}

// describeSelector tells apart the selector that matches nothing from the empty one that matches everything.
func describeSelector(s labels.Selector) string {
	if _, selectable := s.Requirements(); !selectable {
		return "<none>"
	}
	return s.String()
}

// matches says whether a pod in the namespace with these labels is meant.
func (m *podMatch) matches(namespace string, podLabels, nsLabels map[string]string) bool {
	if m.key != "" {
		if v, ok := podLabels[m.key]; !ok || v != m.value {
			return false
		}
	}
	if _, listed := slices.BinarySearch(m.namespaces, namespace); !listed &&
		(m.nsSelector == nil || !m.nsSelector.Matches(labels.Set(nsLabels))) {
		return false
	}
	return m.selector.Matches(labels.Set(podLabels))
}

// spreadTerm is one compiled topology spread constraint (TS1).
type spreadTerm struct {
	hard        bool // DoNotSchedule
	maxSkew     int64
	minDomains  int64
	topologyKey string
	match       *podMatch
	matchesSelf bool // TS8
	// honorAffinity, honorTaints: nodes that the pod could not go to are no domains for it (TS5, TS6).
	honorAffinity, honorTaints bool
}

// affinityTerm is one compiled term of pod affinity or anti-affinity.
type affinityTerm struct {
	topologyKey string
	match       *podMatch
	weight      int64 // of a preferred term, negative for anti-affinity
}

// podTerms are the terms by which a pod asks where other pods are.
type podTerms struct {
	spread []spreadTerm
	system bool // soft constraints are the cluster's own: nodes without all of the keys are scored too (TS4)

	rules string

	affinity, antiAffinity []affinityTerm // required
	preferred              []affinityTerm
}

// HasTopology says whether the class has spread constraints or inter-pod terms of its own, hard or soft.
func (c *Class) HasTopology() bool {
	t := c.terms
	return t != nil && len(t.spread)+len(t.affinity)+len(t.antiAffinity)+len(t.preferred) > 0
}

// HasHardTopology says whether a rule of the class about other pods can keep it off a node: a DoNotSchedule spread
// constraint, or required pod affinity or anti-affinity.
func (c *Class) HasHardTopology() bool {
	return c.hasHardSpread() || c.terms != nil && len(c.terms.affinity)+len(c.terms.antiAffinity) > 0
}

// compileTerms compiles the pod's terms; nil when it has none. A selector that does not parse cannot pass the API's
// validation; it matches nothing here.
func compileTerms(pod *corev1.Pod) *podTerms {
	a := pod.Spec.Affinity
	if len(pod.Spec.TopologySpreadConstraints) == 0 && (a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil) {
		return nil
	}
	t := &podTerms{}
	for i := range pod.Spec.TopologySpreadConstraints {
		k := &pod.Spec.TopologySpreadConstraints[i]
		t.spread = append(t.spread, compileSpread(k, spreadSelector(k, pod.Labels), pod.Namespace, pod.Labels))
	}
	if a != nil && a.PodAffinity != nil {
		for i := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			t.affinity = append(t.affinity, compileAffinity(pod, &a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i], 0))
		}
		for i := range a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			w := &a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i]
			t.preferred = append(t.preferred, compileAffinity(pod, &w.PodAffinityTerm, int64(w.Weight)))
		}
	}
	if a != nil && a.PodAntiAffinity != nil {
		for i := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			t.antiAffinity = append(t.antiAffinity, compileAffinity(pod, &a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i], 0))
		}
		for i := range a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			w := &a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i]
			t.preferred = append(t.preferred, compileAffinity(pod, &w.PodAffinityTerm, -int64(w.Weight)))
		}
	}
	return t
}

func compileSpread(k *corev1.TopologySpreadConstraint, selector labels.Selector, namespace string, podLabels map[string]string) spreadTerm {
	counted := selector
	if selector.Empty() {
		counted = labels.Nothing() // TS7: an empty selector counts no pod
	}
	t := spreadTerm{
		hard: k.WhenUnsatisfiable != corev1.ScheduleAnyway, maxSkew: int64(k.MaxSkew), minDomains: 1, topologyKey: k.TopologyKey,
		match: newPodMatch([]string{namespace}, nil, counted), matchesSelf: selector.Matches(labels.Set(podLabels)),
		honorAffinity: k.NodeAffinityPolicy == nil || *k.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor,
		honorTaints:   k.NodeTaintsPolicy != nil && *k.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
	}
	if k.MinDomains != nil {
		t.minDomains = int64(*k.MinDomains)
	}
	return t
}

// spreadSelector is the constraint's selector with the pod's own values of matchLabelKeys (TS11).
func spreadSelector(k *corev1.TopologySpreadConstraint, podLabels map[string]string) labels.Selector {
	return addKeys(asSelector(k.LabelSelector), k.MatchLabelKeys, podLabels, selection.In)
}

func compileAffinity(pod *corev1.Pod, k *corev1.PodAffinityTerm, weight int64) affinityTerm {
	selector := addKeys(asSelector(k.LabelSelector), missingKeys(k.LabelSelector, k.MatchLabelKeys), pod.Labels, selection.In)
	selector = addKeys(selector, missingKeys(k.LabelSelector, k.MismatchLabelKeys), pod.Labels, selection.NotIn)
	namespaces := slices.Clone(k.Namespaces)
	var nsSelector labels.Selector
	switch {
	case k.NamespaceSelector != nil:
		nsSelector = asSelector(k.NamespaceSelector)
	case len(namespaces) == 0:
		namespaces = []string{pod.Namespace}
	}
	return affinityTerm{topologyKey: k.TopologyKey, match: newPodMatch(namespaces, nsSelector, selector), weight: weight}
}

// missingKeys are the keys that the selector says nothing of yet: the API merges matchLabelKeys into the selector when
// the pod is created, and what it merged stays when the pod's labels change.
func missingKeys(s *metav1.LabelSelector, keys []string) []string {
	if s == nil {
		return keys
	}
	var out []string
	for _, key := range keys {
		if !slices.ContainsFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == key }) {
			out = append(out, key)
		}
	}
	return out
}

// addKeys adds a requirement for each of the keys that the pod has a label of.
func addKeys(s labels.Selector, keys []string, podLabels map[string]string, op selection.Operator) labels.Selector {
	if _, selectable := s.Requirements(); !selectable {
		return s // what matches nothing goes on doing so
	}
	for _, key := range keys {
		if value, ok := podLabels[key]; ok {
			if r, err := labels.NewRequirement(key, op, []string{value}); err == nil {
				s = s.Add(*r)
			}
		}
	}
	return s
}

// asSelector: no selector matches nothing, an empty one everything.
func asSelector(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// Rules identifies what the class demands of where other pods are, by its own terms, and what it asks of a node: pods of
// one Rules are kept off a node, and let in again, for the same reasons, but for the terms that others carry about them.
// It is "" for a class without terms.
func (c *Class) Rules() string {
	if c.terms == nil {
		return ""
	}
	return c.terms.rules
}

// signRules makes Rules: the terms as compiled, for they may depend on the pod's namespace and labels.
func (t *podTerms) signRules(c *Class) {
	var w signer
	w.str(c.Shape)
	w.str(c.Namespace)
	for i := range t.spread {
		w.str(t.spread[i].match.id)
		w.flag(t.spread[i].matchesSelf)
	}
	for _, terms := range [][]affinityTerm{t.affinity, t.antiAffinity, t.preferred} {
		w.num(int64(len(terms)))
		for i := range terms {
			w.str(terms[i].match.id)
			w.flag(terms[i].match.selector.Matches(labels.Set(c.Labels)))
		}
	}
	t.rules = rehash("", string(w.buf))
}

// attractsSelf says whether the class matches all of its own required affinity terms.
func (c *Class) attractsSelf(nsLabels map[string]string) bool {
	for i := range c.terms.affinity {
		if !c.terms.affinity[i].match.matches(c.Namespace, c.Labels, nsLabels) {
			return false
		}
	}
	return true
}

// WithSpread returns the class with the cluster's default constraints, for a pod that has none of its own but belongs to
// a service or a workload (TS12): selector is that of all of them together. system says that the constraints are the
// built-in ones, for which a node without all of the keys is scored too (TS4, TS15). A class with constraints of its own,
// or an empty selector, stays as it is.
func (c *Class) WithSpread(constraints []corev1.TopologySpreadConstraint, selector labels.Selector, system bool) *Class {
	if len(c.Spread) > 0 || len(constraints) == 0 || selector == nil || selector.Empty() {
		return c
	}
	d := *c
	t := podTerms{}
	if c.terms != nil {
		t = *c.terms
	}
	t.system, t.spread = system, nil
	id := strconv.FormatBool(system) + selector.String()
	for i := range constraints {
		t.spread = append(t.spread, compileSpread(&constraints[i], selector, c.Namespace, c.Labels))
		b, err := constraints[i].Marshal()
		if err != nil {
			panic("model: marshalling a spread constraint: " + err.Error()) // see signer.message
		}
		id += strconv.Itoa(len(b)) + ":" + string(b)
	}
	d.terms = &t
	d.Signature, d.Shape = rehash(c.Signature, id), rehash(c.Shape, id)
	t.signRules(&d)
	return &d
}

// KeepsAway says whether placed pods of the class keep others away: they have required anti-affinity.
func (c *Class) KeepsAway() bool { return c.terms != nil && len(c.terms.antiAffinity) > 0 }

// KeepsAwayAny says whether one of the terms by which placed pods of the class keep others away demands no label of them.
func (c *Class) KeepsAwayAny() bool {
	return c.terms != nil && slices.ContainsFunc(c.terms.antiAffinity, func(a affinityTerm) bool { return a.match.key == "" })
}

// CountTerms counts the class's own terms about other pods: those that demand a label of them, and those that do not (wide).
func (c *Class) CountTerms() (labelled, wide int) {
	if c.terms == nil {
		return 0, 0
	}
	add := func(m *podMatch) {
		if m.key == "" {
			wide++
		} else {
			labelled++
		}
	}
	for i := range c.terms.spread {
		add(c.terms.spread[i].match)
	}
	for _, terms := range [][]affinityTerm{c.terms.affinity, c.terms.antiAffinity, c.terms.preferred} {
		for i := range terms {
			add(terms[i].match)
		}
	}
	return labelled, wide
}
