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

	ids    map[string]int32
	values []string // by domain
	nodes  []int32  // by domain: how many it has
	free   []int32
	shared int     // domains of several nodes
	of     []int32 // by slot: the node's domain; noDomain, or not there, if it lacks the label

	counters []*counter
}

const noDomain = -1

func keyID(label string, perNode bool) string {
	if perNode {
		return "\x00" + label
	}
	return label
}

func (k *topoKey) id() string { return keyID(k.label, k.perNode) }

// domainOf is the domain of the node in a slot, noDomain if it lacks the label.
func (k *topoKey) domainOf(slot int32) int32 {
	if int(slot) >= len(k.of) {
		return noDomain
	}
	return k.of[slot]
}

func (k *topoKey) valueOf(n *corev1.Node) (string, bool) {
	v, ok := n.Labels[k.label]
	if ok && k.perNode {
		return n.Name, true
	}
	return v, ok
}

// join gives a node's slot its domain.
func (k *topoKey) join(n *corev1.Node, slot int32) {
	value, ok := k.valueOf(n)
	if !ok {
		return
	}
	d, known := k.ids[value]
	if !known {
		if last := len(k.free) - 1; last >= 0 {
			d, k.free = k.free[last], k.free[:last]
		} else {
			d = int32(len(k.values))
			k.values, k.nodes = append(k.values, ""), append(k.nodes, 0)
		}
		k.values[d] = value
		k.ids[value] = d
	}
	for int(slot) >= len(k.of) {
		k.of = append(k.of, noDomain)
	}
	k.of[slot] = d
	if k.nodes[d]++; k.nodes[d] == 2 {
		k.shared++
	}
	for _, c := range k.counters {
		c.nodeJoined(slot, d)
	}
}

// leave takes a slot out of its domain; the pods there must not be counted any more.
func (k *topoKey) leave(slot int32) {
	d := k.domainOf(slot)
	if d == noDomain {
		return
	}
	for _, c := range k.counters {
		c.nodeLeft(slot, d)
	}
	k.of[slot] = noDomain
	k.nodes[d]--
	switch k.nodes[d] {
	case 1:
		k.shared--
	case 0:
		delete(k.ids, k.values[d])
		k.values[d] = ""
		k.free = append(k.free, d)
	}
}

// eligibility says which nodes are domains for a constraint: those with all keys of the class's constraints (TS4) that
// its node affinity (TS5) and its tolerations (TS6) admit, where the constraint honours these.
type eligibility struct {
	id    string
	refs  int
	keys  []string
	class *Class

	affinity, taints bool
	ok               []bool // by slot
}

func (e *eligibility) admits(n *corev1.Node) bool {
	for _, key := range e.keys {
		if _, ok := n.Labels[key]; !ok {
			return false
		}
	}
	var honored Failures // not failEnforcedAffinity: what a profile adds does not say which nodes are domains
	if e.affinity {
		honored |= failAffinity
	}
	if e.taints {
		honored |= failUnschedulable | failTaint
	}
	return honored == 0 || NodeFailures(e.class, n)&honored == 0
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
	eligible    *eligibility // nil: every node that has the key
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

func (c *counter) counts(slot int32) bool { return c.eligible == nil || c.eligible.ok[slot] }

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
	c.domains = make([]int32, len(c.key.values))
	for slot, d := range c.key.of {
		if d != noDomain && c.counts(int32(slot)) {
			c.domains[d]++
		}
	}
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
	c.filling, c.unfilled = false, nil
	c.base, c.layers, c.nominal, c.coming, c.domains = layer{}, nil, nil, nil, nil
}

// sameForTopology says whether two states of a node differ in nothing that makes domains.
func sameForTopology(a, b *corev1.Node) bool {
	return a.Spec.Unschedulable == b.Spec.Unschedulable && maps.Equal(a.Labels, b.Labels) &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, func(x, y corev1.Taint) bool {
			return x.Key == y.Key && x.Value == y.Value && x.Effect == y.Effect
		})
}
