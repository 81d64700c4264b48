package sched

import "math/bits"

// rankSet is a set of ranks with a fast "first at or after": a bitset with a second one over its words.
type rankSet struct {
	words []uint64
	full  []uint64 // bit w set: words[w] is not zero
	n     int32
}

func newRankSet(size int) *rankSet {
	words := (size + 63) / 64
	return &rankSet{words: make([]uint64, words), full: make([]uint64, (words+63)/64)}
}

func (s *rankSet) add(rank int32) {
	w := rank >> 6
	s.words[w] |= 1 << (rank & 63)
	s.full[w>>6] |= 1 << (w & 63)
	s.n++
}

func (s *rankSet) remove(rank int32) {
	w := rank >> 6
	s.words[w] &^= 1 << (rank & 63)
	if s.words[w] == 0 {
		s.full[w>>6] &^= 1 << (w & 63)
	}
	s.n--
}

// next returns the first member at or after rank, or -1.
func (s *rankSet) next(rank int32) int32 {
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
