package model

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Topology counts pods by the domains of topology keys, for all terms that anybody asked for: spread constraints and
// inter-pod affinity, of the classes to be judged and of the pods that are placed. Its owner feeds it with every change of
// nodes, namespaces, pods and nominations; each costs only the terms that it is about. A Topology is not safe for
// concurrent use.
//
// Pods may be on nodes that the Topology does not know (yet): they count from when the node is put.
//
// Placed pods are kept by class and node, never one by one. A class placed for the first time is matched with the
// counters that there are (found by namespace and label, not by trying all); from then on its pods know what counts them.
// A counter wanted for the first time is filled from the classes placed in its namespaces.
type Topology struct {
	version uint64
	peeked  uint64 // of version: changes that were taken back, see Peek

	slots map[string]int32
	spots []spot
	free  []int32 // slots of nodes long gone

	keys     map[string]*topoKey // by id; each label that a node has, whether anybody asks for it or not
	eligible map[string]*eligibility
	byTaints int // eligibilities that go by taints

	spaces map[string]*space
	kinds  map[string]*kind // by signature
	cells  map[uint32]*cell // by a hash of namespace and label, see index
	pods   census
	empty  int // kinds without pods
	lowest lowestPriority
	guards map[string]int // by topology key: kinds with pods that keep others away by it

	matching matchIndex // counters of pods that match
	carried  matchIndex // counters of terms that placed pods carry
	// changedTerms counts what may change which carried terms are about a class.
	changedTerms uint64
	relabelled   uint64 // counts namespaces whose labels changed

	stamps *stamps // nil: nobody asks when counts changed

	judges    judges
	kept      map[string][]*counter // by Class.Rules, see PrepareKept
	fillStep  int                   // fillAtOnce
	crowded   *kind                 // more counters than maxLinks count its pods; nil: none
	preparing *preparation          // nil: none
	layouts   uint64                // handed out
	made      uint64                // counters so far
	work      int64                 // see Work
	spent     int64                 // beside it, see Cost
}

// spot is one node, or the pods of a node that is not there.
type spot struct {
	name      string
	node      *corev1.Node // nil: not there
	standing  []standing
	nominated []*nominated
}

// nominated is how many pods of a kind are to come to a node.
type nominated struct {
	kind     *kind
	slot     int32
	priority int32
	pods     int32
	at       int32 // in kind.nominations
}

// space is one namespace.
type space struct {
	hash   uint64 // of its name
	labels map[string]string
	kinds  []*kind
	pods   census
}

// NewTopology returns one without nodes or pods.
func NewTopology() *Topology {
	return &Topology{
		slots: map[string]int32{}, keys: map[string]*topoKey{}, eligible: map[string]*eligibility{},
		spaces: map[string]*space{}, kinds: map[string]*kind{}, cells: map[uint32]*cell{}, judges: newJudges(), guards: map[string]int{},
		matching: newMatchIndex(), carried: newMatchIndex(), fillStep: fillAtOnce, lowest: lowestPriority{kinds: map[int32]int32{}, stale: true},
	}
}

// Version grows with every change that can matter to a class with terms or about which placed pods have terms.
func (t *Topology) Version() uint64 { return t.version - t.peeked }

// slot returns the node's slot, making one for a name not seen before.
func (t *Topology) slot(name string) int32 {
	if i, ok := t.slots[name]; ok {
		return i
	}
	var i int32
	if last := len(t.free) - 1; last >= 0 {
		i, t.free = t.free[last], t.free[:last]
	} else {
		i = int32(len(t.spots))
		t.spots = append(t.spots, spot{})
	}
	t.spots[i] = spot{name: name}
	t.slots[name] = i
	return i
}

// release frees the slot of a node that is gone when nothing is left there.
func (t *Topology) release(slot int32) {
	s := &t.spots[slot]
	if s.node != nil || len(s.standing)+len(s.nominated) > 0 {
		return
	}
	delete(t.slots, s.name)
	*s = spot{}
	t.free = append(t.free, slot)
}

// PutNode takes in a node that is new or changed. Nothing happens unless labels, taints or cordon differ.
func (t *Topology) PutNode(n *corev1.Node) {
	slot := t.slot(n.Name)
	s := &t.spots[slot]
	if s.node != nil {
		if t.sameDomains(s.node, n) {
			s.node = n
			return
		}
		t.detach(slot)
	}
	s.node = n
	t.attach(slot)
	t.version++
}

// RemoveNode forgets a node; pods on it no longer count.
func (t *Topology) RemoveNode(name string) {
	slot, ok := t.slots[name]
	if !ok || t.spots[slot].node == nil {
		return
	}
	t.detach(slot)
	t.spots[slot].node = nil
	t.release(slot)
	t.version++
}

// attach gives a node its domains and counts what is there.
func (t *Topology) attach(slot int32) {
	s := &t.spots[slot]
	// order does not matter: each eligibility by itself.
	for _, e := range t.eligible {
		e.ok.put(slot, e.admits(s.node))
		t.spent += 4 * e.asks()
	}
	t.divide(s.node, func(k *topoKey, value string) { k.join(slot, value) })
	t.tellCounters(s.node, slot, (*counter).nodeJoined)
	t.countSpot(s, slot, 1)
}

