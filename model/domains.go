package model

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// topoKey divides the nodes into domains by the value of one of their labels. A domain's number is used again when its
// last node has left.
type topoKey struct {
	label string
	// perNode: every node that has the label is a domain of its own, whatever the value. kube-scheduler scores spread
	// over host names so.
	perNode bool

	ids     map[string]int32 // by value; nil while there are few
	domains []domain
	free    []int32
	shared  int   // domains of several nodes
	of      tally // by slot: one more than the number of the node's domain; 0, or not there, if it lacks the label
	nodes   int

	counters []*counter
	needed   int // counters of other keys that count only where a node has this one
}

type domain struct {
	value string
	nodes int32
}

const noDomain = -1

// fewDomains are looked through one by one: most labels of which there are many have one value each.
const fewDomains = 8

func keyID(label string, perNode bool) string {
	if perNode {
		return "\x00" + label
	}
	return label
}

func (k *topoKey) id() string { return keyID(k.label, k.perNode) }

// domainOf is the domain of the node in a slot, noDomain if it lacks the label.
func (k *topoKey) domainOf(slot int32) int32 { return k.of.at(slot) - 1 }

// find is the domain of a value.
func (k *topoKey) find(value string) (int32, bool) {
	if k.ids != nil {
		d, ok := k.ids[value]
		return d, ok
	}
	d := slices.IndexFunc(k.domains, func(d domain) bool { return d.nodes > 0 && d.value == value })
	return int32(d), d >= 0
}

// found makes a domain of a value.
func (k *topoKey) found(value string) int32 {
	d := int32(len(k.domains))
	if last := len(k.free) - 1; last >= 0 {
		d, k.free = k.free[last], k.free[:last]
		k.domains[d].value = value
	} else {
		k.domains = append(k.domains, domain{value: value})
	}
	if k.ids == nil && len(k.domains) > fewDomains { // none is free
		k.ids = map[string]int32{}
		for i, d := range k.domains {
			k.ids[d.value] = int32(i)
		}
	}
	if k.ids != nil {
		k.ids[value] = d
	}
	return d
}

// join gives a node's slot the domain of its label's value; the counters are told when it has those of all of its labels.
func (k *topoKey) join(slot int32, value string) {
	d, known := k.find(value)
	if !known {
		d = k.found(value)
	}
	k.of.add(slot, d+1)
	k.nodes++
	if k.domains[d].nodes++; k.domains[d].nodes == 2 {
		k.shared++
	}
}

// leave takes a slot out of its domain.
func (k *topoKey) leave(slot int32) {
	d := k.domainOf(slot)
	k.of.add(slot, -d-1)
	k.nodes--
	k.domains[d].nodes--
	switch k.domains[d].nodes {
	case 1:
		k.shared--
	case 0:
		delete(k.ids, k.domains[d].value)
		k.domains[d].value = ""
		k.free = append(k.free, d)
	}
}

// keyOf returns the key, made on first use.
func (t *Topology) keyOf(label string, perNode bool) *topoKey {
	id := keyID(label, perNode)
	k, ok := t.keys[id]
	if !ok {
		k = &topoKey{label: label, perNode: perNode}
		t.keys[id] = k
	}
	return k
}

// dropKey forgets a key that divides no nodes and that nobody asks for.
func (t *Topology) dropKey(k *topoKey) {
	if k.nodes == 0 && len(k.counters) == 0 && k.needed == 0 {
		delete(t.keys, k.id())
	}
}

// counter counts pods by domain of a key. What it counts is either all pods that match, or all pods that carry a term.
type counter struct {
	id     string
	number uint64 // no two ever have the same
	key    *topoKey
	refs   int
	dead   bool // forgotten; those who still know it skip it
	// keepers are the rules for which it is kept, see PrepareKept: what it holds is none of the judges' then.
	keepers int

	filling  bool
	unfilled []*kind // while it is filling: those that are not in it yet

	held        int64        // bytes, with what leads to it, for matching pods
	match       []*podMatch  // all of them must match; the one that a carried term is about
	role        carriedRole  // notCarried for matching pods
	eligible    *eligibility // nil: every node that has the keys
	needs       []*topoKey   // that a node must have beside key
	skipLeaving bool         // TS7
	ranked      bool         // the least count is asked for: layers keep a histogram

	stamps      *stamps          // nil: not kept
	changed     map[int32]uint64 // by domain
	changedLast uint64

	domains  []int32 // by domain: eligible nodes; kept when ranked
	existing int64   // domains with an eligible node

	base layer
	// layers count the nominations of at least a priority too. They are made when first asked for.
	layers  []*layer
	nominal []priorityCount // nominations counted in layers, by priority
	coming  map[coming]int32
}

// coming is where nominations of a priority are counted.
type coming struct{ priority, domain int32 }

// comingBytes is about what one takes.
const comingBytes = 32

type priorityCount struct {
	priority int32
	pods     int32
}

type carriedRole byte

const (
	notCarried carriedRole = iota
	carriedAnti
	carriedAffinity
	carriedPreference // counts weights
)

// layer is one set of counts.
type layer struct {
	priority int32
	count    tally
	total    int64
	rank     histogram // of the domains that exist
	held     int64     // bytes, when it was made
}

