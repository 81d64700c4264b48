package bench

import (
	"context"
	"errors"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// topologyTarget is in pods a second.
	topologyTarget = 2_000
	// zones is how many the nodes are in, in turn.
	zones = 10
	// topologyApps is how many sets of like pods there are, each with rules
	// about its own pods.
	topologyApps = 10
	appLabel     = "app"
)

func zoneName(node int) string { return "zone-" + strconv.Itoa(node%zones) }

// spread: the pods of an app are spread over the zones, and over the nodes, as
// evenly as can be.
func spread(ctx context.Context, r *run) error { return apps(ctx, r, spreadRule) }

func spreadRule(pod *corev1.Pod, app *metav1.LabelSelector) {
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelHostname} {
		pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: app,
		})
	}
}

// antiAffinity: no two pods of an app are on one node.
func antiAffinity(ctx context.Context, r *run) error {
	if r.Pods > r.Nodes*topologyApps {
		return errors.New("the pods of an app must not be more than the nodes")
	}
	return apps(ctx, r, antiAffinityRule)
}

func antiAffinityRule(pod *corev1.Pod, app *metav1.LabelSelector) {
	pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: app, TopologyKey: corev1.LabelHostname}},
	}}
}

// affinity: all pods of an app are in one zone.
func affinity(ctx context.Context, r *run) error { return apps(ctx, r, affinityRule) }

func affinityRule(pod *corev1.Pod, app *metav1.LabelSelector) {
	pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: app, TopologyKey: corev1.LabelTopologyZone}},
	}}
}

// apps admits the pods of some apps, each with a rule, and waits until all are
// bound.
func apps(ctx context.Context, r *run, rule func(pod *corev1.Pod, app *metav1.LabelSelector)) (err error) {
	c, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	m, err := startMeter()
	if err != nil {
		return err
	}
	for i := range topologyApps {
		app := map[string]string{appLabel: "app-" + strconv.Itoa(i)}
		pod := newPod("100m", "500Mi")
		pod.GenerateName, pod.Labels = app[appLabel]+"-", app
		rule(pod, &metav1.LabelSelector{MatchLabels: app})
		if n := share(r.Pods, topologyApps, i); n > 0 {
			if err := c.admit(ctx, pod, n); err != nil {
				return err
			}
		}
	}
	if err := c.awaitBound(ctx, r.Pods); err != nil {
		return err
	}
	if err := r.throughput(m, "admitted and bound", topologyTarget); err != nil {
		return err
	}
	return c.verify(ctx, r.Pods)
}

// share is the i-th part of n things that are shared out evenly.
func share(n, parts, i int) int {
	if i < n%parts {
		return n/parts + 1
	}
	return n / parts
}
