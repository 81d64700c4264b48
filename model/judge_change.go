package model

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// PodChange is what happened to a pod on a node, or to a nomination to it, as far as rules between pods can tell.
type PodChange uint8

const (
	// PodCame: it is there now.
	PodCame PodChange = iota
	// PodLeft: it is not any more.
	PodLeft
	// PodLeaving: its deletion began; spread does not count it any more (TS7).
	PodLeaving
	// PodGone: one that was leaving is not there any more.
	PodGone
)

// TermPlace is where pods are to be looked for that a term is about: in a namespace (AnyNamespace where a selector chooses
// the namespaces), with a label; Label is empty when the term demands none.
type TermPlace struct{ Namespace, Label, Value string }

// AnyNamespace stands for the namespaces that a selector chooses.
const AnyNamespace = anyNamespace

// TermPlaces tells where pods are that can have to do with a reason by which the class was refused: TopologySpread,
// PodAffinity or PodAntiAffinity. Every pod that one of the class's hard terms is about has one of the places among its
// PlacesOf.
func (c *Class) TermPlaces(kind ReasonKind) []TermPlace {
	var out []TermPlace
	c.eachHardTerm(kind, func(m *podMatch) {
		for _, at := range placesOf(m) {
			if p := (TermPlace{at.namespace, at.key, at.value}); !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	})
	return out
}

func (c *Class) eachHardTerm(kind ReasonKind, f func(m *podMatch)) {
	if c.terms == nil {
		return
	}
	switch kind {
	case TopologySpread:
		for i := range c.terms.spread {
			if c.terms.spread[i].hard {
				f(c.terms.spread[i].match)
			}
		}
	case PodAffinity:
		for i := range c.terms.affinity {
			f(c.terms.affinity[i].match)
		}
	case PodAntiAffinity:
		for i := range c.terms.antiAffinity {
			f(c.terms.antiAffinity[i].match)
		}
	}
}

// ByItself leaves of failures only what the class's own terms demand, not what others keep it away by.
func (f Failures) ByItself() Failures { return f &^ failExistingAntiAffinity }

// PlacesOf are all places at which terms about pods of the class can be, in a fixed order.
func (c *Class) PlacesOf() []TermPlace {
	out := make([]TermPlace, 0, 2*len(c.Labels)+2)
	for _, ns := range []string{c.Namespace, AnyNamespace} {
		out = append(out, TermPlace{Namespace: ns})
		for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
			out = append(out, TermPlace{ns, key, c.Labels[key]})
		}
	}
	return out
}

