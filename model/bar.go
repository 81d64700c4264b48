package model

// Bar is a rule about other pods that bars a class from a node, for somebody who wants to know whom it is about: anti-affinity
// of the class and of placed pods, and hard topology spread. Required affinity bars because there is nobody.
type Bar struct {
	Kind ReasonKind
	// Key and Value are the label that the nodes of the domain have in common; Shared says that there are several.
	Key, Value string
	Shared     bool
	// Pods is how many pods count in the domain, and Nominated that nominated ones of at least the class's priority do (NM4).
	Pods      int64
	Nominated bool
	// Least and MaxSkew are those of a TopologySpread constraint, and FewDomains that there are fewer domains than it asks for
	// (TS3).
	Least, MaxSkew int64
	FewDomains     bool

	rule Obstacle
}

// Bars returns the rules that bar the judge's class from a node and are about pods that are there, or are to come.
func (j *Judge) Bars(node string) []Bar {
	slot, ok := j.t.slots[node]
	if !ok || j.t.spots[slot].node == nil {
		return nil
	}
	var out []Bar
	s := j.see(slot)
	for i := range j.terms {
		k, d := &j.terms[i], s.domains[i]
		if d == noDomain {
			continue
		}
		key := k.counter.key
		b := Bar{
			Key: key.label, Value: key.domains[d].value, Shared: key.domains[d].nodes > 1,
			Pods: s.counts[i].pods(true), Nominated: k.with != &k.counter.base,
			rule: Obstacle{t: j.t, counter: k.counter, domain: d},
		}
		bars := b.Pods > 0
		switch k.role {
		default:
			continue
		case ownAntiAffinity:
			b.Kind = PodAntiAffinity
		case theirAntiAffinity:
			b.Kind = ExistingAntiAffinity
		case hardSpread:
			b.Kind, b.MaxSkew, b.FewDomains = TopologySpread, k.spread.maxSkew, k.counter.existing < k.spread.minDomains
			if pods := s.counts[i].pods(false); k.skewed(pods, false) { // it needs no nomination for that
				b.Pods, b.Nominated = pods, false
			}
			b.Least, bars = k.least(b.Nominated), k.skewed(b.Pods, b.Nominated)
		}
		if bars {
			out = append(out, b)
		}
	}
	return out
}

// Term tells the rules of one term apart from those of others, whatever their domains.
func (b *Bar) Term() uint64 { return b.rule.counter.number }

// Domain is the bar's domain among those of its term.
func (b *Bar) Domain() int32 { return b.rule.domain }

// Nodes calls f for every node, in all domains, that has pods that the bar's term is about; perhaps more than once, in no
// order.
func (b *Bar) Nodes(f func(node string)) {
	all := b.rule
	all.domain = everywhere
	all.Nodes(f)
}

// Counts says whether a pod of a class on a node, in whatever domain, is one of those that the bar's term is about, and in
// which domain it counts.
func (b *Bar) Counts(node string, c *Class) (domain int32, counts bool) {
	all := b.rule
	all.domain = everywhere
	if !all.Counts(node, c) {
		return noDomain, false
	}
	return all.counter.key.domainOf(all.t.slots[node]), true
}
