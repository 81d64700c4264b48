package store

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestTreesAreMaps: a tree and its forks, and their forks, answer as maps do
// that were copied whole, and none of them notices what is written to another.
func TestTreesAreMaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type twin struct {
			tree   Tree[int]
			oracle map[string]int
		}
		key := rapid.StringMatching(`[ab\xff]{0,3}`)
		written, frozen := twin{oracle: map[string]int{}}, []twin(nil)
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			k := key.Draw(t, "key")
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				frozen = append(frozen, written)
				written = twin{written.tree.Fork(), maps.Clone(written.oracle)}
			case 1:
				if len(frozen) > 0 {
					from := rapid.SampledFrom(frozen).Draw(t, "from")
					written = twin{from.tree.Fork(), maps.Clone(from.oracle)}
				}
			case 2:
				written.tree.Clear()
				written.oracle = map[string]int{}
			case 3, 4, 5:
				want, had := written.oracle[k]
				if got, ok := written.tree.Delete(k); ok != had || got != want {
					t.Fatalf("deleted %q: %d, %t; want %d, %t", k, got, ok, want, had)
				}
				delete(written.oracle, k)
			default:
				n := rapid.Int().Draw(t, "value")
				written.tree.Set(k, n)
				written.oracle[k] = n
			}
		}
		for _, w := range append(frozen, written) {
			compareTree(t, w.tree, w.oracle, key.Draw(t, "prefix"), key.Draw(t, "from"))
		}
	})
}

func compareTree(t *rapid.T, tree Tree[int], oracle map[string]int, prefix, from string) {
	keys := slices.Sorted(maps.Keys(oracle))
	if tree.Len() != len(keys) {
		t.Fatalf("%d keys, want %d", tree.Len(), len(keys))
	}
	var all, reversed, some []string
	tree.Scan("", func(k string, n int) bool {
		if all = append(all, k); oracle[k] != n {
			t.Fatalf("%q is %d, want %d", k, n, oracle[k])
		}
		return true
	})
	tree.Reverse(func(k string, _ int) bool { reversed = append(reversed, k); return true })
	slices.Reverse(reversed)
	if !slices.Equal(all, keys) || !slices.Equal(reversed, keys) {
		t.Fatalf("keys %q, backwards %q, want %q", all, reversed, keys)
	}
	tree.ScanFrom(prefix, max(prefix, from), func(k string, _ int) bool { some = append(some, k); return true })
	want := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k < from || !strings.HasPrefix(k, prefix) })
	if !slices.Equal(some, want) {
		t.Fatalf("from %q with prefix %q: %q, want %q", from, prefix, some, want)
	}
	after := slices.IndexFunc(keys, func(k string) bool { return k >= After(prefix) })
	if got, _, ok := tree.First(After(prefix)); ok != (after >= 0) || ok && got != keys[after] {
		t.Fatalf("after %q comes %q, %t", prefix, got, ok)
	}
	if k, _, ok := tree.Min(); ok != (len(keys) > 0) || ok && k != keys[0] {
		t.Fatalf("the least is %q, %t", k, ok)
	}
	if k, _, ok := tree.Max(); ok != (len(keys) > 0) || ok && k != keys[len(keys)-1] {
		t.Fatalf("the greatest is %q, %t", k, ok)
	}
	for _, k := range []string{prefix, from} {
		want, had := oracle[k]
		if got, ok := tree.Get(k); ok != had || got != want {
			t.Fatalf("%q is %d, %t; want %d, %t", k, got, ok, want, had)
		}
	}
}