// GuardedNamespaces are the namespaces whose pods the class's required anti-affinity can keep away; AnyNamespace among
// them when a selector chooses them.
func (c *Class) GuardedNamespaces() []string {
	var out []string
	if c.terms == nil {
		return nil
	}
	for i := range c.terms.antiAffinity {
		m := c.terms.antiAffinity[i].match
		if m.nsSelector != nil {
			return []string{AnyNamespace}
		}
		out = append(out, m.namespaces...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// MayConcern says whether a change of a pod with these labels can help the class, were it refused for a reason: it is
// what can be known of a change when it is over.
func (c *Class) MayConcern(kind ReasonKind, how PodChange, namespace string, podLabels, nsLabels map[string]string) bool {
	switch {
	case kind == TopologySpread && how == PodGone,
		kind == PodAntiAffinity && how == PodCame:
		return false
	}
	concerned := false
	c.eachHardTerm(kind, func(m *podMatch) {
		concerned = concerned || m.matches(namespace, podLabels, nsLabels)
	})
	return concerned
}

func (c *Class) hasHardSpread() bool {
	return c.terms != nil && slices.ContainsFunc(c.terms.spread, func(s spreadTerm) bool { return s.hard })
}

// HelpedBy says whether such a change of a pod can help the class at all, by the kinds of its rules: where it cannot,
// Judge.Helped is false, and need not be asked.
func (c *Class) HelpedBy(how PodChange) bool {
	if how != PodCame {
		return true
	}
	// It can only be sought, or even out a skew.
	return c.hasHardSpread() || c.terms != nil && len(c.terms.affinity) > 0
}

// HonorsTaints says whether taints decide which nodes are domains for a hard constraint of the class (TS6).
func (c *Class) HonorsTaints() bool {
	return c.terms != nil && slices.ContainsFunc(c.terms.spread, func(s spreadTerm) bool { return s.hard && s.honorTaints })
}

// HonorsLabelsOf is HonorsLabels for constraints of a class whose selector or required node affinity looks at one of these
// labels of nodes, which are sorted: no others decide.
func (c *Class) HonorsLabelsOf(keys []string) bool {
	return len(keys) > 0 && c.HonorsLabels() && (slices.ContainsFunc(c.nodeLabels, func(l nodeLabel) bool { return isAmong(keys, l.key) }) ||
		c.required != nil && slices.ContainsFunc(c.required.terms, func(t nodeTerm) bool {
			return slices.ContainsFunc(t.labels, func(r nodeRequirement) bool { return isAmong(keys, r.key) })
		}))
}

// ChoosesNamespacesBy says whether a hard term of the class chooses namespaces by one of these labels, which are sorted.
func (c *Class) ChoosesNamespacesBy(keys []string) bool {
	found := false
	for _, kind := range []ReasonKind{PodAffinity, PodAntiAffinity} {
		c.eachHardTerm(kind, func(m *podMatch) { found = found || m.choosesBy(keys) })
	}
	return found
}

// choosesBy says whether one of these labels of namespaces, which are sorted, can decide which the match is about.
func (m *podMatch) choosesBy(keys []string) bool {
	if m.nsSelector == nil {
		return false
	}
	requirements, _ := m.nsSelector.Requirements()
	return slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return isAmong(keys, r.Key()) })
}

// ChoosesNamespaces says whether a hard term of the class chooses namespaces by their labels.
func (c *Class) ChoosesNamespaces() bool {
	found := false
	for _, kind := range []ReasonKind{PodAffinity, PodAntiAffinity} {
		c.eachHardTerm(kind, func(m *podMatch) { found = found || m.nsSelector != nil })
	}
	return found
}

// HonorsLabels says whether labels of nodes beside the topology keys decide which nodes are domains for a hard constraint of
// the class (TS5).
func (c *Class) HonorsLabels() bool {
	return c.terms != nil && c.selects && slices.ContainsFunc(c.terms.spread, func(s spreadTerm) bool { return s.hard && s.honorAffinity })
}

// RulesBy says whether a hard rule of the class goes by one of the topology keys, which are sorted.
func (c *Class) RulesBy(keys []string) bool {
	if c.terms == nil {
		return false
	}
	in := func(a affinityTerm) bool { return isAmong(keys, a.topologyKey) }
	return slices.ContainsFunc(c.terms.affinity, in) || slices.ContainsFunc(c.terms.antiAffinity, in) ||
		slices.ContainsFunc(c.terms.spread, func(s spreadTerm) bool { return s.hard && isAmong(keys, s.topologyKey) })
}

// CountsDomainsBy says whether a hard constraint of the class asks for a number of domains of one of the topology keys, which
// are sorted: one more can lift what it demands while there are fewer (TS3).
func (c *Class) CountsDomainsBy(keys []string) bool {
	return c.terms != nil && slices.ContainsFunc(c.terms.spread, func(s spreadTerm) bool {
		return s.hard && s.minDomains > 1 && isAmong(keys, s.topologyKey)
	})
}

func isAmong(sorted []string, s string) bool {
	_, found := slices.BinarySearch(sorted, s)
	return found
}

// KeepsAwayBy says whether any pod, placed or nominated, keeps others away by required anti-affinity of one of the topology
// keys, which are sorted.
func (t *Topology) KeepsAwayBy(keys []string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { return t.guards[key] > 0 })
}

// KeptAway says whether terms that pods carry, placed or nominated, keep the class away from some node. It counts nothing for
// the class's own terms.
func (t *Topology) KeptAway(c *Class) bool {
	kept := false
	t.work += t.carried.lookup(c, t.namespaceLabels(c.Namespace), func(k *counter) {
		kept = kept || k.role == carriedAnti && (k.base.total > 0 || k.promised(c.Priority))
	})
	return kept
}

// promised says whether pods that are nominated with at least a priority count in it.
func (c *counter) promised(priority int32) bool {
	return slices.ContainsFunc(c.nominal, func(p priorityCount) bool { return p.priority >= priority && p.pods > 0 })
}

// Event is what happened to a pod of another class on a node, which the Topology counts already.
type Event struct {
	Node string
	Pod  *Class
	How  PodChange
	// Other is of what class the pod is now, or was, where it is on the node as before and only changed: what is about both
	// counts no other than before. nil: it came, left or began to leave.
	Other *Class
	// Came is how many pods came, on any node, since the Topology was last as it is taken to have been before; it is at
	// least 1 where How is PodCame.
	Came int64
	// Evicting: the judge's class might help itself by evicting others: then it is enough that one in the way left.
	Evicting bool
	// ByItself leaves out what others keep the class away by: the answer is then one for all classes of the same Rules.
	ByItself bool
	// OfNominees: pods of the judge's class are nominated. Each asks without its own nomination, which the Topology
	// counts.
	OfNominees bool
	// NodeMayBeGone: the node may be none any more. What happened on one then helps whomever its pod concerned.
	NodeMayBeGone bool
}

