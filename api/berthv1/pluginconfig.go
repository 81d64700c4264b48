package berthv1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PluginConfig are the arguments of one plugin of a profile, as in
// kube-scheduler's configuration.
type PluginConfig struct {
	// Name is NodeResourcesFit or NodeAffinity: the others have no arguments
	// here, or have them in other places of this configuration.
	Name string `json:"name"`
	// +optional
	Args PluginArguments `json:"args,omitempty"`
}

// PluginArguments are the arguments of the plugins, by kube-scheduler's names.
type PluginArguments struct {
	// ScoringStrategy, of NodeResourcesFit, says how much room a good node has.
	// +optional
	ScoringStrategy *ScoringStrategy `json:"scoringStrategy,omitempty"`
	// AddedAffinity, of NodeAffinity, is asked of the nodes of all pods of the
	// profile, beside what the pods themselves ask.
	// +optional
	AddedAffinity *corev1.NodeAffinity `json:"addedAffinity,omitempty"`
	// IgnoredResources and IgnoredResourceGroups, of NodeResourcesFit, are
	// kube-scheduler's; they are refused, because no request is ignored here.
	// +optional
	// +listType=atomic
	IgnoredResources []string `json:"ignoredResources,omitempty"`
	// +optional
	// +listType=atomic
	IgnoredResourceGroups []string `json:"ignoredResourceGroups,omitempty"`
}

// ScoringStrategy says how NodeResourcesFit scores.
type ScoringStrategy struct {
	// Type is LeastAllocated (the default), MostAllocated or
	// RequestedToCapacityRatio.
	// +optional
	Type ScoringStrategyType `json:"type,omitempty"`
	// Resources are those that count, with their weights. Default: cpu and
	// memory, each 1.
	// +optional
	// +listType=map
	// +listMapKey=name
	Resources []ResourceWeight `json:"resources,omitempty"`
	// RequestedToCapacityRatio is of the strategy of this name, which needs it.
	// +optional
	RequestedToCapacityRatio *RequestedToCapacityRatio `json:"requestedToCapacityRatio,omitempty"`
}

// ScoringStrategyType is a way to score by what is requested of a node.
type ScoringStrategyType string

const (
	// LeastAllocated: the more is left the better.
	LeastAllocated ScoringStrategyType = "LeastAllocated"
	// MostAllocated: the less is left the better.
	MostAllocated ScoringStrategyType = "MostAllocated"
	// RequestedToCapacityRatioStrategy: as the shape says.
	RequestedToCapacityRatioStrategy ScoringStrategyType = "RequestedToCapacityRatio"
)

// ResourceWeight is what a resource counts.
type ResourceWeight struct {
	// Name of the resource: cpu, memory, ephemeral-storage or an extended one.
	Name string `json:"name"`
	// Weight is 1 to 100. Default 1.
	// +optional
	Weight int64 `json:"weight,omitempty"`
}

// RequestedToCapacityRatio scores by how much of a node is requested.
type RequestedToCapacityRatio struct {
	// Shape are points of a function, by rising utilization; between them it is
	// straight, and beyond the first and the last as it is there.
	// +listType=atomic
	Shape []UtilizationShapePoint `json:"shape"`
}

// UtilizationShapePoint is the score of a utilization.
type UtilizationShapePoint struct {
	// Utilization is 0 to 100, in hundredths of what the node has.
	Utilization int32 `json:"utilization"`
	// Score is 0 to 10.
	Score int32 `json:"score"`
}

// arguments are those of a plugin, or nil.
func (p *SchedulerProfile) arguments(plugin string) *PluginArguments {
	if i := slices.IndexFunc(p.PluginConfig, func(c PluginConfig) bool { return c.Name == plugin }); i >= 0 {
		return &p.PluginConfig[i].Args
	}
	return nil
}

// ScoringStrategy is NodeResourcesFit's, defaults filled in.
func (p *SchedulerProfile) ScoringStrategy() ScoringStrategy {
	var s ScoringStrategy
	if a := p.arguments(PluginNodeResourcesFit); a != nil && a.ScoringStrategy != nil {
		s = *a.ScoringStrategy
	}
	if s.Type == "" {
		s.Type = LeastAllocated
	}
	if len(s.Resources) == 0 {
		s.Resources = []ResourceWeight{{Name: string(corev1.ResourceCPU)}, {Name: string(corev1.ResourceMemory)}}
	}
	s.Resources = slices.Clone(s.Resources)
	for i := range s.Resources {
		if s.Resources[i].Weight == 0 {
			s.Resources[i].Weight = 1
		}
	}
	return s
}

// AddedAffinity is what NodeAffinity asks of the nodes of all pods of the
// profile; nil: nothing.
func (p *SchedulerProfile) AddedAffinity() *corev1.NodeAffinity {
	if a := p.arguments(PluginNodeAffinity); a != nil {
		return a.AddedAffinity
	}
	return nil
}
