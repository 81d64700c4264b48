package worker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/worker/runtime"
)

func TestMetrics(t *testing.T) {
	m := newMeters(func() (pods, up, ended int) { return 2, 3, 1 })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u"},
		Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "init"}}, Containers: []corev1.Container{{Name: "a"}}}}
	call := func(kind ActionKind, container string, err error) {
		m.called(&Outcome{Action: Action{Kind: kind, Pod: pod, ID: runtime.ID{Pod: "u", Container: container}, ProbeKind: ProbeLiveness}, Err: err}, time.Second)
	}
	call(ActionStart, "init", nil)
	call(ActionStart, "a", errors.New("no"))
	call(ActionStart, "a", nil)
	call(ActionProbe, "a", nil)
	call(ActionProbe, "a", errors.New("ill"))
	call(ActionProbe, "a", &runtime.ProbeError{Err: errors.New("who knows")})
	call(ActionMeasure, "", errors.New("no call of the runtime"))
	m.evicted(eviction.PIDAvailable)
	m.pulled(11<<20, 2*time.Second)
	const want = `
# HELP kubelet_evictions Pods that had to go because the node ran short of something.
# TYPE kubelet_evictions counter
kubelet_evictions{eviction_signal="pid.available"} 1
# HELP kubelet_running_containers Containers by their state.
# TYPE kubelet_running_containers gauge
kubelet_running_containers{container_state="exited"} 1
kubelet_running_containers{container_state="running"} 3
# HELP kubelet_running_pods Pods of which something runs.
# TYPE kubelet_running_pods gauge
kubelet_running_pods 2
# HELP kubelet_runtime_operations_errors_total Calls of the container runtime that failed.
# TYPE kubelet_runtime_operations_errors_total counter
kubelet_runtime_operations_errors_total{operation_type="start_container"} 1
# HELP kubelet_runtime_operations_total Calls of the container runtime.
# TYPE kubelet_runtime_operations_total counter
kubelet_runtime_operations_total{operation_type="start_container"} 3
# HELP kubelet_started_containers_errors_total Containers that could not be started.
# TYPE kubelet_started_containers_errors_total counter
kubelet_started_containers_errors_total{container_type="container"} 1
# HELP kubelet_started_containers_total Containers that were to be started.
# TYPE kubelet_started_containers_total counter
kubelet_started_containers_total{container_type="container"} 2
kubelet_started_containers_total{container_type="init_container"} 1
# HELP prober_probe_total Probes by how they went.
# TYPE prober_probe_total counter
prober_probe_total{container="a",namespace="shop",pod="web",pod_uid="u",probe_type="Liveness",result="failed"} 1
prober_probe_total{container="a",namespace="shop",pod="web",pod_uid="u",probe_type="Liveness",result="successful"} 1
prober_probe_total{container="a",namespace="shop",pod="web",pod_uid="u",probe_type="Liveness",result="unknown"} 1
`
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "kubelet_evictions", "kubelet_running_containers", "kubelet_running_pods",
		"kubelet_runtime_operations_errors_total", "kubelet_runtime_operations_total", "kubelet_started_containers_errors_total",
		"kubelet_started_containers_total", "prober_probe_total"); err != nil {
		t.Error(err)
	}
	// What takes time is only in how many there were of it.
	for name, n := range map[string]int{"kubelet_image_pull_duration_seconds": 1, "kubelet_runtime_operations_duration_seconds": 1} {
		if got, err := testutil.GatherAndCount(m.registry, name); err != nil || got != n {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
	call(ActionRemove, "", nil)
	if n := testutil.CollectAndCount(m.probes); n != 0 {
		t.Errorf("of a pod that is gone %d probes are counted", n)
	}
	for size, label := range map[int64]string{0: "N/A", 1: "0-10MB", 10<<20 + 1: "10MB-100MB", 200 << 30: "GT100GB"} {
		if got := sizeLabel(size); got != label {
			t.Errorf("an image of %d bytes is %s", size, got)
		}
	}
}
