package berthv1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

const (
	maxStrategyResources = 32
	maxResourceWeight    = 100
	maxUtilization       = 100
	maxShapeScore        = 10
	maxShapePoints       = maxUtilization + 1
	// maxAddedBytes bounds an added affinity: it is asked of every node for every
	// class of pods.
	maxAddedBytes = 16 << 10
)

// elsewhere is where arguments are in this configuration that kube-scheduler has
// in a profile's pluginConfig.
func elsewhere(plugin string) string {
	switch plugin {
	case PluginPodTopologySpread:
		return "its arguments are in spec.podTopologySpread, for all profiles"
	case PluginInterPodAffinity:
		return "its argument is spec.hardPodAffinityWeight, for all profiles"
	case "DefaultPreemption":
		return "its arguments are in spec.preemption; all nodes are candidates, so there are no minimal numbers of them"
	case PluginNodeResourcesBalancedAllocation:
		return "it has no arguments here: it balances cpu and memory"
	case PluginTaintToleration, PluginImageLocality:
		return "it has no arguments"
	}
	return ""
}

func validatePluginConfig(path *field.Path, configs []PluginConfig) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range configs {
		c, at := &configs[i], path.Index(i)
		args := at.Child("args")
		switch why := elsewhere(c.Name); {
		case seen[c.Name]:
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		case why != "":
			errs = append(errs, field.Invalid(at.Child("name"), c.Name, why))
		case c.Name == PluginNodeResourcesFit:
			errs = append(errs, validateStrategy(args.Child("scoringStrategy"), c.Args.ScoringStrategy)...)
			if len(c.Args.IgnoredResources) > 0 {
				errs = append(errs, field.Forbidden(args.Child("ignoredResources"), "every resource that a pod requests has to be there"))
			}
			if len(c.Args.IgnoredResourceGroups) > 0 {
				errs = append(errs, field.Forbidden(args.Child("ignoredResourceGroups"), "every resource that a pod requests has to be there"))
			}
			if c.Args.AddedAffinity != nil {
				errs = append(errs, field.Forbidden(args.Child("addedAffinity"), "it is an argument of "+PluginNodeAffinity))
			}
		case c.Name == PluginNodeAffinity:
			errs = append(errs, validateAdded(args.Child("addedAffinity"), c.Args.AddedAffinity)...)
			if c.Args.ScoringStrategy != nil || len(c.Args.IgnoredResources)+len(c.Args.IgnoredResourceGroups) > 0 {
				errs = append(errs, field.Forbidden(args, "only addedAffinity is an argument of "+PluginNodeAffinity))
			}
		default:
			errs = append(errs, field.NotSupported(at.Child("name"), c.Name, []string{PluginNodeAffinity, PluginNodeResourcesFit}))
		}
		seen[c.Name] = true
	}
	return errs
}

func validateStrategy(path *field.Path, s *ScoringStrategy) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	switch s.Type {
	case "", LeastAllocated, MostAllocated:
		if s.RequestedToCapacityRatio != nil {
			errs = append(errs, field.Forbidden(path.Child("requestedToCapacityRatio"), "it is of the type "+string(RequestedToCapacityRatioStrategy)))
		}
	case RequestedToCapacityRatioStrategy:
		errs = append(errs, validateShape(path.Child("requestedToCapacityRatio"), s.RequestedToCapacityRatio)...)
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), s.Type,
			[]ScoringStrategyType{LeastAllocated, MostAllocated, RequestedToCapacityRatioStrategy}))
	}
	if len(s.Resources) > maxStrategyResources {
		return append(errs, field.TooMany(path.Child("resources"), len(s.Resources), maxStrategyResources))
	}
	seen := map[string]bool{}
	for i := range s.Resources {
		r, at := &s.Resources[i], path.Child("resources").Index(i)
		for _, msg := range validation.IsQualifiedName(r.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), r.Name, msg))
		}
		switch {
		case r.Name == string(corev1.ResourcePods):
			errs = append(errs, field.Invalid(at.Child("name"), r.Name, "the number of pods is not scored"))
		case seen[r.Name]:
			errs = append(errs, field.Duplicate(at.Child("name"), r.Name))
		}
		seen[r.Name] = true
		if r.Weight < 0 || r.Weight > maxResourceWeight {
			errs = append(errs, field.Invalid(at.Child("weight"), r.Weight, "must be between 1 and 100"))
		}
	}
	return errs
}

func validateShape(path *field.Path, r *RequestedToCapacityRatio) field.ErrorList {
	at := path.Child("shape")
	if r == nil || len(r.Shape) == 0 {
		return field.ErrorList{field.Required(at, "at least one point must be there")}
	}
	if len(r.Shape) > maxShapePoints {
		return field.ErrorList{field.TooMany(at, len(r.Shape), maxShapePoints)}
	}
	var errs field.ErrorList
	for i := range r.Shape {
		p := &r.Shape[i]
		errs = append(errs, validateRange(at.Index(i).Child("utilization"), &p.Utilization, 0, maxUtilization)...)
		errs = append(errs, validateRange(at.Index(i).Child("score"), &p.Score, 0, maxShapeScore)...)
		if i > 0 && p.Utilization <= r.Shape[i-1].Utilization {
			errs = append(errs, field.Invalid(at.Index(i).Child("utilization"), p.Utilization, "must be above that of the point before"))
		}
	}
	return errs
}

func validateAdded(path *field.Path, a *corev1.NodeAffinity) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if size := a.Size(); size > maxAddedBytes {
		return field.ErrorList{field.TooLong(path, "", maxAddedBytes)}
	}
	if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		at := path.Child("requiredDuringSchedulingIgnoredDuringExecution")
		if len(r.NodeSelectorTerms) == 0 {
			errs = append(errs, field.Required(at.Child("nodeSelectorTerms"), "must have at least one node selector term"))
		}
		if _, err := nodeaffinity.NewNodeSelector(r, field.WithPath(at)); err != nil {
			errs = append(errs, field.Invalid(at, "", err.Error()))
		}
	}
	preferred := path.Child("preferredDuringSchedulingIgnoredDuringExecution")
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		weight := a.PreferredDuringSchedulingIgnoredDuringExecution[i].Weight
		errs = append(errs, validateRange(preferred.Index(i).Child("weight"), &weight, 1, maxResourceWeight)...)
	}
	if _, err := nodeaffinity.NewPreferredSchedulingTerms(a.PreferredDuringSchedulingIgnoredDuringExecution, field.WithPath(preferred)); err != nil {
		errs = append(errs, field.Invalid(preferred, "", err.Error()))
	}
	return errs
}
