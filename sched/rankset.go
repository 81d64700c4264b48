package sched

import (
	"math/bits"
	"slices"
)

// rankSet is a set of ranks with a fast "first at or after". While it is small it is a sorted list; then a bitset with
// a second one over its words, until it is empty again.
type rankSet struct {
	size  int // ranks are below it
	n     int32
	few   []int32
	words []uint64 // nil while few holds the set
	full  []uint64 // bit w set: words[w] is not zero
}

const maxFew = 64

func newRankSet(size int) *rankSet { return &rankSet{size: size} }

func (s *rankSet) add(rank int32) {
	s.n++
	if s.words == nil {
		if s.n <= maxFew {
			i, _ := slices.BinarySearch(s.few, rank)
			s.few = slices.Insert(s.few, i, rank)
			return
		}
		words := (s.size + 63) / 64
		s.words, s.full = make([]uint64, words), make([]uint64, (words+63)/64)
		for _, r := range s.few {
			s.set(r)
		}
		s.few = nil
	}
	s.set(rank)
}

func (s *rankSet) set(rank int32) {
	w := rank >> 6
	s.words[w] |= 1 << (rank & 63)
	s.full[w>>6] |= 1 << (w & 63)
}

func (s *rankSet) remove(rank int32) {
	s.n--
	if s.words == nil {
		i, _ := slices.BinarySearch(s.few, rank)
		s.few = slices.Delete(s.few, i, i+1)
		return
	}
	if s.n == 0 {
		s.words, s.full = nil, nil
		return
	}
	w := rank >> 6
	s.words[w] &^= 1 << (rank & 63)
	if s.words[w] == 0 {
		s.full[w>>6] &^= 1 << (w & 63)
	}
}

// bytes is what the set holds beside itself.
func (s *rankSet) bytes() int { return 4*cap(s.few) + 8*(cap(s.words)+cap(s.full)) }

// next returns the first member at or after rank, or -1.
func (s *rankSet) next(rank int32) int32 {
	if s.words == nil {
		if i, _ := slices.BinarySearch(s.few, rank); i < len(s.few) {
			return s.few[i]
		}
		return -1
	}
	w := rank >> 6
	if int(w) >= len(s.words) {
		return -1
	}
	if rest := s.words[w] >> (rank & 63); rest != 0 {
		return rank + int32(bits.TrailingZeros64(rest))
	}
	w++
	f := int(w >> 6)
	if f >= len(s.full) {
		return -1
	}
	mask := s.full[f] >> (w & 63) << (w & 63)
	for mask == 0 {
		if f++; f == len(s.full) {
			return -1
		}
		mask = s.full[f]
	}
	w = int32(f<<6 + bits.TrailingZeros64(mask))
	return w<<6 + int32(bits.TrailingZeros64(s.words[w]))
}

// nextOnRing returns the first member at or after rank, going round; the set must not be empty.
func (s *rankSet) nextOnRing(rank int32) int32 {
	if r := s.next(rank); r >= 0 {
		return r
	}
	return s.next(0)
}
