package queue

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"strings"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// Group is a group of waiting pods. What pods that wait together have in common
// is that whatever helps one of a group helps each.
type Group struct {
	Class *model.Class // any class of the group
	Key   string
	// Rules is the class by which the group's pods are judged, where that is
	// known; nil in an index.
	Rules *model.Class

	pods int // waiting pods of the group, in an index
}

// Group is the key of the group that an entry waits in. A node alone sees no
// more of a pod than its shape. Pods with rules about others have their rules
// in common as well, and those that others keep away, or default constraints
// spread, everything. Who is kept away by others is known when it was tried: it
// changes its group then, and passes its turn on.
//
// Pods that claim volumes have their claims in common, too: what helps one may be
// far from the volumes of another.
func (e *Entry) Group() string {
	if len(e.Claims) == 0 {
		return e.groupBut()
	}
	sum := sha256.New()
	sum.Write([]byte(e.Namespace))
	for _, claim := range e.Claims {
		sum.Write([]byte("/" + claim)) // no name has a slash
	}
	return string(sum.Sum([]byte(claimsPrefix))[:claimsLen]) + e.groupBut()
}

// Groups of pods with claims begin so, and with so many bytes in all that say which.
const claimsPrefix = "claims\x00"
const claimsLen = len(claimsPrefix) + 16

// groupBut is the group but for the claims.
func (e *Entry) groupBut() string {
	c := e.class
	switch {
	case e.ByDefaults:
		return c.Signature + "\x00" + e.SpreadOwner + "\x00" // they have their constraints in common
	case e.KeptAway:
		return c.Signature
	case c.HasHardTopology():
		return c.Rules()
	}
	return c.Shape
}

// OfClaims says whether the group's pods claim volumes, the same ones.
func (g *Group) OfClaims() bool { return strings.HasPrefix(g.Key, claimsPrefix) }

// but is the group's key but for the claims.
func (g *Group) but() string {
	if g.OfClaims() {
		return g.Key[claimsLen:]
	}
	return g.Key
}

// Owner says whether the group is one of those that default constraints spread,
// and which workload its pods are of ("" for none).
func (g *Group) Owner() (owner string, byDefaults bool) {
	rest, ok := strings.CutPrefix(g.but(), g.Class.Signature)
	if !ok || rest == "" {
		return "", false
	}
	return strings.Trim(rest, "\x00"), true
}

// Alike: the group's pods differ in nothing, so that what others keep one of
// them away by keeps away all. Of another group any class may stand in an index,
// and nothing may follow from which.
func (g *Group) Alike() bool {
	_, byDefaults := g.Owner()
	return byDefaults || g.but() == g.Class.Signature
}

// waitKey sorts the waiting pods by group, in each those that wait for a
// change before those that wait for their victims, and then in queue order.
func waitKey(e *Entry, orderKey string) string { return waitPrefix(e.Group(), e.State) + orderKey }

func waitPrefix(group string, state berthv1.QueueState) string {
	if state == berthv1.QueueNominated {
		return group + "n"
	}
	return group + "a"
}

// First is the first of a group that waits for a change, if there is one.
func (x *Index) First(group string) (*Entry, bool) {
	return x.firstIn(waitPrefix(group, berthv1.QueueUnschedulable))
}

func (x *Index) firstIn(prefix string) (*Entry, bool) {
	k, e, ok := x.now.waiting.First(prefix)
	return e, ok && strings.HasPrefix(k, prefix)
}

// Any is any entry of a group, if there is one.
func (x *Index) Any(group string) (*Entry, bool) {
	e, ok := x.First(group)
	if !ok {
		e, ok = x.firstIn(waitPrefix(group, berthv1.QueueNominated))
	}
	return e, ok
}

// Waiting are the first of a group that are in a state, at most so many, but one
// at least.
func (x *Index) Waiting(group string, state berthv1.QueueState, most int) []*Entry {
	var entries []*Entry
	x.now.waiting.Scan(waitPrefix(group, state), func(_ string, e *Entry) bool {
		entries = append(entries, e)
		return len(entries) < most
	})
	return entries
}

// Nominees are all of a group that wait for their victims.
func (x *Index) Nominees(group string) []*Entry {
	return x.Waiting(group, berthv1.QueueNominated, math.MaxInt)
}

// What keys of groups begin with: by which amount they are sorted.
const byCPU, byMemory = 'c', 'm'

// levelLen is how much of a key of groups says the amount's kind and the
// priority.
const levelLen = 1 + 4

