package worker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/eviction"
)

// meters are the worker's own metrics, under the kubelet's names where it has some. A nil *meters counts nothing.
type meters struct {
	registry *prometheus.Registry

	started, startFailed *prometheus.CounterVec   // containers, by their type
	calls, failed        *prometheus.CounterVec   // of the runtime, by what they do
	took                 *prometheus.HistogramVec // likewise
	probes               *prometheus.CounterVec
	evictions            *prometheus.CounterVec
	pulls                *prometheus.HistogramVec // by the image's size
}

// newMeters makes them. running tells how many pods run something, and how many containers run and have ended.
func newMeters(running func() (pods, up, ended int)) *meters {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &meters{
		registry:    prometheus.NewRegistry(),
		started:     counter("kubelet_started_containers_total", "Containers that were to be started.", "container_type"),
		startFailed: counter("kubelet_started_containers_errors_total", "Containers that could not be started.", "container_type"),
		calls:       counter("kubelet_runtime_operations_total", "Calls of the container runtime.", "operation_type"),
		failed:      counter("kubelet_runtime_operations_errors_total", "Calls of the container runtime that failed.", "operation_type"),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_runtime_operations_duration_seconds", Help: "How long calls of the container runtime took.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2.5, 14),
		}, []string{"operation_type"}),
		probes: counter("prober_probe_total", "Probes by how they went.", "probe_type", "result", "container", "pod", "namespace", "pod_uid"),
		evictions: counter("kubelet_evictions", "Pods that had to go because the node ran short of something.",
			"eviction_signal"),
		pulls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_image_pull_duration_seconds", Help: "How long images took to be fetched, by their size.",
			Buckets: []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600},
		}, []string{"image_size_in_bytes"}),
	}
	m.registry.MustRegister(m.started, m.startFailed, m.calls, m.failed, m.took, m.probes, m.evictions, m.pulls, &runningCollector{
		running:    running,
		pods:       prometheus.NewDesc("kubelet_running_pods", "Pods of which something runs.", nil, nil),
		containers: prometheus.NewDesc("kubelet_running_containers", "Containers by their state.", []string{"container_state"}, nil),
	})
	return m
}

type runningCollector struct {
	running          func() (pods, up, ended int)
	pods, containers *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *runningCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.pods; ch <- c.containers }

// Collect implements prometheus.Collector.
func (c *runningCollector) Collect(ch chan<- prometheus.Metric) {
	pods, up, ended := c.running()
	put := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	put(c.pods, pods)
	put(c.containers, up, "running")
	put(c.containers, ended, "exited")
}

// Metrics are the worker's own, for whoever shows them.
func (a *Agent) Metrics() prometheus.Gatherer { return a.caller.meters.registry }

// running counts what the node has.
func (a *Agent) running() (pods, up, ended int) {
	a.locked(func() {
		for _, p := range a.core.pods {
			runs := false
			for i := range p.ctrs {
				switch c := &p.ctrs[i]; {
				case c.state == ctrRunning, c.state == ctrHooking:
					runs = true
					up++
				case c.exit != nil:
					ended++
				}
			}
			if runs {
				pods++
			}
		}
	})
	return pods, up, ended
}

// operation is what an action asks of the runtime, by the names of the kubelet's where it has them; empty: nothing.
func (k ActionKind) operation() string {
	switch k {
	case ActionStart:
		return "start_container"
	case ActionSignal:
		return "signal_container"
	case ActionRemove:
		return "remove_pod"
	case ActionSandbox:
		return "run_podsandbox"
	case ActionSandboxStop:
		return "stop_podsandbox"
	case ActionPull:
		return "pull_image"
	case ActionResize:
		return "update_container"
	}
	return ""
}

// called takes note of how a call went.
func (m *meters) called(o *Outcome, took time.Duration) {
	if m == nil {
		return
	}
	if name := o.Kind.operation(); name != "" {
		m.calls.WithLabelValues(name).Inc()
		m.took.WithLabelValues(name).Observe(took.Seconds())
		if o.Err != nil {
			m.failed.WithLabelValues(name).Inc()
		}
	}
	switch o.Kind {
	case ActionStart:
		kind := containerType(o)
		m.started.WithLabelValues(kind).Inc()
		if o.Err != nil {
			m.startFailed.WithLabelValues(kind).Inc()
		}
	case ActionProbe:
		m.probes.WithLabelValues(o.ProbeKind.String(), probeResult(o.Err), o.ID.Container, o.Pod.Name, o.Pod.Namespace, string(o.Pod.UID)).Inc()
	case ActionRemove:
		if o.Err == nil {
			m.forget(o.Pod.UID)
		}
	}
}

func containerType(o *Outcome) string {
	for i := range o.Pod.Spec.InitContainers {
		if o.Pod.Spec.InitContainers[i].Name == o.ID.Container {
			return "init_container"
		}
	}
	for i := range o.Pod.Spec.EphemeralContainers {
		if o.Pod.Spec.EphemeralContainers[i].Name == o.ID.Container {
			return "ephemeral_container"
		}
	}
	return "container"
}

func probeResult(err error) string {
	switch {
	case err == nil:
		return "successful"
	case unknown(err):
		return "unknown"
	}
	return "failed"
}

// forget: there will be no more of the pod.
func (m *meters) forget(pod types.UID) {
	m.probes.DeletePartialMatch(prometheus.Labels{"pod_uid": string(pod)})
}

func (m *meters) evicted(signal eviction.Signal) {
	if m != nil {
		m.evictions.WithLabelValues(string(signal)).Inc()
	}
}

func (m *meters) pulled(sizeBytes int64, took time.Duration) {
	if m != nil {
		m.pulls.WithLabelValues(sizeLabel(sizeBytes)).Observe(took.Seconds())
	}
}

// sizeLabel is how the kubelet calls images of a size.
func sizeLabel(n int64) string {
	if n <= 0 {
		return "N/A"
	}
	const mb = 1 << 20
	for _, class := range []struct {
		most  int64
		label string
	}{
		{10 * mb, "0-10MB"}, {100 * mb, "10MB-100MB"}, {500 * mb, "100MB-500MB"}, {1024 * mb, "500MB-1GB"},
		{5 * 1024 * mb, "1GB-5GB"}, {10 * 1024 * mb, "5GB-10GB"}, {20 * 1024 * mb, "10GB-20GB"}, {30 * 1024 * mb, "20GB-30GB"},
		{40 * 1024 * mb, "30GB-40GB"}, {60 * 1024 * mb, "40GB-60GB"}, {100 * 1024 * mb, "60GB-100GB"},
	} {
		if n <= class.most {
			return class.label
		}
	}
	return "GT100GB"
}
