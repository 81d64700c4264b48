package sched

import (
	"cmp"
	"slices"
)

// Ties are broken by position on a ring, the same for placement and for preemption: nodes stand on it by the hash of
// their name, a pod by the hash of its UID, and among the nodes that are equally good the first at or after the pod is
// taken. Two schedulers that see the same state choose the same node, different pods spread over the tied nodes, and
// finding the node needs no walk over the ties.

// hash64 is FNV-1a with a final mix, so that names that differ only at their end lie far apart.
func hash64(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h ^= uint64(s[i])
		h *= 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// ring holds every node slot in the order of the nodes' hashes.
type ring struct {
	slots  []int32 // by rank
	hashes []uint64
	epoch  uint64 // counts rebuilds: ranks of different epochs do not compare
	stale  bool
}

// rebuild gives every slot its rank.
func (r *ring) rebuild(nodes []node) {
	r.slots = r.slots[:0]
	for i := range nodes {
		r.slots = append(r.slots, int32(i))
	}
	slices.SortFunc(r.slots, func(a, b int32) int {
		if c := cmp.Compare(nodes[a].hash, nodes[b].hash); c != 0 {
			return c
		}
		return cmp.Compare(nodes[a].name, nodes[b].name)
	})
	r.hashes = r.hashes[:0]
	for rank, slot := range r.slots {
		nodes[slot].rank = int32(rank)
		r.hashes = append(r.hashes, nodes[slot].hash)
	}
	r.epoch++
	r.stale = false
}

// start is the rank at which a pod's search for its node begins.
func (r *ring) start(uidHash uint64) int32 {
	i, _ := slices.BinarySearch(r.hashes, uidHash)
	if i == len(r.hashes) {
		return 0
	}
	return int32(i)
}

// distance is how far a rank lies after start on the ring.
func (r *ring) distance(start, rank int32) int32 {
	if rank >= start {
		return rank - start
	}
	return rank - start + int32(len(r.slots))
}
