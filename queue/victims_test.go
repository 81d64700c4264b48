package queue

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestVictimsTogether: whoever can gain by one of two can gain by both together, and nobody else but where too many nodes are
// named; neither is changed. What is nobody adds nothing, and nil is whomever.
func TestVictimsTogether(t *testing.T) {
	draw := func(t *rapid.T, label string) *Victims {
		switch rapid.IntRange(0, 5).Draw(t, label) {
		case 0:
			return nil
		case 1:
			return NoVictims()
		case 2:
			return AnyVictims()
		}
		v := &Victims{Lowest: rapid.Int32Range(0, 3).Draw(t, label+" lowest")}
		for i := range 2 * MaxVictimNodes {
			if rapid.IntRange(0, 3).Draw(t, label+" node") == 0 {
				v.Nodes = append(v.Nodes, fmt.Sprintf("n%02d", i))
			}
		}
		return v
	}
	// gains says whether it is of use to a priority to evict some of the victims on a node.
	gains := func(v *Victims, priority int32, node string) bool {
		return v == nil || v.Lowest < priority && (len(v.Nodes) == 0 || slices.Contains(v.Nodes, node))
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t, "a"), draw(t, "b")
		before := fmt.Sprint(a, b)
		both := a.And(b)
		if fmt.Sprint(a, b) != before {
			t.Fatal("one of them is changed")
		}
		if both != nil && (len(both.Nodes) > max(MaxVictimNodes, len(nodesOf(a)), len(nodesOf(b))) || !slices.IsSorted(both.Nodes)) {
			t.Fatalf("%v name too many nodes, or not in order", both)
		}
		for _, priority := range []int32{math.MinInt32, 0, 1, 2, 4, math.MaxInt32} {
			for i := range 2 * MaxVictimNodes {
				node := fmt.Sprintf("n%02d", i)
				if (gains(a, priority, node) || gains(b, priority, node)) && !gains(both, priority, node) {
					t.Fatalf("%v and %v together are %v, by which %d on %s does not gain", a, b, both, priority, node)
				}
			}
		}
		if a.nobody() && !reflect.DeepEqual(both, b) || b.nobody() && !reflect.DeepEqual(both, a) {
			t.Fatalf("nobody adds something: %v and %v are %v", a, b, both)
		}
	})
}

func nodesOf(v *Victims) []string {
	if v == nil {
		return nil
	}
	return v.Nodes
}
