package sched

import "github.com/berth-dev/berth/model"

// Scores and their normalisation are kube-scheduler's.
const maxNodeScore int64 = 100

// usageScore is the part of a node's score that depends on what runs there, divided by step.
func (p *profile) usageScore(c *model.Class, alloc *model.Resources, u *model.Usage) int32 {
	var s int64
	if p.fit != 0 {
		if p.strategy != nil {
			s += p.fit * p.strategy.score(c, alloc, u)
		} else {
			s += p.fit * leastAllocated(c, alloc, u)
		}
	}
	if p.balanced != 0 {
		s += p.balanced * balanced(c, alloc, u)
	}
	return int32(s / p.step)
}

// leastAllocated favours nodes with much left: the mean over cpu and memory of the free part after placing the pod, in
// hundredths. Pods that state no request count with kube-scheduler's default.
func leastAllocated(c *model.Class, alloc *model.Resources, u *model.Usage) int64 {
	var sum, weights int64
	add := func(capacity, requested int64) {
		if capacity == 0 {
			return
		}
		weights++
		if requested <= capacity {
			sum += model.MulDiv(capacity-requested, maxNodeScore, capacity)
		}
	}
	add(alloc.MilliCPU, u.NonZero.MilliCPU+c.NonZero.MilliCPU)
	add(alloc.MemoryBytes, u.NonZero.MemoryBytes+c.NonZero.MemoryBytes)
	if weights == 0 {
		return 0
	}
	return sum / weights
}

// balanced favours nodes on which the pod makes the used fractions of cpu and memory more alike: 75 leaves them as they
// are, 100 is the most that can be gained. A pod that asks for neither says nothing about balance.
func balanced(c *model.Class, alloc *model.Resources, u *model.Usage) int64 {
	if c.Request.MilliCPU == 0 && c.Request.MemoryBytes == 0 {
		return 0
	}
	with := balance(u.Requested.MilliCPU+c.Request.MilliCPU, u.Requested.MemoryBytes+c.Request.MemoryBytes, alloc)
	without := balance(u.Requested.MilliCPU, u.Requested.MemoryBytes, alloc)
	return maxNodeScore/2 + (maxNodeScore/2+with-without)/2
}

// balance is 100 where cpu and memory are used to the same fraction, and less by their standard deviation, which is
// half of their difference: 100·(1−|x−y|/2), rounded down.
func balance(milliCPU, memoryBytes int64, alloc *model.Resources) int64 {
	if alloc.MilliCPU == 0 || alloc.MemoryBytes == 0 {
		return maxNodeScore // one fraction or none deviates from nothing
	}
	difference := usedPart(milliCPU, alloc.MilliCPU) - usedPart(memoryBytes, alloc.MemoryBytes)
	if difference < 0 {
		difference = -difference
	}
	// Each part is too small by less than one unit: what is more than a whole score by as little as that is one.
	const slack = maxNodeScore
	return maxNodeScore - (maxNodeScore/2*difference+wholePart-slack)/wholePart
}

// wholePart is everything in the unit of usedPart.
const wholePart int64 = 1 << 52

// usedPart is how much of a capacity is used, all of it at most.
func usedPart(used, capacity int64) int64 {
	return min(model.MulDiv(used, wholePart, capacity), wholePart)
}

// share is a raw score in hundredths of the largest among the nodes that fit.
func share(raw, most int64) int64 {
	if most == 0 {
		return 0
	}
	return model.MulDiv(maxNodeScore, raw, most)
}
