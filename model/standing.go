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

// placesPerNode is how many places of kinds on nodes are looked at for each node that may be named.
const placesPerNode = 64

// Selected says where pods of a namespace are that a selector selects, those left out that are leaving. looks is what it
// takes, in kinds that are held against the selector, and follows from the pods that there are alone. It gives up, with ok false,
// where these would be more than mostKinds; of the nodes it names mostNodes at most. Where the kinds are in very many places these
// are not looked at: then no nodes are named, and who is leaving counts for Lowest, too.
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
	var kinds []*kind
	places, lowest := 0, s.Lowest
	for _, k := range t.kindsFor(sp, match) {
		if len(k.slots) > 0 && match[0].matches(k.class.Namespace, k.class.Labels, nil) {
			kinds, places, lowest = append(kinds, k), places+len(k.slots), min(lowest, k.class.Priority)
		}
	}
	if places > placesPerNode*(1+mostNodes) {
		return Standing{Lowest: lowest}, 1 + looks, true
	}
	s.Lowest, s.Nodes = t.staying(kinds, mostNodes)
	return s, 1 + looks, true
}

// staying are the nodes with pods of kinds that are not leaving, sorted, nil where they are more than so many; and the lowest
// priority of these pods.
func (t *Topology) staying(kinds []*kind, mostNodes int) (lowest int32, nodes []string) {
	lowest = math.MaxInt32
	on := map[string]bool{}
	for _, k := range kinds {
		for i := range k.slots {
			spot := &t.spots[k.slots[i].slot]
			if st := &spot.standing[k.slots[i].at]; st.pods > st.leaving {
				lowest, on[spot.name] = min(lowest, k.class.Priority), true
			}
		}
	}
	if len(on) > mostNodes {
		return lowest, nil
	}
	// order does not matter: they are sorted.
	for name := range on {
		nodes = append(nodes, name)
	}
	slices.Sort(nodes)
	return lowest, nodes
}
