package bench

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// verifyTopology fails if a hard rule between pods does not hold. It counts by
// itself, from the objects alone, and knows the rules in their plain form: the
// nodes are all eligible, and nobody has left. Each different rule is looked at
// once.
func verifyTopology(v *fsm.View) error {
	rules := map[string]topologyRule{}
	var pods []placedPod
	var errs []error
	v.Pods.Scan("", func(key string, pod *corev1.Pod) bool {
		node, ok := v.Nodes.Get(pod.Spec.NodeName)
		if !ok || model.Terminal(pod) {
			return true
		}
		pods = append(pods, placedPod{key, pod, node})
		for _, r := range rulesOf(pod) {
			if err := r.add(rules); err != nil {
				errs = append(errs, fmt.Errorf("pod %s: %w", key, err))
			}
		}
		return true
	})
	for _, id := range slices.Sorted(maps.Keys(rules)) {
		r := rules[id]
		if err := r.check(v, pods); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

type placedPod struct {
	key  string
	pod  *corev1.Pod
	node *corev1.Node
}

// topologyRule is a hard rule of some pods about the pods that match.
type topologyRule struct {
	kind, namespace, topologyKey string
	label                        *metav1.LabelSelector
	selector                     labels.Selector
	maxSkew                      int32
}

const (
	ruleSpread = "spread"
	ruleApart  = "anti-affinity"
	ruleNear   = "affinity"
)

func rulesOf(pod *corev1.Pod) []topologyRule {
	var out []topologyRule
	for i := range pod.Spec.TopologySpreadConstraints {
		if c := &pod.Spec.TopologySpreadConstraints[i]; c.WhenUnsatisfiable == corev1.DoNotSchedule {
			out = append(out, topologyRule{kind: ruleSpread, namespace: pod.Namespace, topologyKey: c.TopologyKey, label: c.LabelSelector, maxSkew: c.MaxSkew})
		}
	}
	terms := func(kind string, list []corev1.PodAffinityTerm) {
		for i := range list {
			out = append(out, topologyRule{kind: kind, namespace: pod.Namespace, topologyKey: list[i].TopologyKey, label: list[i].LabelSelector})
		}
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		terms(ruleApart, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		terms(ruleNear, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	return out
}

func (r topologyRule) add(rules map[string]topologyRule) (err error) {
	id := fmt.Sprintf("%s over %s (skew %d) of %s in %s", r.kind, r.topologyKey, r.maxSkew, metav1.FormatLabelSelector(r.label), r.namespace)
	if _, known := rules[id]; known {
		return nil
	}
	if r.selector, err = metav1.LabelSelectorAsSelector(r.label); err == nil {
		rules[id] = r
	}
	return err
}

// check holds the rule against where the matching pods are. All of these carry
// it.
func (r topologyRule) check(v *fsm.View, pods []placedPod) error {
	counts := map[string]int32{}
	if r.kind == ruleSpread { // a domain counts although nobody is there (TS3)
		v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
			if domain, ok := n.Labels[r.topologyKey]; ok {
				counts[domain] = 0
			}
			return true
		})
	}
	for _, p := range pods {
		if p.pod.Namespace != r.namespace || !r.selector.Matches(labels.Set(p.pod.Labels)) {
			continue
		}
		domain, ok := p.node.Labels[r.topologyKey]
		if !ok {
			return fmt.Errorf("pod %s is on %s, which has no such label", p.key, p.node.Name)
		}
		counts[domain]++
	}
	values := slices.Sorted(maps.Values(counts))
	if len(values) == 0 {
		return nil
	}
	least, most := values[0], values[len(values)-1]
	switch {
	case r.kind == ruleSpread && most-least > r.maxSkew: // TS2
		return fmt.Errorf("one domain has %d pods, another %d", most, least)
	case r.kind == ruleApart && most > 1: // AF2
		return fmt.Errorf("one domain has %d pods", most)
	case r.kind == ruleNear && len(counts) > 1: // AF2
		return fmt.Errorf("the pods are in %d domains", len(counts))
	}
	return nil
}
