package model

import (
	"slices"
	"sort"
)

// tally is a count for each domain of a key, or another number for each slot of a node. It costs those that are not 0: a
// term that few pods are about, or a label that few nodes have, must not cost every node of the cluster. Where it is an
// eighth of them, it is an array.
type tally struct {
	few   []domainCount // sorted by domain, no zeroes; unused once all is there
	all   []int32       // by domain
	above int32         // no domain counted is as high
}

type domainCount struct{ domain, pods int32 }

// fewAtLeast is how many domains are looked up without an array in any case.
const fewAtLeast = 4

func (t *tally) at(domain int32) int32 {
	if t.all != nil {
		if int(domain) < len(t.all) {
			return t.all[domain]
		}
		return 0
	}
	if i, ok := t.find(domain); ok {
		return t.few[i].pods
	}
	return 0
}

func (t *tally) find(domain int32) (int, bool) {
	i := sort.Search(len(t.few), func(i int) bool { return t.few[i].domain >= domain })
	return i, i < len(t.few) && t.few[i].domain == domain
}

func (t *tally) add(domain, pods int32) {
	if pods == 0 {
		return
	}
	if t.all != nil {
		for int(domain) >= len(t.all) {
			t.all = append(t.all, 0)
		}
		t.all[domain] += pods
		return
	}
	i, ok := t.find(domain)
	switch {
	case !ok:
		t.few = slices.Insert(t.few, i, domainCount{domain, pods})
		t.above = max(t.above, domain+1)
		t.widen()
	case t.few[i].pods+pods == 0:
		t.few = slices.Delete(t.few, i, i+1)
	default:
		t.few[i].pods += pods
	}
}

// widen makes the array when it is worth its memory.
func (t *tally) widen() {
	if len(t.few) <= fewAtLeast || 8*len(t.few) < int(t.above) {
		return
	}
	t.all = make([]int32, t.above)
	for _, c := range t.few {
		t.all[c.domain] = c.pods
	}
	t.few = nil
}

// each calls f with all numbers that are not 0.
func (t *tally) each(f func(domain, n int32)) {
	for d, n := range t.all {
		if n != 0 {
			f(int32(d), n)
		}
	}
	for _, c := range t.few {
		f(c.domain, c.pods)
	}
}

func (t *tally) clone() tally {
	return tally{few: slices.Clone(t.few), all: slices.Clone(t.all), above: t.above}
}

// histogram counts the domains by how many pods they have. It costs the numbers that there are, not the largest.
type histogram struct{ levels []level } // sorted by pods; none without a domain

type level struct{ pods, domains int32 }

func (h *histogram) find(pods int32) (int, bool) {
	i := sort.Search(len(h.levels), func(i int) bool { return h.levels[i].pods >= pods })
	return i, i < len(h.levels) && h.levels[i].pods == pods
}

// move is remove and add; a domain that stays between the same others only changes its level's number.
func (h *histogram) move(from, to int32) {
	i, _ := h.find(from)
	if h.levels[i].domains == 1 && (i == 0 || h.levels[i-1].pods < to) && (i+1 == len(h.levels) || h.levels[i+1].pods > to) {
		h.levels[i].pods = to
		return
	}
	h.remove(from)
	h.add(to)
}

func (h *histogram) add(pods int32) {
	i, ok := h.find(pods)
	if !ok {
		h.levels = slices.Insert(h.levels, i, level{pods: pods})
	}
	h.levels[i].domains++
}

func (h *histogram) remove(pods int32) {
	i, _ := h.find(pods)
	if h.levels[i].domains--; h.levels[i].domains == 0 {
		h.levels = slices.Delete(h.levels, i, i+1)
	}
}

// least is 0 when there are no domains.
func (h *histogram) least() int64 {
	if len(h.levels) == 0 {
		return 0
	}
	return int64(h.levels[0].pods)
}

func (h *histogram) clone() histogram { return histogram{slices.Clone(h.levels)} }
