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

	keys     map[string]*topoKey
	labelled map[string]int32 // by label: the nodes that have it
	eligible map[string]*eligibility

	spaces map[string]*space
	kinds  map[string]*kind // by signature
	empty  int              // kinds without pods
	lowest lowestPriority

	matching matchIndex // counters of pods that match
	carried  matchIndex // counters of terms that placed pods carry
	// changedTerms counts what may change which carried terms are about a class.
	changedTerms uint64
	relabelled   uint64 // counts namespaces whose labels changed

	nominations []*nominated

	stamps *stamps // nil: nobody asks when counts changed

	judges  map[string]*Judge // by signature
	clock   uint64            // of the judges' use
	layouts uint64            // handed out
	made    uint64            // counters so far
}

// spot is one node, or the pods of a node that is not there.
type spot struct {
	name      string
	node      *corev1.Node // nil: not there
	standing  []standing
	nominated []*nominated
}

// standing is how many pods of a kind are on a node.
type standing struct {
	kind    *kind
	pods    int32
	leaving int32
	at      int32 // in kind.slots
}

// kind is a class of pods that are placed or nominated.
type kind struct {
	class *Class
	space *space
	at    int32   // in space.kinds
	slots []int32 // where there are such pods
	sums  []sum
	users int32 // nodes and nominations that name it
	noms  int32 // nominations that name it
}

// sum is a counter that a kind's pods count in, and by how much.
type sum struct {
	counter *counter
	weight  int32
}

// nominated is how many pods of a kind are to come to a node.
type nominated struct {
	kind     *kind
	slot     int32
	priority int32
	pods     int32
	at       int32 // in Topology.nominations
}

// space is one namespace.
type space struct {
	labels map[string]string
	kinds  []*kind
}

