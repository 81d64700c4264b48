package model

import "slices"

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
	at    int32           // in space.kinds
	slots []place         // where there are such pods
	where map[int32]int32 // slot -> in slots; nil while they are few
	found []label         // where it is found by its labels
	sums  []sum
	users int32 // nodes and nominations that name it
	swept bool  // forgotten

	nominations []*nominated
}

// place is where pods of a kind are.
type place struct {
	slot int32
	at   int32 // in spot.standing
}

// sum is a counter that a kind's pods count in, and by how much.
type sum struct {
	counter *counter
	weight  int32
}

// Work grows with everything that is done here, by about one for each count that is looked at or changed: who has to bound
// what something costs asks for it before and after. It depends on nothing but what was asked and told.
func (t *Topology) Work() int64 { return t.work }

// Cost is Work with what is not part of it: what it takes to give a node that comes or goes its domains.
func (t *Topology) Cost() int64 { return t.work + t.spent }

// Charge adds to Work what its owner did to feed it.
func (t *Topology) Charge(work int64) { t.work += work }

// count adds pods of the kind on a slot to its counters, and says whether there are any.
func (t *Topology) count(k *kind, slot, pods, leaving int32) bool {
	t.work += int64(len(k.sums))
	dead := false
	for i := range k.sums {
		s := &k.sums[i]
		switch {
		case s.counter.dead:
			dead = true
		case s.counter.skipLeaving:
			s.counter.add(slot, s.weight*(pods-leaving))
		default:
			s.counter.add(slot, s.weight*pods)
		}
	}
	if dead {
		k.sums = slices.DeleteFunc(k.sums, func(s sum) bool { return s.counter.dead })
	}
	return len(k.sums) > 0
}

func (t *Topology) nominateKind(k *kind, slot, priority, pods int32) bool {
	t.work += int64(len(k.sums))
	for _, s := range k.sums {
		// Preferences only score, and nominations count in filters alone.
		if !s.counter.dead && s.counter.role != carriedPreference {
			t.nominateIn(s.counter, slot, priority, s.weight*pods)
		}
	}
	return len(k.sums) > 0
}

func (t *Topology) pod(node string, c *Class, pods int32, isLeaving bool) {
	k := t.kindOf(c)
	slot := t.slot(node)
	var leaving int32
	if isLeaving {
		leaving = pods
	}
	st := t.standingOf(k, slot)
	if st == nil {
		st = t.stand(k, slot)
	}
	st.pods += pods
	st.leaving += leaving
	if t.count(k, slot, pods, leaving) {
		t.version++
	}
	if st.pods == 0 && st.leaving == 0 {
		t.unstand(k, slot, st.at)
	}
}

// manySlots is from how many nodes on a kind has a map of them, and up to how many kinds on a node are looked through there.
const manySlots = 16

// standingOf is what is on a node of a kind, nil for nothing. A node may have thousands of kinds, and a kind thousands of
// nodes.
func (t *Topology) standingOf(k *kind, slot int32) *standing {
	s := &t.spots[slot]
	if len(s.standing) <= manySlots { // mostly, and it is at hand
		for i := range s.standing {
			if s.standing[i].kind == k {
				return &s.standing[i]
			}
		}
		return nil
	}
	if k.where != nil {
		if i, ok := k.where[slot]; ok {
			return &s.standing[k.slots[i].at]
		}
		return nil
	}
	for _, p := range k.slots {
		if p.slot == slot {
			return &s.standing[p.at]
		}
	}
	return nil
}

// stand makes room for the first pods of a kind on a node.
func (t *Topology) stand(k *kind, slot int32) *standing {
	s := &t.spots[slot]
	at, in := int32(len(s.standing)), int32(len(k.slots))
	s.standing = append(s.standing, standing{kind: k, at: in})
	k.slots = append(k.slots, place{slot, at})
	switch {
	case k.where != nil:
		k.where[slot] = in
	case len(k.slots) > manySlots:
		k.where = make(map[int32]int32, 2*len(k.slots))
		for i, p := range k.slots {
			k.where[p.slot] = int32(i)
		}
	}
	t.use(k, 1)
	return &s.standing[at]
}

