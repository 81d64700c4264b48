package main

import "testing"

func TestGCPercent(t *testing.T) {
	for _, c := range []struct {
		live uint64
		want int
	}{
		{0, 1000}, {8 << 20, 1000}, {128 << 20, 300}, {192 << 20, 166}, {256 << 20, 100}, {4 << 30, 100},
	} {
		if got := gcPercent(c.live); got != c.want {
			t.Errorf("%d MiB in use: %d, want %d", c.live>>20, got, c.want)
		}
	}
}
