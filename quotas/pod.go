package quotas

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/model"
)

// Charge is what the spec of a pod costs, and what of it scopes ask for. Equal specs
// have equal charges, so it can be kept with the spec.
type Charge struct {
	amounts        amounts
	bestEffort     bool
	crossNamespace bool
}

// ChargeOf works the charge of a pod's spec out: effective requests and limits, as
// Kubernetes' quota has them.
func ChargeOf(pod *corev1.Pod) *Charge {
	c := &Charge{bestEffort: model.QOS(pod) == corev1.PodQOSBestEffort, crossNamespace: crossNamespace(pod.Spec.Affinity)}
	add := func(name string, n int64) {
		if n > 0 {
			c.amounts = append(c.amounts, amount{name, total{lo: uint64(n)}})
		}
	}
	add(pods, 1)
	add(allPods, 1)
	// order does not matter: sorted below.
	for name, q := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		if own, ok := requestName(string(name)); ok {
			add(own, amountOf(own, q))
		}
	}
	// order does not matter: sorted below.
	for name, q := range resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{}) {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			add(limits+string(name), amountOf(limits+string(name), q))
		}
	}
	slices.SortFunc(c.amounts, func(a, b amount) int { return strings.Compare(a.name, b.name) })
	return c
}

// requestName is the name here of what a pod requests.
func requestName(name string) (own string, ok bool) {
	switch {
	case name == "cpu", name == "memory", name == "ephemeral-storage", strings.HasPrefix(name, corev1.ResourceHugePagesPrefix):
		return name, true
	case extended(name):
		return requests + name, true
	}
	return "", false
}

func amountOf(own string, q resource.Quantity) int64 {
	if inThousandths(own) {
		return model.MilliAmountOf(q)
	}
	return model.AmountOf(q)
}

// crossNamespace is Kubernetes' rule: a term names namespaces, or selects them.
func crossNamespace(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	crosses := func(t *corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil }
	anyCrosses := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) bool {
		return slices.ContainsFunc(required, func(t corev1.PodAffinityTerm) bool { return crosses(&t) }) ||
			slices.ContainsFunc(preferred, func(t corev1.WeightedPodAffinityTerm) bool { return crosses(&t.PodAffinityTerm) })
	}
	return a.PodAffinity != nil && anyCrosses(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution) ||
		a.PodAntiAffinity != nil && anyCrosses(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
}

// Pod is a pod as quotas see it.
type Pod struct {
	charge *Charge
	class  string
	// terminating: it runs for a bounded time (Kubernetes' name for the scope).
	terminating, ended bool
}

// PodOf is a pod with the charge of its spec.
func PodOf(pod *corev1.Pod, charge *Charge) *Pod {
	return &Pod{charge, pod.Spec.PriorityClassName, runsForATime(pod), model.Terminal(pod)}
}

func runsForATime(pod *corev1.Pod) bool {
	s := pod.Spec.ActiveDeadlineSeconds
	return s != nil && *s >= 0
}

// SameUse says whether two states of a pod with one spec, but for the deadline, cost
// the same.
func SameUse(a, b *corev1.Pod) bool {
	return model.Terminal(a) == model.Terminal(b) && runsForATime(a) == runsForATime(b) && a.Spec.PriorityClassName == b.Spec.PriorityClassName
}

var onlyCounted = amounts{{allPods, total{lo: 1}}}

// uses is what the pod costs now: who has ended is counted, and no more.
func (p *Pod) uses() amounts {
	switch {
	case p == nil:
		return nil
	case p.ended:
		return onlyCounted
	}
	return p.charge.amounts
}

// kind is a set of answers to what scopes other than classes ask.
type kind uint8

const (
	isTerminating kind = 1 << iota
	isBestEffort
	isCrossNamespace
	kinds kind = 1 << iota // how many there are
)

func (p *Pod) kind() (k kind) {
	if p.terminating {
		k |= isTerminating
	}
	if p.charge.bestEffort {
		k |= isBestEffort
	}
	if p.charge.crossNamespace {
		k |= isCrossNamespace
	}
	return k
}

// mustSpecify is Kubernetes' complaint of a pod of which a container does not say how
// much it takes of cpu or memory, where a quota counts it; "" if there is none.
func mustSpecify(pod *corev1.Pod, hard []limit) string {
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return ""
	}
	missing := map[string]map[string]bool{}
	look := func(containers []corev1.Container) {
		for i := range containers {
			c := &containers[i]
			for _, h := range hard {
				if !demanded(h.name) {
					continue
				}
				list, bare := c.Resources.Requests, strings.TrimPrefix(h.name, requests)
				if l, ok := strings.CutPrefix(h.name, limits); ok {
					list, bare = c.Resources.Limits, l
				}
				if _, ok := list[corev1.ResourceName(bare)]; !ok {
					if missing[h.name] == nil {
						missing[h.name] = map[string]bool{}
					}
					missing[h.name][c.Name] = true
				}
			}
		}
	}
	look(pod.Spec.Containers)
	look(pod.Spec.InitContainers)
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		parts = append(parts, name+" for: "+strings.Join(slices.Sorted(maps.Keys(missing[name])), ","))
	}
	return strings.Join(parts, "; ")
}

// demanded says whether every container has to say how much it takes, where a quota
// counts the resource. Kubernetes keeps to these six.
func demanded(name string) bool {
	switch name {
	case "cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory":
		return true
	}
	return false
}