// Helped says whether an event can have made a node fit for the judge's class that did not before: a domain has room, the
// least of all domains rose, the one sought came, the last one in the way left.
func (j *Judge) Helped(e Event) bool {
	slot, ok := j.t.slots[e.Node]
	if !ok && !e.NodeMayBeGone {
		return false
	}
	j.fresh()
	nsLabels := j.t.namespaceLabels(e.Pod.Namespace)
	if !ok {
		return j.concerned(e.Pod, nsLabels) || !e.ByItself && e.Pod.KeepsAway()
	}
	for i := range j.terms {
		k := &j.terms[i]
		if !k.isHard() || !k.counter.about(e.Pod, nsLabels) || e.Other != nil && k.counter.about(e.Other, nsLabels) {
			continue
		}
		if d := k.counter.key.domainOf(slot); d != noDomain && k.counter.counts(slot) && j.helps(k, d, &e) {
			return true
		}
	}
	return !e.ByItself && (e.How == PodLeft || e.How == PodGone || e.waitedFor(j.class)) && j.unguarded(slot, &e)
}

// concerned says whether a hard term of the judge's class is about a pod.
func (j *Judge) concerned(pod *Class, nsLabels map[string]string) bool {
	for i := range j.terms {
		if k := &j.terms[i]; k.isHard() && k.counter.about(pod, nsLabels) {
			return true
		}
	}
	return false
}

// isHard says whether the term is one of the class's own that can keep it off nodes.
func (k *judged) isHard() bool { return k.role <= ownAntiAffinity && k.role != softSpread }

// own is how many of the pods in a domain may be the nomination of the one who asks.
func (e *Event) own() int64 {
	if e.OfNominees {
		return 1
	}
	return 0
}

// waitedFor: the pod began to leave, so that it has not to be evicted any more by one of the class.
func (e *Event) waitedFor(c *Class) bool {
	return e.How == PodLeaving && e.Evicting && e.Pod.Priority < c.Priority
}

// helps says whether the event in a domain can have ended what a term demands.
func (j *Judge) helps(k *judged, d int32, e *Event) bool {
	base, with := int64(k.counter.base.count.at(d)), int64(k.with.count.at(d))
	switch k.role {
	case hardSpread:
		switch e.How {
		case PodCame: // the least rose if this was a domain with less than there is of any now
			return base < k.least(false)+e.Came || with-e.own() < k.least(true)+e.Came
		case PodGone:
			return false
		}
		return e.Evicting || !k.skewed(base, false) && !k.skewed(with-e.own(), true)
	case ownAffinity:
		switch e.How {
		case PodCame:
			return true
		case PodLeaving:
			return j.attracted && e.waitedFor(j.class) // it may be the first when it has evicted the others
		}
		return j.attracted // it may be the first now
	case ownAntiAffinity:
		return (e.How == PodLeft || e.How == PodGone) && (e.Evicting || with <= e.own()) || e.waitedFor(j.class)
	}
	return false
}

// unguarded says whether a term that kept the class away from a domain is not carried by any pod there now.
func (j *Judge) unguarded(slot int32, e *Event) bool {
	other := e.Pod
	if !other.KeepsAway() {
		return false
	}
	nsLabels := j.t.namespaceLabels(j.class.Namespace)
	for i := range other.terms.antiAffinity {
		a := &other.terms.antiAffinity[i]
		if !a.match.matches(j.class.Namespace, j.class.Labels, nsLabels) || e.Other.guardsBy(a) {
			continue
		}
		left := int32(0)
		for n := range j.terms {
			k := &j.terms[n]
			if k.role != theirAntiAffinity || k.counter.key.label != a.topologyKey || k.counter.match[0].id != a.match.id {
				continue
			}
			if d := k.counter.key.domainOf(slot); d != noDomain {
				left = k.with.count.at(d)
			}
		}
		if e.Evicting || int64(left) <= e.own() {
			return true
		}
	}
	return false
}

// guardsBy says whether pods of the class keep others away by a term; those of none, nil, do not.
func (c *Class) guardsBy(a *affinityTerm) bool {
	return c != nil && c.terms != nil && slices.ContainsFunc(c.terms.antiAffinity, func(o affinityTerm) bool {
		return o.topologyKey == a.topologyKey && o.match.id == a.match.id
	})
}

// LowestPriority is the lowest priority of the pods that are placed or nominated; without any, it is above all others.
func (t *Topology) LowestPriority() int32 {
	if t.lowest.stale {
		t.lowest.stale, t.lowest.priority = false, 1<<31-1
		// order does not matter: the least is the least.
		for p := range t.lowest.kinds {
			t.lowest.priority = min(t.lowest.priority, p)
		}
	}
	return t.lowest.priority
}

// lowestPriority is the least priority of the kinds that have pods.
type lowestPriority struct {
	kinds    map[int32]int32 // by priority
	priority int32
	stale    bool
}

func (l *lowestPriority) add(priority, kinds int32) {
	if l.kinds[priority] += kinds; l.kinds[priority] == 0 {
		delete(l.kinds, priority)
	}
	l.stale = true
}
