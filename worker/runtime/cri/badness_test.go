package cri

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/model"
)

// Who goes first when memory is short, as a kubelet has it on a node with 1000 MiB.
func TestBadness(t *testing.T) {
	r := away(t)
	r.opts.MemoryBytes = 1000 << 20
	asking := func(name, memory string) corev1.Container {
		c := corev1.Container{Name: name}
		if memory != "" {
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		}
		return c
	}
	side := func(name, memory string) corev1.Container {
		c, always := asking(name, memory), corev1.ContainerRestartPolicyAlways
		c.RestartPolicy = &always
		return c
	}
	of := func(whole string, inits []corev1.Container, containers ...corev1.Container) *corev1.Pod {
		p := pod("p", containers...)
		p.Spec.InitContainers = inits
		if whole != "" {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(whole)}}
		}
		return p
	}
	critical := func(class string, priority int32) *corev1.Pod {
		p := of("", nil, asking("a", "100Mi"))
		p.Spec.PriorityClassName, p.Spec.Priority = class, &priority
		return p
	}
	one := func(c corev1.Container) []corev1.Container { return []corev1.Container{c} }
	for _, c := range []struct {
		what string
		pod  *corev1.Pod
		want map[string]int64
	}{
		{"each by what it asks for", of("", nil, asking("a", "100Mi"), asking("b", "")), map[string]int64{"a": 900, "b": 999}},
		{"what the pod asks for beyond that is shared", of("500Mi", nil, asking("a", "100Mi"), asking("b", "")), map[string]int64{"a": 700, "b": 800}},
		{"by init containers, too", of("400Mi", one(asking("i", "")), asking("a", "100Mi")), map[string]int64{"i": 850, "a": 750}},
		{"a sidecar goes no sooner than the least of the others", of("", one(side("s", "10Mi")), asking("a", "100Mi"), asking("b", "200Mi")),
			map[string]int64{"s": 900, "a": 900, "b": 800}},
		{"it keeps what it asks for itself", of("", one(side("s", "300Mi")), asking("a", "100Mi")), map[string]int64{"s": 700, "a": 900}},
		{"it has its share", of("400Mi", one(side("s", "")), asking("a", "100Mi")), map[string]int64{"s": 750, "a": 750}},
		{"all that there is", of("", nil, asking("a", "1000Mi")), map[string]int64{"a": 3}},
		{"nothing", of("", nil, asking("a", "")), map[string]int64{"a": 1000}},
		{"critical to the node", critical(model.SystemNodeCritical, model.SystemNodeCriticalPriority), map[string]int64{"a": -997}},
		{"critical to the cluster", critical(model.SystemClusterCritical, model.SystemClusterCriticalPriority), map[string]int64{"a": 900}},
	} {
		for _, list := range [][]corev1.Container{c.pod.Spec.InitContainers, c.pod.Spec.Containers} {
			for i := range list {
				if got := r.badness(c.pod, &list[i]); got != c.want[list[i].Name] {
					t.Errorf("%s: %s has %d, not %d", c.what, list[i].Name, got, c.want[list[i].Name])
				}
			}
		}
	}
}
