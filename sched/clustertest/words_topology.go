package clustertest

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Words for what pods ask of other pods:
//
//	spread=KEY:SKEW:SELECTOR[:OPTION...]  options: soft, min=N, affinity=Ignore, taints=Honor, keys=LABEL
//	near=KEY:SELECTOR[:OPTION...]         required pod affinity; far= anti-affinity. Options: w=WEIGHT makes
//	                                      it preferred, ns=NAME+NAME, nsel=SELECTOR, keys=LABEL, notkeys=LABEL
//
// A SELECTOR is label=value&label=value, * for the empty one, - for none at all.

// Selector is the selector that a SELECTOR says.
func Selector(s string) *metav1.LabelSelector {
	switch s {
	case "-":
		return nil
	case "*":
		return &metav1.LabelSelector{}
	}
	out := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for _, pair := range strings.Split(s, "&") {
		k, v, _ := strings.Cut(pair, "=")
		if k, not := strings.CutSuffix(k, "!"); not {
			out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: k, Operator: metav1.LabelSelectorOpNotIn, Values: []string{v}})
			continue
		}
		out.MatchLabels[k] = v
	}
	return out
}

func addSpread(p *corev1.Pod, word string) error {
	c, err := Constraint(word)
	p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
	return err
}

// Constraint is what spread= says.
func Constraint(word string) (corev1.TopologySpreadConstraint, error) {
	c := corev1.TopologySpreadConstraint{WhenUnsatisfiable: corev1.DoNotSchedule}
	parts := strings.Split(word, ":")
	if len(parts) < 3 {
		return c, fmt.Errorf("spread=%s", word)
	}
	skew, err := strconv.Atoi(parts[1])
	if err != nil {
		return c, err
	}
	c.TopologyKey, c.MaxSkew, c.LabelSelector = parts[0], int32(skew), Selector(parts[2])
	for _, option := range parts[3:] {
		key, value, _ := strings.Cut(option, "=")
		policy := corev1.NodeInclusionPolicy(value)
		switch key {
		case "soft":
			c.WhenUnsatisfiable = corev1.ScheduleAnyway
		case "min":
			n, _ := strconv.Atoi(value)
			least := int32(n)
			c.MinDomains = &least
		case "affinity":
			c.NodeAffinityPolicy = &policy
		case "taints":
			c.NodeTaintsPolicy = &policy
		case "keys":
			c.MatchLabelKeys = strings.Split(value, "+")
		default:
			return c, fmt.Errorf("spread: what is %s?", option)
		}
	}
	return c, nil
}

func addTerm(p *corev1.Pod, near bool, word string) error {
	parts := strings.Split(word, ":")
	if len(parts) < 2 {
		return fmt.Errorf("near or far=%s", word)
	}
	t := corev1.PodAffinityTerm{TopologyKey: parts[0], LabelSelector: Selector(parts[1])}
	weight := 0
	for _, option := range parts[2:] {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "w":
			weight, _ = strconv.Atoi(value)
		case "ns":
			t.Namespaces = strings.Split(value, "+")
		case "nsel":
			t.NamespaceSelector = Selector(value)
		case "keys":
			t.MatchLabelKeys = strings.Split(value, "+")
		case "notkeys":
			t.MismatchLabelKeys = strings.Split(value, "+")
		default:
			return fmt.Errorf("what is %s?", option)
		}
	}
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	a := p.Spec.Affinity
	if a.PodAffinity == nil && near {
		a.PodAffinity = &corev1.PodAffinity{}
	}
	if a.PodAntiAffinity == nil && !near {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{}
	}
	weighted := corev1.WeightedPodAffinityTerm{Weight: int32(weight), PodAffinityTerm: t}
	var required *[]corev1.PodAffinityTerm
	var preferred *[]corev1.WeightedPodAffinityTerm
	if near {
		required = &a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		preferred = &a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	} else {
		required = &a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		preferred = &a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if weight == 0 {
		*required = append(*required, t)
	} else {
		*preferred = append(*preferred, weighted)
	}
	return nil
}
