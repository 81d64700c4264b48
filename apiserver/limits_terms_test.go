package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podTerms are a pod's required anti-affinity and preferred affinity.
func podTerms(p *corev1.Pod) (required *[]corev1.PodAffinityTerm, preferred *[]corev1.WeightedPodAffinityTerm) {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}, PodAntiAffinity: &corev1.PodAntiAffinity{}}
	}
	return &p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		&p.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
}

func nodeAffinity(p *corev1.Pod) *corev1.NodeAffinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	}
	return p.Spec.Affinity.NodeAffinity
}

func terms(n int) (out []corev1.PodAffinityTerm) {
	for _, key := range many(n, "key-%d") {
		out = append(out, corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: &metav1.LabelSelector{}})
	}
	return out
}

func spread(n int) (out []corev1.TopologySpreadConstraint) {
	for _, key := range many(n, "key-%d") {
		out = append(out, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: numbered(1)},
		})
	}
	return out
}

func nodeTerms(n, expressions, values int) (out []corev1.NodeSelectorTerm) {
	for range n {
		var t corev1.NodeSelectorTerm
		for _, key := range many(expressions, "k%d") {
			t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: key, Operator: corev1.NodeSelectorOpIn, Values: many(values, "v%d")})
		}
		out = append(out, t)
	}
	return out
}
