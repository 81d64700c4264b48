package model

import (
	"math"
	"math/bits"
)

// Scores decide, and every server, on whatever processor, has to decide alike when it decides a log again. So they are
// computed with whole numbers: floating-point results differ where one processor fuses a multiplication with an addition and
// another does not, and where one has its own instructions for logarithms.

// MulDiv is ⌊a·b/c⌋ without overflow on the way: math.MaxInt64 where the result is above it or c is 0, and 0 where one of
// them is negative.
func MulDiv(a, b, c int64) int64 {
	if a < 0 || b < 0 || c < 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64))
}

// logOne is 1 in the unit of a log.
const logOne = 1 << 48

// logOf is the natural logarithm of a number from 1 on, in 2⁻⁴⁸; its error is below 2⁻⁴³.
//
// The number is m·2^e with m from 1 to 2, and ln m = 2·artanh(y) = 2·(y + y³/3 + y⁵/5 + …) with y = (m−1)/(m+1), which is
// at most a third: each term is less than a ninth of the one before it.
func logOf(n uint64) uint64 {
	const ln2 = 195103586505167 // ⌊ln 2 · 2⁴⁸⌋
	e := bits.Len64(n) - 1
	m := n << (63 - e) // in 2⁻⁶³
	y := fractionOf(m-1<<63, m>>1+1<<62)
	square := mulHigh(y, y)
	var sum uint64
	for term, k := y, uint64(1); term >= 1<<12; k += 2 {
		sum += term / k
		term = mulHigh(term, square)
	}
	return uint64(e)*ln2 + sum>>(64-1-48)
}

// fractionOf is (a/2)/b in 2⁻⁶⁴, where b is above a/2; with b as half of m+1 it is (m−1)/(m+1).
func fractionOf(a, b uint64) uint64 {
	q, _ := bits.Div64(a>>1, a<<63, b)
	return q
}

// mulHigh multiplies two fractions in 2⁻⁶⁴.
func mulHigh(a, b uint64) uint64 {
	hi, _ := bits.Mul64(a, b)
	return hi
}

// logSum adds up multiples of logarithms, which can be more than a word holds.
type logSum struct{ hi, lo uint64 }

// add adds count logarithms.
func (s *logSum) add(count, log uint64) {
	hi, lo := bits.Mul64(count, log)
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi, _ = bits.Add64(s.hi, hi, carry)
}

// rounded is the sum as a whole number, halves upwards.
func (s logSum) rounded() int64 {
	s.add(1, logOne/2)
	if s.hi>>47 != 0 {
		return math.MaxInt64
	}
	return int64(s.hi<<16 | s.lo>>48)
}
