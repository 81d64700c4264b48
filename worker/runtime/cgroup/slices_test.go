package cgroup

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A cgroup's unit and directory are where systemd and runc look for them.
func TestSlices(t *testing.T) {
	s := &Slices{Parent: "/kube-pods"}
	for _, c := range []struct{ name, unit, path string }{
		{"burstable/pod1-2", "kube_pods-burstable-pod1_2.slice", "kube_pods.slice/kube_pods-burstable.slice/kube_pods-burstable-pod1_2.slice"},
		{"pod1", "kube_pods-pod1.slice", "kube_pods.slice/kube_pods-pod1.slice"},
		{"", "kube_pods.slice", "kube_pods.slice"},
	} {
		if unit, path := s.unit(c.name), s.Path(c.name); unit != c.unit || path != c.path {
			t.Errorf("%q is %s in %s", c.name, unit, path)
		}
	}
}

// What is asked for comes out in systemd's words: time of a processor in hundredths of it, rounded up.
func TestPropertiesOf(t *testing.T) {
	amounts := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	for _, c := range []struct {
		resources corev1.ResourceRequirements
		pids      int64
		want      map[string]any
	}{
		{corev1.ResourceRequirements{}, 0, map[string]any{"CPUWeight": uint64(1)}},
		{corev1.ResourceRequirements{Requests: amounts("250m", "32Mi"), Limits: amounts("123m", "64Mi")}, 200,
			map[string]any{"CPUWeight": uint64(35), "CPUQuotaPerSecUSec": uint64(130_000), "MemoryMax": uint64(64 << 20), "TasksMax": uint64(200)}},
		{corev1.ResourceRequirements{Limits: amounts("2", "1Gi")}, 0,
			map[string]any{"CPUWeight": uint64(174), "CPUQuotaPerSecUSec": uint64(2_000_000), "MemoryMax": uint64(1 << 30)}},
	} {
		got := map[string]any{}
		for _, p := range propertiesOf(Resources(&c.resources, c.pids)) {
			if v := p.Value.Value(); v != true { // that something is counted
				got[p.Name] = v
			}
		}
		if len(got) != len(c.want) {
			t.Errorf("%v, not %v", got, c.want)
		}
		for name, want := range c.want {
			if got[name] != want {
				t.Errorf("%s is %v and not %v", name, got[name], want)
			}
		}
	}
}