// NewTopology returns one without nodes or pods.
func NewTopology() *Topology {
	return &Topology{
		slots: map[string]int32{}, keys: map[string]*topoKey{}, labelled: map[string]int32{}, eligible: map[string]*eligibility{},
		spaces: map[string]*space{}, kinds: map[string]*kind{}, judges: map[string]*Judge{},
		matching: newMatchIndex(), carried: newMatchIndex(), lowest: lowestPriority{kinds: map[int32]int32{}, stale: true},
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
		// order does not matter: every eligibility gets its place for the slot.
		for _, e := range t.eligible {
			e.ok = append(e.ok, false)
		}
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
		if sameForTopology(s.node, n) {
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
		e.ok[slot] = e.admits(s.node)
	}
	t.label(s.node, 1)
	// order does not matter: each key by itself.
	for _, k := range t.keys {
		k.join(s.node, slot)
	}
	t.countSpot(s, slot, 1)
}

// detach is the inverse of attach.
func (t *Topology) detach(slot int32) {
	t.countSpot(&t.spots[slot], slot, -1)
	t.label(t.spots[slot].node, -1)
	// order does not matter: each key by itself.
	for _, k := range t.keys {
		k.leave(slot)
	}
}

// label counts the labels of a node that comes or goes: a key that no node has costs no look at the nodes.
func (t *Topology) label(n *corev1.Node, sign int32) {
	// order does not matter: each label by itself.
	for key := range n.Labels {
		if t.labelled[key] += sign; t.labelled[key] == 0 {
			delete(t.labelled, key)
		}
	}
}

func (t *Topology) countSpot(s *spot, slot, sign int32) {
	for i := range s.standing {
		st := &s.standing[i]
		st.kind.count(slot, sign*st.pods, sign*st.leaving)
	}
	for _, n := range s.nominated {
		n.kind.nominate(slot, n.priority, sign*n.pods)
	}
}

// count adds pods of the kind on a slot to its counters, and says whether there are any.
func (k *kind) count(slot, pods, leaving int32) bool {
	for i := 0; i < len(k.sums); i++ {
		s := &k.sums[i]
		switch {
		case s.counter.dead:
			k.sums = slices.Delete(k.sums, i, i+1)
			i--
		case s.counter.skipLeaving:
			s.counter.add(slot, s.weight*(pods-leaving))
		default:
			s.counter.add(slot, s.weight*pods)
		}
	}
	return len(k.sums) > 0
}

func (k *kind) nominate(slot, priority, pods int32) bool {
	for _, s := range k.sums {
		// Preferences only score, and nominations count in filters alone.
		if !s.counter.dead && s.counter.role != carriedPreference {
			s.counter.nominate(slot, priority, s.weight*pods)
		}
	}
	return len(k.sums) > 0
}

// AddPod adds a pod of the class that occupies the node. leaving says that its deletion has begun: it no longer counts
// for spread (TS7), but does for affinity.
func (t *Topology) AddPod(node string, c *Class, leaving bool) { t.pod(node, c, 1, leaving) }

// RemovePod takes away what AddPod added with the same arguments.
func (t *Topology) RemovePod(node string, c *Class, leaving bool) { t.pod(node, c, -1, leaving) }

func (t *Topology) pod(node string, c *Class, pods int32, isLeaving bool) {
	k := t.kindOf(c)
	slot := t.slot(node)
	var leaving int32
	if isLeaving {
		leaving = pods
	}
	s := &t.spots[slot]
	i := 0
	for i < len(s.standing) && s.standing[i].kind != k {
		i++
	}
	if i == len(s.standing) {
		s.standing = append(s.standing, standing{kind: k, at: int32(len(k.slots))})
		k.slots = append(k.slots, slot)
		t.use(k, 1)
	}
	st := &s.standing[i]
	st.pods += pods
	st.leaving += leaving
	if k.count(slot, pods, leaving) {
		t.version++
	}
	if st.pods != 0 || st.leaving != 0 {
		return
	}
	last := len(k.slots) - 1
	if moved := k.slots[last]; moved != slot {
		k.slots[st.at] = moved
		t.spots[moved].standingOf(k).at = st.at
	}
	k.slots = k.slots[:last]
	s.standing[i] = s.standing[len(s.standing)-1]
	s.standing = s.standing[:len(s.standing)-1]
	t.use(k, -1)
	t.release(slot)
}

func (s *spot) standingOf(k *kind) *standing {
	for i := range s.standing {
		if s.standing[i].kind == k {
			return &s.standing[i]
		}
	}
	panic("model: a kind names a node that does not name it")
}

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
		n := &nominated{kind: k, slot: slot, priority: priority, at: int32(len(t.nominations))}
		i = len(s.nominated)
		s.nominated = append(s.nominated, n)
		t.nominations = append(t.nominations, n)
		k.noms++
		t.use(k, 1)
	}
	n := s.nominated[i]
	n.pods += pods
	if k.nominate(slot, priority, pods) {
		t.version++
	}
	if n.pods != 0 {
		return
	}
	last := t.nominations[len(t.nominations)-1]
	t.nominations[n.at], last.at = last, n.at
	t.nominations = t.nominations[:len(t.nominations)-1]
	s.nominated = slices.Delete(s.nominated, i, i+1)
	k.noms--
	t.use(k, -1)
	t.release(slot)
}

// maxEmpty is how many kinds without pods are kept, beyond as many as have some: a class whose last pod ends often has
// another soon.
const maxEmpty = 1024

func (t *Topology) use(k *kind, by int32) {
	if k.users == 0 {
		t.empty--
		t.lowest.add(k.class.Priority, 1)
	}
	if k.users += by; k.users == 0 {
		t.lowest.add(k.class.Priority, -1)
		if t.empty++; t.empty > maxEmpty+len(t.kinds)/2 {
			t.sweep()
		}
	}
}

// kindOf returns the class's kind, made on first use.
func (t *Topology) kindOf(c *Class) *kind {
	if k, ok := t.kinds[c.Signature]; ok {
		return k
	}
	sp := t.space(c.Namespace)
	k := &kind{class: c, space: sp, at: int32(len(sp.kinds))}
	sp.kinds = append(sp.kinds, k)
	t.kinds[c.Signature] = k
	t.empty++
	t.matching.lookup(c, sp.labels, func(m *counter) { k.sums = append(k.sums, sum{m, 1}) })
	t.carry(k)
	return k
}

