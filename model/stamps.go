package model

// stamps tell changes of counts apart by when they were made. A Topology keeps them for whoever remembers what it found on
// a node and wants to know whether that is so still.
type stamps struct {
	now   uint64
	quiet bool // changes are taken back, see Topology.Peek
}

// Track has the Topology keep when each count changed, for Judge.Changed and ChangedAt. It is called before all else.
func (t *Topology) Track() { t.stamps = &stamps{} }

// mark notes that what the counter has in a domain changed.
func (c *counter) mark(domain int32) {
	if c.stamps == nil || c.stamps.quiet {
		return
	}
	if c.changed == nil {
		c.changed = map[int32]uint64{}
	}
	c.stamps.now++
	c.changed[domain], c.changedLast = c.stamps.now, c.stamps.now
}

// changedAt is when the counts of a domain changed last.
func (c *counter) changedAt(domain int32) uint64 { return c.changed[domain] }

// Changed is when something changed last that Fails, Obstacles, Anchors, Kin, Founds or Skewing tell of some node, or the
// pods that are counted in it. It grows with every such change.
func (j *Judge) Changed() uint64 {
	var last uint64
	for i := range j.terms {
		if k := &j.terms[i]; k.bars() {
			last = max(last, k.counter.changedLast)
		}
	}
	return last
}

// ChangedAt is Changed for one node. Between equal answers nothing of that is other than it was on the node, provided that
// Layout is the same and the node itself was not changed.
func (j *Judge) ChangedAt(node string) uint64 {
	slot, ok := j.t.slots[node]
	if !ok {
		return 0
	}
	var last uint64
	for i := range j.terms {
		switch k := &j.terms[i]; {
		case !k.bars():
		case k.role == hardSpread, k.role == ownAffinity && j.attracted:
			last = max(last, k.counter.changedLast) // the least of all domains counts, or whether there are any
		default:
			last = max(last, k.counter.changedAt(k.counter.key.domainOf(slot)))
		}
	}
	return last
}

// bars says whether the term can keep the class off a node.
func (k *judged) bars() bool {
	switch k.role {
	case hardSpread, ownAffinity, ownAntiAffinity, theirAntiAffinity:
		return true
	}
	return false
}

// Kinds is how many classes of pods are placed or nominated, or were until lately.
func (t *Topology) Kinds() int { return len(t.kinds) }

// Terms is how many terms the judge asks, of the class and of others about it.
func (j *Judge) Terms() int { return len(j.terms) }

// ID tells obstacles apart that are about other pods; see Same.
func (o *Obstacle) ID() (counter uint64, domain int32) { return o.counter.number, o.domain }

// ChangedAt is when the pods changed last that the rule is about.
func (o *Obstacle) ChangedAt() uint64 {
	if o.domain == everywhere {
		return o.counter.changedLast
	}
	return o.counter.changedAt(o.domain)
}
