package model

import (
	"encoding/binary"
	"slices"
)

// The groups of nodes that a judge cannot tell apart; see Judge.

// group is what a node of the group looks like.
type group struct {
	domains []int32 // by key; where domains are single nodes, that of any node of the group
	counts  []count // by term whose domains are single nodes, in order of terms
}

type count struct{ base, with int32 }

// sight is what the terms say of one node or group, by term.
type sight struct {
	domains []int32
	counts  []count
}

// maxGroups bounds the groups that a judge has seen.
const maxGroups = 1 << 16

// arrange begins with groups anew.
func (j *Judge) arrange() {
	j.t.layouts++
	j.layout, j.at, j.relabelled = j.t.layouts, 0, j.t.relabelled
	j.t.judges.bytes -= j.grouped
	j.grouped = 0
	j.groups, j.seen, j.keys = map[string]int32{}, nil, nil
	for i := range j.terms {
		k := &j.terms[i]
		k.single = k.counter.key.single()
		if k.key = slices.Index(j.keys, k.counter.key); k.key < 0 {
			k.key = len(j.keys)
			j.keys = append(j.keys, k.counter.key)
		}
	}
	j.here = sight{domains: make([]int32, len(j.terms)), counts: make([]count, len(j.terms))}
}

// Group is the node's group.
func (j *Judge) Group(node string) int32 {
	if len(j.terms) == 0 {
		return 0
	}
	slot, ok := j.t.slots[node]
	if !ok {
		slot = -1
	}
	j.fresh()
	b := j.buf[:0]
	for _, k := range j.keys {
		d := int32(noDomain)
		if slot >= 0 {
			d = k.domainOf(slot)
		}
		if d != noDomain && k.single() {
			d = 0
		}
		b = binary.AppendVarint(b, int64(d))
	}
	for i := range j.terms {
		if k := &j.terms[i]; k.single {
			n := k.countAt(j.t, slot)
			b = binary.AppendVarint(b, int64(n.base))
			b = binary.AppendVarint(b, int64(n.with))
		}
	}
	j.buf = b
	if g, ok := j.groups[string(b)]; ok {
		return g
	}
	g := int32(len(j.seen))
	j.groups[string(b)] = g
	j.grouped += j.groupBytes()
	j.t.judges.bytes += j.groupBytes()
	j.seen = append(j.seen, j.newGroup(slot))
	return g
}

func (j *Judge) newGroup(slot int32) group {
	g := group{domains: make([]int32, len(j.keys))}
	for i, k := range j.keys {
		g.domains[i] = noDomain
		if slot >= 0 {
			g.domains[i] = k.domainOf(slot)
		}
	}
	for i := range j.terms {
		if k := &j.terms[i]; k.single {
			g.counts = append(g.counts, k.countAt(j.t, slot))
		}
	}
	return g
}

// countAt is what the term counts at the node in a slot.
func (k *judged) countAt(t *Topology, slot int32) count {
	if slot < 0 {
		return count{}
	}
	d := k.counter.key.domainOf(slot)
	if d == noDomain {
		return count{}
	}
	return count{k.counter.base.count.at(d), k.with.count.at(d)}
}

// see returns what the terms say of a node.
func (j *Judge) see(slot int32) *sight {
	j.fresh()
	for i := range j.terms {
		k := &j.terms[i]
		j.here.domains[i] = k.counter.key.domainOf(slot)
		j.here.counts[i] = k.countAt(j.t, slot)
	}
	return &j.here
}

// seeGroup returns what the terms say of the nodes of a group.
func (j *Judge) seeGroup(number int32) *sight {
	j.fresh()
	g, next := &j.seen[number], 0
	for i := range j.terms {
		k := &j.terms[i]
		d := g.domains[k.key]
		j.here.domains[i] = d
		switch {
		case k.single:
			j.here.counts[i] = g.counts[next]
			next++
		case d == noDomain:
			j.here.counts[i] = count{}
		default:
			j.here.counts[i] = count{k.counter.base.count.at(d), k.with.count.at(d)}
		}
	}
	return &j.here
}
