package model

import "slices"

// Obstacle is a rule about other pods that bars a class from a node, and that pods can end by leaving.
type Obstacle struct {
	Kind ReasonKind
	// Need is how many of the pods that count have to go.
	Need int64
	// Total is how many there are; those that are leaving are among them for all kinds but TopologySpread.
	Total int64

	t       *Topology
	counter *counter
	domain  int32
	slot    int32 // of a node of the domain
}

// Obstacles returns what bars the judge's class from a node as far as pods that run can end it by leaving; false if
// something else does too: nominations, a label that the node lacks, required affinity (PR4).
func (j *Judge) Obstacles(node string) ([]Obstacle, bool) {
	slot, ok := j.t.slots[node]
	if !ok || j.t.spots[slot].node == nil {
		return nil, false
	}
	s := j.see(slot)
	if f := j.verdict(s); !f.Resolvable() {
		return nil, false
	}
	var out []Obstacle
	for i := range j.terms {
		k := &j.terms[i]
		o := Obstacle{Total: s.counts[i].pods(false), t: j.t, counter: k.counter, domain: s.domains[i], slot: slot}
		switch k.role {
		default:
			continue // what is merely preferred is counted in weights, some of them negative
		case hardSpread:
			o.Kind = TopologySpread
			o.Need = max(k.over(o.Total, false), k.over(s.counts[i].pods(true), true))
		case ownAntiAffinity, theirAntiAffinity:
			o.Kind, o.Need = PodAntiAffinity, o.Total
			if k.role == theirAntiAffinity {
				o.Kind = ExistingAntiAffinity
			}
			if s.counts[i].pods(true) > o.Total {
				return nil, false // a nomination that outranks the class
			}
		}
		if o.Need > o.Total {
			return nil, false
		}
		if o.Need > 0 {
			out = append(out, o)
		}
	}
	return out, true
}

// Anchors returns the pods that the class's required affinity needs around a node where it is satisfied: for each key, at
// least one of the pods that count has to stay (PR14).
func (j *Judge) Anchors(node string) []Obstacle {
	slot, ok := j.t.slots[node]
	if !ok || j.attracts == 0 {
		return nil
	}
	s := j.see(slot)
	var out []Obstacle
	for i := range j.terms {
		if k := &j.terms[i]; k.role == ownAffinity && s.domains[i] != noDomain && s.counts[i].pods(false) > 0 {
			out = append(out, Obstacle{Kind: PodAffinity, Total: s.counts[i].pods(false), t: j.t, counter: k.counter, domain: s.domains[i], slot: slot})
		}
	}
	return out
}

// Kin returns the pods that the class's required affinity is about, wherever they are, where it is about the class too:
// with all of them gone the class may be the first of its kind (AF2). It is empty where there are none, or where the
// class does not match its own terms.
func (j *Judge) Kin() []Obstacle {
	if j.attracts == 0 || !j.attracted {
		return nil
	}
	var out []Obstacle
	for i := range j.terms {
		if k := &j.terms[i]; k.role == ownAffinity && k.counter.base.total > 0 {
			out = append(out, Obstacle{Kind: PodAffinity, Total: k.counter.base.total, t: j.t, counter: k.counter, domain: everywhere})
		}
	}
	return out
}

// Founds says whether the class could come to a node if all of its Kin were gone: as the first of its kind, or beside one
// that is nominated; not if such a one is nominated to elsewhere.
func (j *Judge) Founds(node string) bool {
	slot, ok := j.t.slots[node]
	if !ok {
		return false
	}
	s := j.see(slot)
	together, first := true, true
	for i := range j.terms {
		if k := &j.terms[i]; k.role == ownAffinity {
			together = together && s.counts[i].with > s.counts[i].base
			first = first && k.with.total == k.counter.base.total
		}
	}
	return together || first
}

// Skewing returns, for every hard spread constraint of the class, the pods that count in the node's domain, whether they
// are too many or not.
func (j *Judge) Skewing(node string) []Obstacle {
	slot, ok := j.t.slots[node]
	if !ok {
		return nil
	}
	s := j.see(slot)
	var out []Obstacle
	for i := range j.terms {
		if k := &j.terms[i]; k.role == hardSpread && s.domains[i] != noDomain {
			out = append(out, Obstacle{Kind: TopologySpread, Total: s.counts[i].pods(false), t: j.t, counter: k.counter, domain: s.domains[i], slot: slot})
		}
	}
	return out
}

// everywhere is the domain of an obstacle that is about the pods of all of them.
const everywhere = -2

func (o *Obstacle) covers(slot int32) bool {
	d := o.counter.key.domainOf(slot)
	return d != noDomain && (d == o.domain || o.domain == everywhere) && o.counter.counts(slot)
}

// Counts says whether a pod of a class on a node is one of the pods that the rule is about.
func (o *Obstacle) Counts(node string, c *Class) bool {
	slot, ok := o.t.slots[node]
	if !ok || !o.covers(slot) {
		return false
	}
	k, ok := o.t.kinds[c.Signature]
	return ok && slices.ContainsFunc(k.sums, func(s sum) bool { return s.counter == o.counter && s.weight > 0 })
}

// Beyond says whether pods that the rule is about, and that are not leaving, are on more than so many nodes beside one, and
// returns how much there was to look at to find that out, as Nodes does.
func (o *Obstacle) Beyond(most int, node string) (is bool, looked int) {
	if o.domain >= 0 && o.counter.key.domains[o.domain].nodes == 1 {
		return most < 0, 1
	}
	own, ok := o.t.slots[node]
	if !ok {
		own = -1
	}
	for slot := range o.t.spots {
		looked++
		if int32(slot) == own || !o.covers(int32(slot)) {
			continue
		}
		found, sums := o.isOn(&o.t.spots[slot], true)
		looked += sums
		if !found {
			continue
		}
		if most--; most < 0 {
			return true, looked
		}
	}
	return false, looked
}

// isOn says whether pods that the rule is about are among those of a node; staying, whether such that are not leaving are.
func (o *Obstacle) isOn(s *spot, staying bool) (is bool, looked int) {
	for i := range s.standing {
		st := &s.standing[i]
		looked += 1 + len(st.kind.sums)
		if !(staying && st.pods == st.leaving) && slices.ContainsFunc(st.kind.sums, func(s sum) bool { return s.counter == o.counter }) {
			return true, looked
		}
	}
	return false, looked
}

// Nodes calls f for every node with pods that the rule is about, in no order, and returns how much there was to look at:
// the nodes, and the counters of the kinds of pods that are in the domain. The kinds of all domains would be more.
func (o *Obstacle) Nodes(f func(node string)) (looked int) {
	if o.domain >= 0 && o.counter.key.domains[o.domain].nodes == 1 {
		f(o.t.spots[o.slot].name) // a host name, say: there is nobody else to look at
		return 1
	}
	for slot := range o.t.spots {
		if !o.covers(int32(slot)) {
			continue
		}
		s := &o.t.spots[slot]
		is, sums := o.isOn(s, false)
		if looked += sums; is {
			f(s.name)
		}
	}
	return looked + len(o.t.spots)
}
