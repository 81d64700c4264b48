package sched

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// What the arguments of a profile's plugins mean, as plainly as can be.

// enforced says whether a node is one that a pod's profile lets it have.
func (o *oracle) enforced(n *corev1.Node, pod *corev1.Pod) bool {
	a := o.profile(pod).AddedAffinity()
	if a == nil || a.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	return slices.ContainsFunc(a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms,
		func(t corev1.NodeSelectorTerm) bool {
			return plainTerm(&t, n)
		})
}

// addedPreference are the weights of what the profile prefers, and the node has.
func (o *oracle) addedPreference(n *corev1.Node, pod *corev1.Pod) (sum int64) {
	if a := o.profile(pod).AddedAffinity(); a != nil {
		for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			if p := &a.PreferredDuringSchedulingIgnoredDuringExecution[i]; plainTerm(&p.Preference, n) {
				sum += int64(p.Weight)
			}
		}
	}
	return sum
}

func plainTerm(t *corev1.NodeSelectorTerm, n *corev1.Node) bool {
	for _, e := range t.MatchExpressions {
		value, has := n.Labels[e.Key]
		switch {
		case e.Operator == corev1.NodeSelectorOpIn && !(has && slices.Contains(e.Values, value)),
			e.Operator == corev1.NodeSelectorOpNotIn && has && slices.Contains(e.Values, value),
			e.Operator == corev1.NodeSelectorOpExists && !has:
			return false
		}
	}
	return len(t.MatchExpressions) > 0
}

func (o *oracle) profile(pod *corev1.Pod) *berthv1.SchedulerProfile {
	if p := o.config.Profile(pod.Spec.SchedulerName); p != nil {
		return p
	}
	return &berthv1.SchedulerProfile{}
}

// plainFit is NodeResourcesFit's score by a strategy.
func plainFit(s *berthv1.ScoringStrategy, c *model.Class, alloc model.Resources, u *model.Usage) int64 {
	var sum, weights float64
	for _, r := range s.Resources {
		capacity, requested := alloc.Get(r.Name), u.Requested.Get(r.Name)+c.Request.Get(r.Name)
		if r.Name == "cpu" || r.Name == "memory" {
			requested = u.NonZero.Get(r.Name) + c.NonZero.Get(r.Name)
		}
		if capacity == 0 || r.Name != "cpu" && r.Name != "memory" && r.Name != "ephemeral-storage" &&
			c.Request.Get(r.Name) == 0 {
			continue
		}
		score := plainPart(s, requested, capacity)
		if s.Type == berthv1.RequestedToCapacityRatioStrategy && score == 0 {
			continue
		}
		sum, weights = sum+float64(score*r.Weight), weights+float64(r.Weight)
	}
	switch {
	case weights == 0:
		return 0
	case s.Type == berthv1.RequestedToCapacityRatioStrategy:
		return int64(math.Round(sum / weights))
	}
	return int64(sum / weights)
}

func plainPart(s *berthv1.ScoringStrategy, requested, capacity int64) int64 {
	switch s.Type {
	case berthv1.LeastAllocated:
		return max(capacity-requested, 0) * 100 / capacity
	case berthv1.MostAllocated:
		return min(requested, capacity) * 100 / capacity
	}
	p, shape := min(requested*100/capacity, 100), s.RequestedToCapacityRatio.Shape
	if requested > capacity {
		p = 100
	}
	for i := range shape {
		if p <= int64(shape[i].Utilization) {
			if i == 0 {
				return int64(shape[0].Score) * 10
			}
			a, b := shape[i-1], shape[i]
			return int64(a.Score)*10 + int64(b.Score-a.Score)*10*(p-int64(a.Utilization))/int64(b.Utilization-a.Utilization)
		}
	}
	return int64(shape[len(shape)-1].Score) * 10
}

// configuresPlugins gives a profile other arguments.
func (w *world) configuresPlugins(name string) {
	var config []berthv1.PluginConfig
	if a := w.addedAffinity(name); a != nil {
		config = append(config, berthv1.PluginConfig{Name: berthv1.PluginNodeAffinity,
			Args: berthv1.PluginArguments{AddedAffinity: a}})
	}
	if s := w.strategy(name); s != nil {
		config = append(config, berthv1.PluginConfig{Name: berthv1.PluginNodeResourcesFit,
			Args: berthv1.PluginArguments{ScoringStrategy: s}})
	}
	w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
		if p := s.Profile(name); p != nil {
			p.PluginConfig = config
		}
	})
}

func (w *world) addedAffinity(of string) *corev1.NodeAffinity {
	var a corev1.NodeAffinity
	term := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op,
			Values: values}}}
	}
	in, notIn, exists := corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists
	if terms, some := map[string][]corev1.NodeSelectorTerm{
		"zone a": {term("zone", in, "a")}, "not zone a": {term("zone", notIn, "a")}, "host": {term(hostKey, exists)},
		"zone b or rack": {term(zoneKey, in, "b", "c"), term("rack", exists)}, "nowhere": {term("nowhere", exists)},
	}[w.pick(of+" requires", "", "", "", "zone a", "not zone a", "host", "zone b or rack", "nowhere")]; some {
		a.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: terms}
	}
	if key := w.pick(of+" prefers", "", "", "zone", "rack"); key != "" {
		a.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{
			{Weight: 2, Preference: term(key, exists)}, {Weight: 5, Preference: term(key, in, "b", "2")}}
	}
	if a.RequiredDuringSchedulingIgnoredDuringExecution == nil &&
		a.PreferredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return &a
}

func (w *world) strategy(of string) *berthv1.ScoringStrategy {
	kind := w.pick(of+" scores", "", "", string(berthv1.LeastAllocated), string(berthv1.MostAllocated),
		string(berthv1.RequestedToCapacityRatioStrategy))
	if kind == "" {
		return nil
	}
	return drawStrategy(w.t, berthv1.ScoringStrategyType(kind), "cpu", "memory", "a.io/gpu", "pods.io/none")
}

// drawStrategy draws a strategy over some of these resources.
func drawStrategy(t *rapid.T, kind berthv1.ScoringStrategyType, names ...string) *berthv1.ScoringStrategy {
	s := &berthv1.ScoringStrategy{Type: kind}
	for _, name := range names {
		if w := rapid.Int64Range(0, 5).Draw(t, "weight of "+name); w > 0 {
			s.Resources = append(s.Resources, berthv1.ResourceWeight{Name: name, Weight: w})
		}
	}
	if len(s.Resources) == 0 {
		s.Resources = append(s.Resources, berthv1.ResourceWeight{Name: names[len(names)-1], Weight: 3})
	}
	if kind == berthv1.RequestedToCapacityRatioStrategy {
		s.RequestedToCapacityRatio = &berthv1.RequestedToCapacityRatio{}
		for u := rapid.Int32Range(0, 60).Draw(t, "first"); u <= 100; u += rapid.Int32Range(1, 60).Draw(t, "step") {
			s.RequestedToCapacityRatio.Shape = append(s.RequestedToCapacityRatio.Shape,
				berthv1.UtilizationShapePoint{Utilization: u, Score: rapid.Int32Range(0, 10).Draw(t, "score")})
		}
	}
	return s
}
