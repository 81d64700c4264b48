package model

import (
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// Standing is what can be said at once of pods that are on nodes.
type Standing struct {
	// Lowest is the lowest of their priorities; without any, above all others.
	Lowest int32
	// Nodes are those that they are on, sorted; nil where they are more than was asked for.
	Nodes []string
}

// Selected says where pods of a namespace are that a selector selects, those left out that are leaving. looks is what it
// takes, as Work counts, and follows from the pods that there are alone. It gives up, with ok false, where more than
// mostKinds kinds of pods would have to be held against the selector; of the nodes it names mostNodes at most.
func (t *Topology) Selected(namespace string, selector labels.Selector, mostKinds int64, mostNodes int) (s Standing, looks int64, ok bool) {
	s.Lowest = math.MaxInt32
	sp, found := t.spaces[namespace]
	if !found {
		return s, 1, true
	}
	match := []*podMatch{newPodMatch([]string{namespace}, nil, selector)}
	if looks = t.censusOf(sp, match).kinds; looks > mostKinds {
		return s, 1, false
	}
	on, many := map[string]bool{}, false
	for _, k := range t.kindsFor(sp, match) {
		if len(k.slots) == 0 || !match[0].matches(k.class.Namespace, k.class.Labels, nil) {
			continue
		}
		for i := range k.slots {
			spot := &t.spots[k.slots[i].slot]
			if st := &spot.standing[k.slots[i].at]; st.pods <= st.leaving {
				continue
			}
			s.Lowest = min(s.Lowest, k.class.Priority)
			if on[spot.name] = true; len(on) > mostNodes {
				many = true
				break // the others change nothing
			}
		}
	}
	if !many {
		// order does not matter: they are sorted.
		for name := range on {
			s.Nodes = append(s.Nodes, name)
		}
		slices.Sort(s.Nodes)
	}
	return s, 1 + looks, true
}
