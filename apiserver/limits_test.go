package apiserver

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func numbered(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprintf("key-%d", i)] = "v"
	}
	return m
}

// What would cost every server again and again is refused at the door, by the
// name of its field, with its bound.
func TestLimits(t *testing.T) {
	a := newAdmission(t)
	request := func(name corev1.ResourceName, amount string) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
				Requests: corev1.ResourceList{name: resource.MustParse(amount)}, Limits: corev1.ResourceList{name: resource.MustParse(amount)},
			}
		}
	}
	term := func(i int) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{TopologyKey: fmt.Sprintf("key-%d", i), LabelSelector: &metav1.LabelSelector{}}
	}
	grace := int64(1 << 31)
	for name, c := range map[string]struct {
		change func(p *corev1.Pod)
		part   string // of the refusal; "" where there is none
	}{
		"cpu":            {request("cpu", "9223372036854775807"), "spec.containers[0].resources.requests[cpu]: Invalid value: \"9223372036854775807\": must be at most 281474976710656m"},
		"10P cpus":       {request("cpu", "10P"), "must be at most 281474976710656m"},
		"100E bytes":     {request("memory", "100E"), "must be at most 256Ti"},
		"2^62 bytes":     {request("memory", "4611686018427387904"), "spec.containers[0].resources.limits[memory]"},
		"as much as may": {request("memory", "256Ti"), ""},
		"devices":        {request("example.com/gpu", "1E"), "must be at most 256Ti"},
		"labels":         {func(p *corev1.Pod) { p.Labels = numbered(129) }, "metadata.labels: Too many: 129: must have at most 128 items"},
		"as many as may": {func(p *corev1.Pod) { p.Labels = numbered(128) }, ""},
		"tolerations":    {func(p *corev1.Pod) { p.Spec.Tolerations = make([]corev1.Toleration, 127); fillTolerations(p) }, "spec.tolerations: Too many"},
		"node selector":  {func(p *corev1.Pod) { p.Spec.NodeSelector = numbered(65) }, "spec.nodeSelector: Too many"},
		"grace":          {func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &grace }, "spec.terminationGracePeriodSeconds: Invalid value: 2147483648: must be less than 2147483648"},
		"containers":     {func(p *corev1.Pod) { manyContainers(p, 129) }, "spec.containers: Too many"},
		"affinity, either": {func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}, PodAntiAffinity: &corev1.PodAntiAffinity{}}
			for i := range 33 {
				p.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
					p.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, corev1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: term(i)})
				p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(
					p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term(i))
			}
		}, "spec.affinity: Too many: 66: must have at most 64 items"},
		"spread": {func(p *corev1.Pod) {
			for i := range 33 {
				p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
					MaxSkew: 1, TopologyKey: fmt.Sprintf("key-%d", i), WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: numbered(1)},
				})
			}
		}, "spec.topologySpreadConstraints: Too many"},
		"values": {func(p *corev1.Pod) {
			values := make([]string, 257)
			for i := range values {
				values[i] = fmt.Sprint(i)
			}
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: values}}}},
			}}}
		}, "nodeSelectorTerms[0].matchExpressions[0].values: Too many"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.try(metav1.CreateOptions{}, c.change)
			if c.part != "" {
				wantStatus(t, err, 422, c.part)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func fillTolerations(p *corev1.Pod) {
	for i := range p.Spec.Tolerations {
		p.Spec.Tolerations[i] = corev1.Toleration{Key: fmt.Sprintf("key-%d", i), Operator: corev1.TolerationOpExists}
	}
}

func manyContainers(p *corev1.Pod, n int) {
	c := p.Spec.Containers[0]
	p.Spec.Containers = nil
	for i := range n {
		c.Name = fmt.Sprintf("c%d", i)
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
}

// The bounds hold for templates and for what is changed later, too.
func TestLimitsElsewhere(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := context.Background()
	pod, err := s.client(t).CoreV1().Pods("default").Create(ctx, testPod("web"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Labels = numbered(129)
	_, err = s.client(t).CoreV1().Pods("default").Update(ctx, pod, metav1.UpdateOptions{})
	wantStatus(t, err, 422, `Pod "web" is invalid: metadata.labels: Too many`)
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.ReplicaSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: testPod("web").Spec},
	}}
	set.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1E")}
	_, err = s.client(t).AppsV1().ReplicaSets("default").Create(ctx, set, metav1.CreateOptions{})
	wantStatus(t, err, 422, `ReplicaSet.apps "web" is invalid: spec.template.spec.containers[0].resources.requests[cpu]`)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: numbered(65)},
	}}
	_, err = s.client(t).PolicyV1().PodDisruptionBudgets("default").Create(ctx, budget, metav1.CreateOptions{})
	wantStatus(t, err, 422, "spec.selector.matchLabels: Too many: 65: must have at most 64 items")
}
