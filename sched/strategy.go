package sched

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// strategy is how NodeResourcesFit scores where a profile says it: kube-scheduler's MostAllocated,
// RequestedToCapacityRatio, and LeastAllocated with resources of the profile's own.
type strategy struct {
	kind      berthv1.ScoringStrategyType
	resources []berthv1.ResourceWeight
	shape     []berthv1.UtilizationShapePoint
}

// compileStrategy returns nil for the default one.
func compileStrategy(s berthv1.ScoringStrategy) *strategy {
	if s.Type == berthv1.LeastAllocated &&
		slices.Equal(s.Resources, (&berthv1.SchedulerProfile{}).ScoringStrategy().Resources) {
		return nil
	}
	out := &strategy{kind: s.Type, resources: s.Resources}
	if s.RequestedToCapacityRatio != nil {
		out.shape = s.RequestedToCapacityRatio.Shape
	}
	return out
}

// score is the weighted mean over the resources that the node has and, of extended ones, that the pod asks for. Pods
// that request no cpu or memory count with kube-scheduler's defaults.
func (s *strategy) score(c *model.Class, alloc *model.Resources, u *model.Usage) int64 {
	var sum, weights int64
	for i := range s.resources {
		r := &s.resources[i]
		capacity := alloc.Get(r.Name)
		var requested int64
		switch corev1.ResourceName(r.Name) {
		case corev1.ResourceCPU, corev1.ResourceMemory:
			requested = u.NonZero.Get(r.Name) + c.NonZero.Get(r.Name)
		case corev1.ResourceEphemeralStorage:
			requested = u.Requested.Get(r.Name) + c.Request.Get(r.Name)
		default:
			want := c.Request.Get(r.Name)
			if want == 0 {
				continue
			}
			requested = u.Requested.Get(r.Name) + want
		}
		if capacity <= 0 {
			continue
		}
		part := s.part(requested, capacity)
		if s.kind == berthv1.RequestedToCapacityRatioStrategy && part == 0 {
			continue // as in kube-scheduler, what scores nothing does not weigh either
		}
		sum += part * r.Weight
		weights += r.Weight
	}
	switch {
	case weights == 0:
		return 0
	case s.kind == berthv1.RequestedToCapacityRatioStrategy: // which rounds, where the others cut off
		return (2*sum + weights) / (2 * weights)
	}
	return sum / weights
}

// part is the score of one resource.
func (s *strategy) part(requested, capacity int64) int64 {
	switch s.kind {
	case berthv1.MostAllocated:
		return model.MulDiv(min(requested, capacity), maxNodeScore, capacity)
	case berthv1.RequestedToCapacityRatioStrategy:
		return s.shaped(min(model.MulDiv(requested, 100, capacity), 100))
	}
	if requested > capacity {
		return 0
	}
	return model.MulDiv(capacity-requested, maxNodeScore, capacity)
}

// shaped is the shape's score of a utilization in hundredths.
func (s *strategy) shaped(utilization int64) int64 {
	const unit = maxNodeScore / 10 // a shape's scores go up to 10
	for i := range s.shape {
		at, score := int64(s.shape[i].Utilization), int64(s.shape[i].Score)*unit
		if utilization > at {
			continue
		}
		if i == 0 {
			return score
		}
		before, from := int64(s.shape[i-1].Utilization), int64(s.shape[i-1].Score)*unit
		return from + (score-from)*(utilization-before)/(at-before)
	}
	return int64(s.shape[len(s.shape)-1].Score) * unit
}