func (c *counter) counts(slot int32) bool {
	for _, k := range c.needs {
		if k.domainOf(slot) == noDomain {
			return false
		}
	}
	return c.eligible == nil || c.eligible.ok.has(slot)
}

func (c *counter) nodeJoined(slot, domain int32) {
	if !c.ranked || !c.counts(slot) {
		return
	}
	for int(domain) >= len(c.domains) {
		c.domains = append(c.domains, 0)
	}
	if c.domains[domain]++; c.domains[domain] == 1 {
		c.mark(domain)
		c.existing++
		c.base.rank.add(c.base.count.at(domain))
		for _, l := range c.layers {
			l.rank.add(l.count.at(domain))
		}
	}
}

// allJoined is nodeJoined for all nodes of the key, for a counter in which nothing is counted yet.
func (c *counter) allJoined() {
	if !c.ranked {
		return
	}
	c.domains = make([]int32, len(c.key.domains))
	c.key.of.each(func(slot, domain int32) {
		if c.counts(slot) {
			c.domains[domain-1]++
		}
	})
	for d, nodes := range c.domains {
		if nodes > 0 {
			c.mark(int32(d))
			c.existing++
		}
	}
	if c.existing > 0 {
		c.base.rank.levels = []level{{pods: 0, domains: int32(c.existing)}}
	}
}

func (c *counter) nodeLeft(slot, domain int32) {
	if !c.ranked || !c.counts(slot) {
		return
	}
	if c.domains[domain]--; c.domains[domain] == 0 {
		c.mark(domain)
		c.existing--
		c.base.rank.remove(c.base.count.at(domain))
		for _, l := range c.layers {
			l.rank.remove(l.count.at(domain))
		}
	}
}

// add counts pods on a slot.
func (c *counter) add(slot, pods int32) {
	d := c.key.domainOf(slot)
	if pods == 0 || d == noDomain || !c.counts(slot) {
		return
	}
	c.mark(d)
	c.addTo(&c.base, d, pods)
	for _, l := range c.layers {
		c.addTo(l, d, pods)
	}
}

func (c *counter) addTo(l *layer, d, pods int32) {
	if c.ranked {
		has := l.count.at(d)
		l.rank.move(has, has+pods)
	}
	l.count.add(d, pods)
	l.total += int64(pods)
}

// nominateIn counts pods nominated to a slot.
func (t *Topology) nominateIn(c *counter, slot, priority, pods int32) {
	before := len(c.coming)
	c.nominate(slot, priority, pods)
	t.hold(c, int64(len(c.coming)-before)*comingBytes)
}

func (c *counter) nominate(slot, priority, pods int32) {
	d := c.key.domainOf(slot)
	if d == noDomain || !c.counts(slot) {
		return
	}
	c.mark(d)
	i := slices.IndexFunc(c.nominal, func(p priorityCount) bool { return p.priority == priority })
	if i < 0 {
		i = len(c.nominal)
		c.nominal = append(c.nominal, priorityCount{priority: priority})
	}
	if c.nominal[i].pods += pods; c.nominal[i].pods == 0 {
		c.nominal = slices.Delete(c.nominal, i, i+1)
	}
	if c.coming == nil {
		c.coming = map[coming]int32{}
	}
	at := coming{priority, d}
	if c.coming[at] += pods; c.coming[at] == 0 {
		delete(c.coming, at)
	}
	for _, l := range c.layers {
		if l.priority <= priority {
			c.addTo(l, d, pods)
		}
	}
}

// maxLayers bounds the sets of counts by priority; with more, all are made anew.
const maxLayers = 8

// nominated returns the counts that a class of the priority sees with nominations; the base if there are none that it
// would see (NM4).
func (c *counter) nominated(t *Topology, priority int32) *layer {
	seen := false
	for _, p := range c.nominal {
		seen = seen || p.priority >= priority
	}
	if !seen {
		return &c.base
	}
	for _, l := range c.layers {
		if l.priority == priority {
			return l
		}
	}
	if len(c.layers) == maxLayers {
		for _, l := range c.layers {
			t.hold(c, -l.held)
		}
		c.layers = nil
	}
	l := &layer{priority: priority, count: c.base.count.clone(), total: c.base.total, rank: c.base.rank.clone()}
	c.layers = append(c.layers, l)
	t.work += int64(len(c.coming)) + l.bytes()/domainBytes
	// order does not matter: counts add up.
	for at, pods := range c.coming {
		if at.priority >= priority {
			c.addTo(l, at.domain, pods)
		}
	}
	l.held = l.bytes()
	t.hold(c, l.held)
	return l
}

// forget frees what a counter that nobody asks for any more holds.
func (c *counter) forget() {
	c.dead = true
	if i := slices.Index(c.key.counters, c); i >= 0 {
		c.key.counters = slices.Delete(c.key.counters, i, i+1)
	}
	for _, k := range c.needs {
		k.needed--
	}
	c.filling, c.unfilled = false, nil
	c.base, c.layers, c.nominal, c.coming, c.domains = layer{}, nil, nil, nil, nil
}

// sameDomains says whether two states of a node differ in nothing that says in which domains it is.
func (t *Topology) sameDomains(a, b *corev1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && (t.byTaints == 0 || a.Spec.Unschedulable == b.Spec.Unschedulable &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, func(x, y corev1.Taint) bool {
			return x.Key == y.Key && x.Value == y.Value && x.Effect == y.Effect
		}))
}
