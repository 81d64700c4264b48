package queue

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// Victims are pods on nodes that budgets protected and may let go now. Who can
// gain by that is of higher priority, and has room on one of their nodes were
// they gone. nil are whomever, as before there was this type.
type Victims struct {
	// Lowest is the lowest of their priorities, math.MaxInt32 where they are none.
	Lowest int32 `msgpack:"lowest"`
	// Nodes are those that they are on, sorted; none where they may be on any.
	Nodes []string `msgpack:"nodes,omitempty"`
}

// MaxVictimNodes bounds the nodes that are named: each is asked about each group.
const MaxVictimNodes = 16

// NoVictims are none, and AnyVictims whomever.
func NoVictims() *Victims { return &Victims{Lowest: math.MaxInt32} }

// AnyVictims is the opposite of NoVictims.
func AnyVictims() *Victims { return &Victims{Lowest: math.MinInt32} }

// nobody says whether they are none.
func (v *Victims) nobody() bool { return v != nil && v.Lowest == math.MaxInt32 }

// And are these and others together. Neither is changed.
func (v *Victims) And(o *Victims) *Victims {
	switch {
	case v == nil, o == nil:
		return nil
	case o.nobody():
		return v
	case v.nobody():
		return o
	}
	both := &Victims{Lowest: min(v.Lowest, o.Lowest)}
	if len(v.Nodes) == 0 || len(o.Nodes) == 0 {
		return both
	}
	nodes := slices.Concat(v.Nodes, o.Nodes)
	slices.Sort(nodes)
	if nodes = slices.Compact(nodes); len(nodes) <= MaxVictimNodes {
		both.Nodes = nodes
	}
	return both
}

// bounded are these with as many nodes as a mark may name.
func (v *Victims) bounded() *Victims {
	n := 0
	for _, name := range v.Nodes {
		n += len(name) + 1
	}
	if n > maxMarkBytes {
		return &Victims{Lowest: v.Lowest}
	}
	return v
}

// key tells apart what two of them say.
func (v *Victims) key() string {
	return strconv.Itoa(int(v.Lowest)) + "\x00" + strings.Join(v.Nodes, "\x00")
}
