package berthv1

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validation of the parts of SchedulerConfigurationSpec. Absent values pass:
// they will have their defaults.

func validatePreemption(path *field.Path, p *PreemptionConfiguration) field.ErrorList {
	var errs field.ErrorList
	policy := func(name string, p BudgetPolicy) {
		if p != "" && p != BudgetsBestEffort && p != BudgetsStrict {
			errs = append(errs, field.NotSupported(path.Child(name), p, []BudgetPolicy{BudgetsBestEffort, BudgetsStrict}))
		}
	}
	policy("budgets", p.Budgets)
	policy("systemClassBudgets", p.SystemClassBudgets)
	errs = append(errs, validateRange(path.Child("maxOtherNodes"), p.MaxOtherNodes, 0, maxOtherNodes)...)
	return append(errs, validateRange(path.Child("searchLimit"), p.SearchLimit, 0, maxSearchLimit)...)
}

func validateProfiles(path *field.Path, profiles []SchedulerProfile) field.ErrorList {
	var errs field.ErrorList
	if len(profiles) > maxProfiles {
		return field.ErrorList{field.TooMany(path, len(profiles), maxProfiles)}
	}
	seen := map[string]bool{}
	for i := range profiles {
		p, name := &profiles[i], path.Index(i).Child("schedulerName")
		switch {
		case p.SchedulerName == "":
			errs = append(errs, field.Required(name, "it is what pods name in spec.schedulerName"))
		case seen[p.SchedulerName]:
			errs = append(errs, field.Duplicate(name, p.SchedulerName))
		case len(p.SchedulerName) > validation.DNS1123SubdomainMaxLength: // beyond that pods may name what they like
			errs = append(errs, field.TooLong(name, p.SchedulerName, validation.DNS1123SubdomainMaxLength))
		}
		seen[p.SchedulerName] = true
		errs = append(errs, validatePlugins(path.Index(i).Child("plugins"), &p.Plugins)...)
		errs = append(errs, validatePluginConfig(path.Index(i).Child("pluginConfig"), p.PluginConfig)...)
	}
	return errs
}

func validatePlugins(path *field.Path, p *ProfilePlugins) field.ErrorList {
	errs := validateNames(path.Child("disabled"), p.Disabled)
	known := func(path *field.Path, name string) bool {
		if _, ok := DefaultWeight(name); !ok && name != "" {
			errs = append(errs, field.NotSupported(path, name, Plugins()))
			return false
		}
		return true
	}
	for i, name := range p.Disabled {
		known(path.Child("disabled").Index(i), name)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Weights)) {
		at := path.Child("weights").Key(name)
		if weight := p.Weights[name]; known(at, name) {
			errs = append(errs, validateRange(at, &weight, 0, maxWeight)...)
			if slices.Contains(p.Disabled, name) {
				errs = append(errs, field.Invalid(at, weight, "the plugin is disabled"))
			}
		}
	}
	return errs
}

// validateSpread holds the rules that kube-scheduler has for the arguments of
// PodTopologySpread (TS12–TS14), and the ones that a pod's own constraints obey.
func validateSpread(path *field.Path, s *PodTopologySpreadConfiguration) field.ErrorList {
	var errs field.ErrorList
	switch s.DefaultingType {
	case "", SpreadSystem:
		if len(s.DefaultConstraints) > 0 {
			errs = append(errs, field.Invalid(path.Child("defaultingType"), SpreadSystem,
				"the system's constraints are used; with defaultConstraints it has to be List"))
		}
	case SpreadList:
	default:
		errs = append(errs, field.NotSupported(path.Child("defaultingType"), s.DefaultingType, []SpreadDefaulting{SpreadList, SpreadSystem}))
	}
	path = path.Child("defaultConstraints")
	if len(s.DefaultConstraints) > maxDefaultConstraints {
		return append(errs, field.TooMany(path, len(s.DefaultConstraints), maxDefaultConstraints))
	}
	for i := range s.DefaultConstraints {
		c := &s.DefaultConstraints[i]
		errs = append(errs, validateConstraint(path.Index(i), c)...)
		if slices.ContainsFunc(s.DefaultConstraints[:i], func(o corev1.TopologySpreadConstraint) bool {
			return o.TopologyKey == c.TopologyKey && o.WhenUnsatisfiable == c.WhenUnsatisfiable
		}) {
			errs = append(errs, field.Duplicate(path.Index(i), fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable)))
		}
	}
	return errs
}

func validateConstraint(path *field.Path, c *corev1.TopologySpreadConstraint) field.ErrorList {
	var errs field.ErrorList
	if c.MaxSkew <= 0 {
		errs = append(errs, field.Invalid(path.Child("maxSkew"), c.MaxSkew, "must be greater than zero"))
	}
	if c.TopologyKey == "" {
		errs = append(errs, field.Required(path.Child("topologyKey"), "can not be empty"))
	} else {
		for _, problem := range validation.IsQualifiedName(c.TopologyKey) {
			errs = append(errs, field.Invalid(path.Child("topologyKey"), c.TopologyKey, problem))
		}
	}
	switch c.WhenUnsatisfiable {
	case corev1.DoNotSchedule, corev1.ScheduleAnyway:
	default:
		errs = append(errs, field.NotSupported(path.Child("whenUnsatisfiable"), c.WhenUnsatisfiable,
			[]corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}))
	}
	if c.LabelSelector != nil { // TS12
		errs = append(errs, field.Forbidden(path.Child("labelSelector"), "a default constraint has none: it is deduced for each pod"))
	}
	if len(c.MatchLabelKeys) > 0 {
		errs = append(errs, field.Forbidden(path.Child("matchLabelKeys"), "a default constraint has none: its selector is deduced for each pod"))
	}
	if c.MinDomains != nil {
		switch path := path.Child("minDomains"); {
		case *c.MinDomains <= 0:
			errs = append(errs, field.Invalid(path, *c.MinDomains, "must be greater than zero"))
		case c.WhenUnsatisfiable != corev1.DoNotSchedule: // TS3
			errs = append(errs, field.Invalid(path, *c.MinDomains, "can only be used with whenUnsatisfiable: DoNotSchedule"))
		}
	}
	return append(append(errs, validateInclusion(path.Child("nodeAffinityPolicy"), c.NodeAffinityPolicy)...),
		validateInclusion(path.Child("nodeTaintsPolicy"), c.NodeTaintsPolicy)...)
}

func validateInclusion(path *field.Path, p *corev1.NodeInclusionPolicy) field.ErrorList {
	if p == nil || *p == corev1.NodeInclusionPolicyHonor || *p == corev1.NodeInclusionPolicyIgnore {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, *p, []corev1.NodeInclusionPolicy{corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore})}
}