// carry makes the counters of the terms that the kind's pods carry.
func (t *Topology) carry(k *kind) {
	terms := k.class.terms
	if terms == nil {
		return
	}
	add := func(a *affinityTerm, role carriedRole, weight int64) {
		id := string(rune('0'+role)) + a.topologyKey + "\x00" + a.match.id
		c, ok := t.carried.byID[id]
		if !ok {
			t.made++
			c = &counter{id: id, number: t.made, key: t.keyOf(a.topologyKey, false), match: []*podMatch{a.match}, role: role, stamps: t.stamps}
			t.carried.add(c)
			c.key.counters = append(c.key.counters, c)
			t.changedTerms++
		}
		c.refs++
		k.sums = append(k.sums, sum{c, int32(weight)})
	}
	for i := range terms.antiAffinity {
		add(&terms.antiAffinity[i], carriedAnti, 1)
	}
	for i := range terms.affinity {
		add(&terms.affinity[i], carriedAffinity, 1)
	}
	for i := range terms.preferred {
		add(&terms.preferred[i], carriedPreference, terms.preferred[i].weight)
	}
}

// sweep forgets the kinds without pods.
func (t *Topology) sweep() {
	// order does not matter: each kind by itself.
	for signature, k := range t.kinds {
		if k.users > 0 {
			continue
		}
		delete(t.kinds, signature)
		last := len(k.space.kinds) - 1
		k.space.kinds[k.at] = k.space.kinds[last]
		k.space.kinds[k.at].at = k.at
		k.space.kinds = k.space.kinds[:last]
		if last == 0 && k.space.labels == nil {
			delete(t.spaces, k.class.Namespace)
		}
		for _, s := range k.sums {
			if c := s.counter; c.role != notCarried {
				if c.refs--; c.refs == 0 {
					t.carried.remove(c)
					t.forget(c)
					t.changedTerms++
				}
			}
		}
	}
	t.empty = 0
}

func (t *Topology) forget(c *counter) {
	c.forget()
	if len(c.key.counters) == 0 {
		delete(t.keys, c.key.id())
	}
	if e := c.eligible; e != nil {
		if e.refs--; e.refs == 0 {
			delete(t.eligible, e.id)
		}
	}
}

func (t *Topology) space(name string) *space {
	s, ok := t.spaces[name]
	if !ok {
		s = &space{}
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
	s.labels = labels
	t.changedTerms++
	t.relabelled++
	t.version++
	for _, k := range s.kinds {
		t.rematch(k)
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

// rematch finds out which counters a kind counts in now that its namespace has other labels.
func (t *Topology) rematch(k *kind) {
	var now []*counter
	t.matching.lookup(k.class, k.space.labels, func(c *counter) { now = append(now, c) })
	kept := k.sums[:0:0]
	for _, s := range k.sums {
		switch {
		case s.counter.dead:
		case s.counter.role != notCarried || slices.Contains(now, s.counter):
			kept = append(kept, s)
		default:
			t.countKind(k, s, -1)
		}
	}
	for _, c := range now {
		if !slices.ContainsFunc(kept, func(s sum) bool { return s.counter == c }) {
			s := sum{c, 1}
			kept = append(kept, s)
			t.countKind(k, s, 1)
		}
	}
	k.sums = kept
}

// countKind adds all pods of a kind to a counter, or takes them out.
func (t *Topology) countKind(k *kind, s sum, sign int32) {
	for _, slot := range k.slots {
		st := t.spots[slot].standingOf(k)
		pods := st.pods
		if s.counter.skipLeaving {
			pods -= st.leaving
		}
		s.counter.add(slot, sign*s.weight*pods)
	}
	if k.noms == 0 {
		return
	}
	for _, n := range t.nominations {
		if n.kind == k {
			s.counter.nominate(n.slot, n.priority, sign*s.weight*n.pods)
		}
	}
}
