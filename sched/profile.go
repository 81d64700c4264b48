package sched

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// profile is how the nodes are scored for the pods of one scheduler name: kube-scheduler's plugins, each with its
// weight; 0: it does not count. What a pod requires holds in every profile.
type profile struct {
	fit      int64 // NodeResourcesFit: leastAllocated
	balanced int64 // NodeResourcesBalancedAllocation
	affinity int64 // NodeAffinity
	taints   int64 // TaintToleration
	spread   int64 // PodTopologySpread
	interPod int64 // InterPodAffinity
	images   int64 // ImageLocality

	strategy *strategy // NodeResourcesFit's; nil: LeastAllocated of cpu and memory, each counting the same

	// step divides every score that depends on a node's usage: it makes them small numbers, by which nodes are sorted.
	step int64
}

func compileProfile(p *berthv1.SchedulerProfile) *profile {
	weight := func(plugin string) int64 { return int64(p.Weight(plugin)) }
	out := &profile{
		fit: weight(berthv1.PluginNodeResourcesFit), balanced: weight(berthv1.PluginNodeResourcesBalancedAllocation),
		affinity: weight(berthv1.PluginNodeAffinity), taints: weight(berthv1.PluginTaintToleration),
		spread: weight(berthv1.PluginPodTopologySpread), interPod: weight(berthv1.PluginInterPodAffinity),
		images: weight(berthv1.PluginImageLocality),
	}
	out.strategy = compileStrategy(p.ScoringStrategy())
	a, b := out.fit, out.balanced
	for b != 0 {
		a, b = b, a%b
	}
	out.step = max(a, 1)
	return out
}

// configure takes in the configuration. What was derived from another one is dropped.
func (s *Scheduler) configure(c *berthv1.SchedulerConfiguration) {
	if s.config == c {
		return
	}
	s.config = c
	s.profiles = map[string]*profile{}
	for i := range c.Spec.Profiles {
		p := &c.Spec.Profiles[i]
		s.profiles[p.SchedulerName] = compileProfile(p)
	}
	s.dropAll()
}

// profileOf is the profile that a class's pods name; kube-scheduler's weights where there is none any more.
func (s *Scheduler) profileOf(c *model.Class) *profile {
	name := c.SchedulerName
	if name == "" {
		name = corev1.DefaultSchedulerName
	}
	p, ok := s.profiles[name]
	if !ok {
		p = compileProfile(&berthv1.SchedulerProfile{})
		s.profiles[name] = p
	}
	return p
}