// groupKey sorts by priority and then by a requested amount, so that a node with
// so much to give finds just those who ask for no more. Every group stands
// there once for each amount.
func groupKey(by byte, c *model.Class, group string) string {
	b := make([]byte, 0, levelLen+8+len(group))
	b = appendPriorityDescending(append(b, by), c.Priority)
	amount := c.Request.MilliCPU
	if by == byMemory {
		amount = c.Request.MemoryBytes
	}
	b = binary.BigEndian.AppendUint64(b, uint64(amount))
	return string(append(b, group...))
}

// amountIn is the amount by which a key of groups is sorted.
func amountIn(key string) int64 {
	return int64(min(binary.BigEndian.Uint64([]byte(key[levelLen:levelLen+8])), math.MaxInt64))
}

// watch counts a waiting pod for its group (by 1) or takes it out again (by -1).
func (x *Index) watch(e *Entry, by int) {
	group := e.Group()
	count := func(index *store.Tree[Group], k string) {
		g, _ := index.Get(k)
		g.Class, g.Key = e.class, group
		if g.pods += by; g.pods <= 0 {
			index.Delete(k)
		} else {
			index.Set(k, g)
		}
	}
	count(&x.groups, groupKey(byCPU, e.class, group))
	count(&x.groups, groupKey(byMemory, e.class, group))
	for _, k := range placeKeys(e, group) {
		count(&x.ruledGroups, k)
	}
	for _, claim := range e.Claims {
		count(&x.claims, claimKey(e.Namespace, claim)+group)
	}
}

// HasGroups says whether anybody waits.
func (x *Index) HasGroups() bool { return x.groups.Len() > 0 }

// Candidates calls f for every group, from a key on ("" for the first), that
// asks for no more than a node has free for its priority, and returns where to
// go on if the time that an entry has was over; "" if all were asked. For each
// priority it walks those with little CPU and those with little memory in
// turns, and takes whichever are fewer.
func (x *Index) Candidates(
	work *Work, from string, free func(priority int32) model.Resources, f func(g Group),
) (next string) {
	ask := func(by byte, found []Group) (next string) {
		for i := range found {
			if i > 0 && work.Over() {
				return groupKey(by, found[i].Class, found[i].Key)
			}
			f(found[i])
			work.Charge(costAsk)
		}
		return ""
	}
	level := from
	switch {
	case from == "":
		level = string(rune(byCPU))
	case from[0] == byMemory: // in the middle of a priority
		prefix := from[:levelLen]
		if key, g, ok := x.groups.First(from); ok && strings.HasPrefix(key, prefix) {
			if has := free(g.Class.Priority); has.Pods >= 1 {
				found, _ := x.thatFit(prefix, from, has.MemoryBytes, has, math.MaxInt)
				if next = ask(byMemory, found); next != "" {
					return next
				}
			}
		}
		level = store.After(string(rune(byCPU)) + prefix[1:])
	}
	for {
		key, g, ok := x.groups.First(level)
		if !ok || key[0] != byCPU {
			return ""
		}
		if work.Over() {
			return key
		}
		work.Charge(costLook)
		prefix := key[:levelLen]
		has := free(g.Class.Priority)
		begin := prefix
		if level > prefix {
			begin = level // in the middle of a priority
		}
		level = store.After(prefix)
		if has.Pods < 1 {
			continue
		}
		if next = ask(x.fewest(prefix, begin, has)); next != "" {
			return next
		}
	}
}

// fewest are the groups of a priority that ask for no more CPU and memory than
// is free; by says in which order they stand, that of CPU from begin on. It costs
// as much as there are groups that ask for little of the scarcer of the two.
func (x *Index) fewest(prefix, begin string, free model.Resources) (by byte, found []Group) {
	memory := string(rune(byMemory)) + prefix[1:]
	for most := firstLook; ; most *= 2 {
		found, all := x.thatFit(prefix, begin, free.MilliCPU, free, most)
		if all {
			return byCPU, found
		}
		if begin == prefix { // else what comes before was asked already
			if found, all = x.thatFit(memory, memory, free.MemoryBytes, free, most); all {
				return byMemory, found
			}
		}
	}
}

// firstLook is how many groups are looked at first in either order.
const firstLook = 64

// thatFit are, of at most so many groups whose amount is not above a bound,
// those that ask for no more than is free, and whether there are no others.
func (x *Index) thatFit(prefix, begin string, bound int64, free model.Resources, most int) (found []Group, all bool) {
	all = true
	x.groups.ScanFrom(prefix, begin, func(key string, g Group) bool {
		if amountIn(key) > bound {
			return false
		}
		if most--; most < 0 {
			all = false
			return false
		}
		if g.Class.Request.MilliCPU <= free.MilliCPU && g.Class.Request.MemoryBytes <= free.MemoryBytes {
			found = append(found, g)
		}
		return true
	})
	return found, all
}
