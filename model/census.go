package model

import "slices"

// What it takes to count for a term that is asked for the first time is known before it is done: how many kinds of pods
// it may be about, and on how many nodes each of them is. It follows from the pods and nominations that there are, and
// from nothing else: not from what was asked before, nor from kinds whose pods have gone.

// census counts kinds that have pods or nominations, and the places where these are.
type census struct{ kinds, places int64 }

func (c *census) add(kinds, places int64) {
	c.kinds += kinds
	c.places += places
}

// cell finds the kinds of a namespace that have a label, by a hash of these: whoever looks there tries them.
type cell struct {
	kinds []*kind
	pods  census
}

// label is where a kind stands for one of its labels.
type label struct {
	at   uint32 // in Topology.cells
	in   int32  // in cell.kinds
	cell *cell
}

// cellBits bounds the cells, and with them what labels that each pod has of its own cost in memory.
const cellBits = 18

func hashOf(h uint64, s string) uint64 { // FNV-1a, with a zero byte at the end
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h * 1099511628211
}

func hashOfNamespace(name string) uint64 { return hashOf(14695981039346656037, name) }

// cellAt is where the cell of a label is.
func (s *space) cellAt(key, value string) uint32 {
	h := hashOf(hashOf(s.hash, key), value)
	return uint32(h^h>>32) & (1<<cellBits - 1)
}

// index lets a new kind be found by its labels.
func (t *Topology) index(k *kind) {
	k.found = make([]label, 0, len(k.class.Labels))
	// order does not matter: each label by itself.
	for key, value := range k.class.Labels {
		at := k.space.cellAt(key, value)
		c, ok := t.cells[at]
		if !ok {
			c = new(cell)
			t.cells[at] = c
		}
		k.found = append(k.found, label{at: at, cell: c, in: int32(len(c.kinds))})
		c.kinds = append(c.kinds, k)
	}
	t.work += int64(len(k.found))
}

// unindex is the inverse of index.
func (t *Topology) unindex(k *kind) {
	for _, l := range k.found {
		last := int32(len(l.cell.kinds) - 1)
		if l.in != last {
			moved := l.cell.kinds[last]
			l.cell.kinds[l.in] = moved
			for i := range moved.found {
				if m := &moved.found[i]; m.cell == l.cell && m.in == last {
					m.in = l.in
				}
			}
		}
		l.cell.kinds[last] = nil
		if l.cell.kinds = l.cell.kinds[:last]; last == 0 {
			delete(t.cells, l.at)
		}
	}
	k.found = nil
}

// census follows a change of the number of places of a kind.
func (t *Topology) census(k *kind, was int32) {
	places := int64(k.users - was)
	var kinds int64
	switch {
	case was == 0:
		kinds = 1
	case k.users == 0:
		kinds = -1
	}
	t.pods.add(kinds, places)
	k.space.pods.add(kinds, places)
	for i := range k.found {
		k.found[i].cell.pods.add(kinds, places)
	}
}

// spacesOf calls f for every namespace among which all are that a match may be about, in no order.
func (t *Topology) spacesOf(m *podMatch, f func(sp *space)) {
	if m.nsSelector == nil {
		for _, ns := range m.namespaces {
			if sp, ok := t.spaces[ns]; ok {
				f(sp)
			}
		}
		return
	}
	// order does not matter: what is counted adds up.
	for _, sp := range t.spaces {
		f(sp)
	}
}

// kindsFor are the kinds of a namespace among which all are that the matches are about: those with a label that one of
// the matches demands, if any does, and then with the one that the fewest have.
func (t *Topology) kindsFor(sp *space, matches []*podMatch) []*kind {
	kinds := sp.kinds
	for _, m := range matches {
		if m.nobody {
			return nil
		}
		for _, l := range m.demanded {
			c, ok := t.cells[sp.cellAt(l.key, l.value)]
			if !ok {
				return nil
			}
			if len(c.kinds) < len(kinds) {
				kinds = c.kinds
			}
		}
	}
	return kinds
}

