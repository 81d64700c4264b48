package berthv1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// The plugins that score nodes, by kube-scheduler's names.
const (
	PluginNodeResourcesFit                = "NodeResourcesFit"
	PluginNodeResourcesBalancedAllocation = "NodeResourcesBalancedAllocation"
	PluginNodeAffinity                    = "NodeAffinity"
	PluginTaintToleration                 = "TaintToleration"
	PluginPodTopologySpread               = "PodTopologySpread"
	PluginInterPodAffinity                = "InterPodAffinity"
	PluginImageLocality                   = "ImageLocality"
)

// Plugins lists the plugins by name.
func Plugins() []string {
	return []string{
		PluginImageLocality, PluginInterPodAffinity, PluginNodeAffinity, PluginNodeResourcesBalancedAllocation,
		PluginNodeResourcesFit, PluginPodTopologySpread, PluginTaintToleration,
	}
}

// DefaultWeight is a plugin's weight in kube-scheduler, and whether there is
// such a plugin.
func DefaultWeight(plugin string) (int32, bool) {
	switch plugin {
	case PluginNodeResourcesFit, PluginNodeResourcesBalancedAllocation, PluginImageLocality:
		return 1, true
	case PluginNodeAffinity, PluginPodTopologySpread, PluginInterPodAffinity:
		return 2, true
	case PluginTaintToleration:
		return 3, true
	}
	return 0, false
}

// Weight is what a plugin's score is multiplied by in this profile; 0: it does
// not count.
func (p *SchedulerProfile) Weight(plugin string) int32 {
	if slices.Contains(p.Plugins.Disabled, plugin) {
		return 0
	}
	if w, ok := p.Plugins.Weights[plugin]; ok {
		return w
	}
	w, _ := DefaultWeight(plugin)
	return w
}

// Profile is the profile for the pods that name a scheduler; nil: they are
// another scheduler's. A pod that names none means default-scheduler.
func (s *SchedulerConfigurationSpec) Profile(schedulerName string) *SchedulerProfile {
	if schedulerName == "" {
		schedulerName = corev1.DefaultSchedulerName
	}
	for i := range s.Profiles {
		if s.Profiles[i].SchedulerName == schedulerName {
			return &s.Profiles[i]
		}
	}
	return nil
}
