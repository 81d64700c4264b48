package model

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func TestMulDiv(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := rapid.Int64Min(0).Draw(t, "a"), rapid.Int64Min(0).Draw(t, "b"), rapid.Int64Min(0).Draw(t, "c")
		want := int64(math.MaxInt64)
		if c > 0 {
			exact := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
			if exact.Quo(exact, big.NewInt(c)); exact.IsInt64() {
				want = exact.Int64()
			}
		}
		if got := MulDiv(a, b, c); got != want {
			t.Fatalf("%d·%d/%d is %d, want %d", a, b, c, got, want)
		}
	})
	for _, c := range [][3]int64{{-1, 1, 1}, {1, -1, 1}, {1, 1, -1}} {
		if got := MulDiv(c[0], c[1], c[2]); got != 0 {
			t.Errorf("MulDiv(%v) is %d, want 0", c, got)
		}
	}
}

// TestLogOf: near enough to the logarithm that no count of pods can tell, and never falling.
func TestLogOf(t *testing.T) {
	before := uint64(0)
	for n := uint64(1); n < 1<<20; n++ {
		got := logOf(n)
		if diff := math.Abs(float64(got)/logOne - math.Log(float64(n))); diff > 1e-12 {
			t.Fatalf("ln %d is off by %g", n, diff)
		}
		if got < before || n > 1 && got == before {
			t.Fatalf("ln %d is not above ln %d", n, n-1)
		}
		before = got
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Min(1).Draw(t, "n")
		if diff := math.Abs(float64(logOf(n))/logOne - math.Log(float64(n))); diff > 1e-12 {
			t.Fatalf("ln %d is off by %g", n, diff)
		}
	})
}

func TestLogSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s logSum
		exact := new(big.Int)
		for range rapid.IntRange(0, 5).Draw(t, "terms") {
			count, log := rapid.Uint64Range(0, 1<<32).Draw(t, "count"), rapid.Uint64Range(0, 1<<54).Draw(t, "log")
			s.add(count, log)
			exact.Add(exact, new(big.Int).Mul(new(big.Int).SetUint64(count), new(big.Int).SetUint64(log)))
		}
		exact.Rsh(exact.Add(exact, big.NewInt(logOne/2)), 48)
		if got := s.rounded(); got != exact.Int64() {
			t.Fatalf("rounded to %d, want %v", got, exact)
		}
	})
}