// unstand takes away what stand made; in is the node's place in the kind's.
func (t *Topology) unstand(k *kind, slot, in int32) {
	s := &t.spots[slot]
	at := k.slots[in].at
	if last := int32(len(k.slots) - 1); in != last {
		moved := k.slots[last]
		k.slots[in] = moved
		t.spots[moved.slot].standing[moved.at].at = in
		if k.where != nil {
			k.where[moved.slot] = in
		}
	}
	k.slots = k.slots[:len(k.slots)-1]
	if k.where != nil {
		delete(k.where, slot)
		if len(k.slots) == 0 {
			k.where = nil
		}
	}
	last := int32(len(s.standing) - 1)
	if at != last {
		moved := s.standing[last]
		s.standing[at] = moved
		moved.kind.slots[moved.at].at = at
	}
	s.standing[last] = standing{}
	s.standing = s.standing[:last]
	t.use(k, -1)
	t.release(slot)
}

// maxEmpty is how many kinds without pods are kept, beyond as many as have some: a class whose last pod ends often has
// another soon.
const maxEmpty = 1024

func (t *Topology) use(k *kind, by int32) {
	was := k.users
	k.users += by
	t.census(k, was)
	if was == 0 {
		t.empty--
		t.lowest.add(k.class.Priority, 1)
		t.guard(k, 1)
	}
	if k.users == 0 {
		t.lowest.add(k.class.Priority, -1)
		t.guard(k, -1)
		if t.empty++; t.empty > maxEmpty+len(t.kinds)/2 {
			t.sweep()
		}
	}
}

// guard notes by which topology keys pods of the kind keep others away.
func (t *Topology) guard(k *kind, by int) {
	if k.class.terms == nil {
		return
	}
	for i := range k.class.terms.antiAffinity {
		key := k.class.terms.antiAffinity[i].topologyKey
		if t.guards[key] += by; t.guards[key] == 0 {
			delete(t.guards, key)
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
	t.index(k)
	t.kinds[c.Signature] = k
	t.empty++
	t.work += t.matching.lookup(c, sp.labels, func(m *counter) { t.link(k, m) })
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
	for _, k := range t.kinds {
		if k.users == 0 {
			t.drop(k)
		}
	}
}

// drop forgets a kind that has no pods.
func (t *Topology) drop(k *kind) {
	delete(t.kinds, k.class.Signature)
	k.swept = true
	t.empty--
	t.unindex(k)
	last := len(k.space.kinds) - 1
	k.space.kinds[k.at] = k.space.kinds[last]
	k.space.kinds[k.at].at = k.at
	k.space.kinds[last] = nil
	k.space.kinds = k.space.kinds[:last]
	if last == 0 && k.space.labels == nil {
		delete(t.spaces, k.class.Namespace)
	}
	for _, s := range k.sums {
		switch c := s.counter; {
		case c.dead:
		case c.role == notCarried:
			t.hold(c, -linkBytes)
		default:
			if c.refs--; c.refs == 0 {
				t.carried.remove(c)
				t.forget(c)
				t.changedTerms++
			}
		}
	}
}

// linkWork is about what a link costs beyond the look at the kind.
const linkWork = 4

// link has a kind's pods count in a counter of matching pods.
func (t *Topology) link(k *kind, c *counter) {
	if len(k.sums) == cap(k.sums) { // it must not grow for those who are dead
		k.sums = slices.DeleteFunc(k.sums, func(s sum) bool { return s.counter.dead })
		if len(k.sums) > cap(k.sums)/2 {
			k.sums = slices.Grow(k.sums, len(k.sums))
		}
	}
	k.sums = append(k.sums, sum{c, 1})
	if len(k.sums) > maxLinks {
		t.crowded = k
	}
	t.work += linkWork
	t.hold(c, linkBytes)
}

// countKind adds all pods of a kind to a counter, or takes them out.
func (t *Topology) countKind(k *kind, s sum, sign int32) {
	t.work += int64(len(k.slots))
	for _, at := range k.slots {
		st := &t.spots[at.slot].standing[at.at]
		pods := st.pods
		if s.counter.skipLeaving {
			pods -= st.leaving
		}
		s.counter.add(at.slot, sign*s.weight*pods)
	}
	t.work += int64(len(k.nominations))
	for _, n := range k.nominations {
		t.nominateIn(s.counter, n.slot, n.priority, sign*s.weight*n.pods)
	}
}
