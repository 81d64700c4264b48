package fsm

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fillTerms: spread=KEY:SKEW:LABEL:VALUE,… soft-spread= (as spread) min-domains=
// taints-policy=Honor affinity-policy=Ignore affinity=KEY:LABEL:VALUE[:NAMESPACE],… anti=
// prefer= avoid= (as affinity). Without a label a term is about all pods; the
// namespace *team:1 is a selector.
func (w words) fillTerms(p *corev1.Pod) {
	for word, when := range map[string]corev1.UnsatisfiableConstraintAction{"spread": corev1.DoNotSchedule, "soft-spread": corev1.ScheduleAnyway} {
		for _, text := range w.list(word) {
			f := strings.Split(text, ":")
			skew, _ := strconv.Atoi(f[1])
			k := corev1.TopologySpreadConstraint{TopologyKey: f[0], MaxSkew: int32(skew), WhenUnsatisfiable: when, LabelSelector: selectorOf(f[2:])}
			if n := w.number("min-domains"); n != nil && when == corev1.DoNotSchedule {
				least := int32(*n)
				k.MinDomains = &least
			}
			k.NodeTaintsPolicy, k.NodeAffinityPolicy = w.policy("taints-policy"), w.policy("affinity-policy")
			k.MatchLabelKeys = w.list("match-keys")
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, k)
		}
	}
	affinity, anti := &corev1.PodAffinity{}, &corev1.PodAntiAffinity{}
	affinity.RequiredDuringSchedulingIgnoredDuringExecution = w.terms("affinity")
	anti.RequiredDuringSchedulingIgnoredDuringExecution = w.terms("anti")
	for _, t := range w.terms("prefer") {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(affinity.PreferredDuringSchedulingIgnoredDuringExecution, corev1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: t})
	}
	for _, t := range w.terms("avoid") {
		anti.PreferredDuringSchedulingIgnoredDuringExecution = append(anti.PreferredDuringSchedulingIgnoredDuringExecution, corev1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: t})
	}
	if w.list("affinity") != nil || w.list("anti") != nil || w.list("prefer") != nil || w.list("avoid") != nil {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: affinity, PodAntiAffinity: anti}
	}
}

func (w words) policy(key string) *corev1.NodeInclusionPolicy {
	v, ok := w.get(key)
	if !ok {
		return nil
	}
	p := corev1.NodeInclusionPolicy(v)
	return &p
}

func (w words) terms(key string) []corev1.PodAffinityTerm {
	var out []corev1.PodAffinityTerm
	for _, text := range w.list(key) {
		f := strings.Split(text, ":")
		t := corev1.PodAffinityTerm{TopologyKey: f[0], LabelSelector: selectorOf(f[1:min(len(f), 3)])}
		if len(f) > 3 {
			if team, ok := strings.CutPrefix(f[3], "*"); ok {
				t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{team: f[4]}}
			} else {
				t.Namespaces = f[3:4]
			}
		}
		out = append(out, t)
	}
	return out
}

func selectorOf(f []string) *metav1.LabelSelector {
	if len(f) < 2 {
		return &metav1.LabelSelector{}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{f[0]: f[1]}}
}