// censusOf is kindsFor for those kinds that have pods, with their places.
func (t *Topology) censusOf(sp *space, matches []*podMatch) census {
	least := sp.pods
	for _, m := range matches {
		if m.nobody {
			return census{}
		}
		for _, l := range m.demanded {
			c, ok := t.cells[sp.cellAt(l.key, l.value)]
			if !ok {
				return census{}
			}
			if c.pods.kinds < least.kinds || c.pods.kinds == least.kinds && c.pods.places < least.places {
				least = c.pods
			}
		}
	}
	return least
}

// Count is what it takes to make the counters of a class's own terms, of which none is there yet: how many they are, and the
// kinds of pods and their places that are looked at for each of them. Nodes is what each node is asked to know whether it is
// eligible, in looks at a count. Looks is what it takes to say so.
type Count struct{ Counters, Kinds, Places, Nodes, Looks int64 }

// CountFor is what it may take to count for a class. It follows from the pods, the nominations and the class alone.
func (t *Topology) CountFor(c *Class) Count {
	var out Count
	terms := c.terms
	if terms == nil {
		return out
	}
	add := func(times int, matches ...*podMatch) {
		labels := 1
		for _, m := range matches {
			labels += len(m.demanded)
		}
		var has census
		t.spacesOf(matches[0], func(sp *space) {
			if sp.pods.kinds > 0 {
				c := t.censusOf(sp, matches)
				has.add(c.kinds, c.places)
				out.Looks += int64(labels)
			}
		})
		out.Counters += int64(times)
		out.Kinds += int64(times) * has.kinds
		out.Places += int64(times) * has.places
	}
	var eligible []eligibility
	for i := range terms.spread {
		s := &terms.spread[i]
		add(1, s.match)
		e := eligibility{class: c, keys: spreadKeys(terms.spread, s.hard), affinity: s.honorAffinity && c.selects, taints: s.honorTaints}
		if (e.affinity || e.taints) && !slices.ContainsFunc(eligible, func(k eligibility) bool {
			return k.affinity == e.affinity && k.taints == e.taints && slices.Equal(k.keys, e.keys)
		}) {
			eligible = append(eligible, e)
			out.Nodes += e.looks()
		}
	}
	if len(terms.affinity) > 0 {
		all, keys := attraction(terms.affinity)
		add(len(keys), all...)
	}
	for _, list := range [...][]affinityTerm{terms.antiAffinity, terms.preferred} {
		for i := range list {
			add(1, list[i].match)
		}
	}
	return out
}

// attraction is what pods must match that required affinity terms are about, and the keys by which they are counted.
func attraction(terms []affinityTerm) (all []*podMatch, keys []string) {
	for i := range terms {
		all = append(all, terms[i].match)
		if key := terms[i].topologyKey; !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return all, keys
}

// HasPods says whether a namespace has pods, placed or nominated.
func (t *Topology) HasPods(namespace string) bool {
	sp, ok := t.spaces[namespace]
	return ok && sp.pods.kinds > 0
}

// ChoosesAnyNamespaces says whether a term of the class, preferred ones included, chooses namespaces by their labels.
func (c *Class) ChoosesAnyNamespaces() bool {
	return c.chooses(func(m *podMatch) bool { return m.nsSelector != nil })
}

// ChoosesOtherwise says whether a term of the class chooses a namespace by only one of two sets of labels.
func (c *Class) ChoosesOtherwise(before, now map[string]string) bool {
	return c.chooses(func(m *podMatch) bool { return m.choosesOtherwise(before, now) })
}

func (c *Class) chooses(f func(m *podMatch) bool) bool {
	if c.terms == nil {
		return false
	}
	return slices.ContainsFunc(slices.Concat(c.terms.affinity, c.terms.antiAffinity, c.terms.preferred), func(a affinityTerm) bool { return f(a.match) })
}