// tellCounters tells those that count by the keys of a node that it joined or left its domain.
func (t *Topology) tellCounters(n *corev1.Node, slot int32, what func(c *counter, slot, domain int32)) {
	t.divide(n, func(k *topoKey, _ string) {
		for _, c := range k.counters {
			what(c, slot, k.domainOf(slot))
		}
	})
}

// detach is the inverse of attach.
func (t *Topology) detach(slot int32) {
	s := &t.spots[slot]
	t.countSpot(s, slot, -1)
	t.tellCounters(s.node, slot, (*counter).nodeLeft)
	t.divide(s.node, func(k *topoKey, _ string) {
		k.leave(slot)
		t.dropKey(k)
	})
}

// divide calls f with all keys that give a node a domain, made where they are new, in any order, with what domain it is.
// Nodes are divided by all that they are labelled with as they come, and not by what somebody asks for when it does: that
// would take as long as there are nodes, in the middle of something else.
func (t *Topology) divide(n *corev1.Node, f func(k *topoKey, value string)) {
	cost := int64(0)
	by := func(label string, perNode bool, value string) {
		k := t.keyOf(label, perNode)
		cost += int64(1 + len(k.counters))
		f(k, value)
	}
	// order does not matter: each label by itself.
	for label, value := range n.Labels {
		by(label, false, value)
		if label == corev1.LabelHostname {
			by(label, true, n.Name)
		}
	}
	t.spent += 4 * cost
}

func (t *Topology) countSpot(s *spot, slot, sign int32) {
	for i := range s.standing {
		st := &s.standing[i]
		t.count(st.kind, slot, sign*st.pods, sign*st.leaving)
	}
	for _, n := range s.nominated {
		t.nominateKind(n.kind, slot, n.priority, sign*n.pods)
	}
}

// AddPod adds a pod of the class that occupies the node. leaving says that its deletion has begun: it no longer counts
// for spread (TS7), but does for affinity.
func (t *Topology) AddPod(node string, c *Class, leaving bool) { t.pod(node, c, 1, leaving) }

// RemovePod takes away what AddPod added with the same arguments.
func (t *Topology) RemovePod(node string, c *Class, leaving bool) { t.pod(node, c, -1, leaving) }

// Nominate adds a pod of the class that is to come to the node: classes of at most the priority see it (NM4).
func (t *Topology) Nominate(node string, c *Class, priority int32) { t.nominate(node, c, priority, 1) }

// Unnominate takes away what Nominate added with the same arguments.
func (t *Topology) Unnominate(node string, c *Class, priority int32) {
	t.nominate(node, c, priority, -1)
}

func (t *Topology) nominate(node string, c *Class, priority, pods int32) {
	k := t.kindOf(c)
	slot := t.slot(node)
	s := &t.spots[slot]
	i := slices.IndexFunc(s.nominated, func(n *nominated) bool { return n.kind == k && n.priority == priority })
	if i < 0 {
		n := &nominated{kind: k, slot: slot, priority: priority, at: int32(len(k.nominations))}
		i = len(s.nominated)
		s.nominated = append(s.nominated, n)
		k.nominations = append(k.nominations, n)
		t.use(k, 1)
	}
	n := s.nominated[i]
	n.pods += pods
	if t.nominateKind(k, slot, priority, pods) {
		t.version++
	}
	if n.pods != 0 {
		return
	}
	last := k.nominations[len(k.nominations)-1]
	k.nominations[n.at], last.at = last, n.at
	k.nominations[len(k.nominations)-1] = nil
	k.nominations = k.nominations[:len(k.nominations)-1]
	s.nominated = slices.Delete(s.nominated, i, i+1)
	t.use(k, -1)
	t.release(slot)
}

func (t *Topology) forget(c *counter) {
	t.judges.bytes -= c.held
	c.forget()
	t.dropKey(c.key)
	for _, k := range c.needs {
		t.dropKey(k)
	}
	t.releaseEligibility(c.eligible)
}

func (t *Topology) space(name string) *space {
	s, ok := t.spaces[name]
	if !ok {
		s = &space{hash: hashOfNamespace(name)}
		t.spaces[name] = s
	}
	return s
}

func (t *Topology) namespaceLabels(name string) map[string]string {
	if s, ok := t.spaces[name]; ok {
		return s.labels
	}
	return nil
}

// PutNamespace takes in a namespace's labels, which namespaceSelectors see. A namespace never put has none.
func (t *Topology) PutNamespace(name string, labels map[string]string) {
	s := t.space(name)
	if maps.Equal(s.labels, labels) {
		return
	}
	before := s.labels
	s.labels = labels
	t.changedTerms++
	t.relabelled++
	t.version++
	if s.pods.kinds > 0 {
		t.dismissSelecting(before, labels)
		return
	}
	for len(s.kinds) > 0 { // without pods, and linked by the labels as they were
		t.drop(s.kinds[len(s.kinds)-1])
	}
}

// RemoveNamespace forgets a namespace's labels.
func (t *Topology) RemoveNamespace(name string) {
	if s, ok := t.spaces[name]; ok {
		t.PutNamespace(name, nil)
		if len(s.kinds) == 0 {
			delete(t.spaces, name)
		}
	}
}
