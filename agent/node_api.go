package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/worker"
)

// nodeRequestsAtOnce bounds those that are being answered.
const nodeRequestsAtOnce = 4

// nodeAPI is what a kubelet shows of its node, for whoever may read it through the
// servers (nodes/NAME/proxy/...). Nothing can be changed by it.
type nodeAPI struct {
	http.Handler
	slots chan struct{}
}

func newNodeAPI(agent *worker.Agent, sampler *worker.Sampler, disk func() (worker.Disk, *worker.Disk, error)) *nodeAPI {
	last := func() *worker.Measured { return nil }
	if sampler != nil {
		last = sampler.Last
	}
	summary := &worker.Summary{Agent: agent, Measured: last, Disk: disk, Tasks: worker.ReadTasks}
	own := prometheus.NewRegistry()
	own.MustRegister(&nodeCollector{agent: agent, last: last, metrics: resourceMetrics()})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.Handle("GET /metrics", promhttp.HandlerFor(workerMetrics(agent), promhttp.HandlerOpts{}))
	mux.Handle("GET /metrics/resource", promhttp.HandlerFor(own, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /stats/summary", func(w http.ResponseWriter, r *http.Request) {
		only := r.URL.Query().Get("only_cpu_and_memory")
		s, err := summary.Get(r.Context(), only == "true" || only == "1")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s) // who asked has gone
	})
	for path, pods := range map[string]func() []*corev1.Pod{"/pods": agent.Pods, "/runningpods": agent.RunningPods} {
		list := func(w http.ResponseWriter, _ *http.Request) { writePods(w, pods()) }
		mux.HandleFunc("GET "+path, list)
		mux.HandleFunc("GET "+path+"/{$}", list)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "a worker shows /pods, /runningpods, /stats/summary, /metrics/resource, /metrics and /healthz", http.StatusNotFound)
	})
	return &nodeAPI{mux, make(chan struct{}, nodeRequestsAtOnce)}
}

// writePods answers with a PodList, or with an error where it would be too long to be passed on.
func writePods(w http.ResponseWriter, pods []*corev1.Pod) {
	var b bytes.Buffer
	b.WriteString(`{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[`)
	to := json.NewEncoder(&b)
	for i, pod := range pods {
		if i > 0 {
			b.WriteByte(',')
		}
		err := to.Encode(pod)
		if err == nil && b.Len() > model.MaxNodeAnswerBytes-len(endOfPods) {
			err = fmt.Errorf("the %d pods of this node take more than %d bytes", len(pods), model.MaxNodeAnswerBytes)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	b.WriteString(endOfPods)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b.Bytes()) // who asked has gone
}

const endOfPods = "]}\n"

// workerMetrics are those of a worker and of this process.
func workerMetrics(agent *worker.Agent) prometheus.Gatherer {
	return prometheus.Gatherers{legacyregistry.DefaultGatherer, agent.Metrics()}
}

// serve answers one request through a tunnel.
func (n *nodeAPI) serve(ctx context.Context, conn net.Conn) error {
	select {
	case n.slots <- struct{}{}:
		defer func() { <-n.slots }()
	default:
		return &rpc.TunnelError{Code: http.StatusTooManyRequests, Message: fmt.Sprintf("the worker answers %d requests about its node already", nodeRequestsAtOnce)}
	}
	if _, err := conn.Write([]byte{rpc.Begin}); err != nil {
		return err
	}
	worker.ServeOne(ctx, conn, n)
	return nil
}

// nodeCollector shows what the node, its pods and their containers use, under the
// kubelet's names (/metrics/resource).
type nodeCollector struct {
	agent   *worker.Agent
	last    func() *worker.Measured
	metrics []*prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *nodeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.metrics {
		ch <- d
	}
}

// The metrics, by how the kubelet calls them.
const (
	nodeCPU = iota
	nodeMemory
	podCPU
	podMemory
	containerCPU
	containerMemory
	containerStart
	resourceError
)

func resourceMetrics() []*prometheus.Desc {
	pod, container := []string{"pod", "namespace"}, []string{"container", "pod", "namespace"}
	return []*prometheus.Desc{
		nodeCPU:         prometheus.NewDesc("node_cpu_usage_seconds_total", "Processor time of the node, in seconds.", nil, nil),
		nodeMemory:      prometheus.NewDesc("node_memory_working_set_bytes", "Working set of the node.", nil, nil),
		podCPU:          prometheus.NewDesc("pod_cpu_usage_seconds_total", "Processor time of the pod, in seconds.", pod, nil),
		podMemory:       prometheus.NewDesc("pod_memory_working_set_bytes", "Working set of the pod.", pod, nil),
		containerCPU:    prometheus.NewDesc("container_cpu_usage_seconds_total", "Processor time of the container, in seconds.", container, nil),
		containerMemory: prometheus.NewDesc("container_memory_working_set_bytes", "Working set of the container.", container, nil),
		containerStart:  prometheus.NewDesc("container_start_time_seconds", "When the container began, in seconds since 1970.", container, nil),
		resourceError:   prometheus.NewDesc("resource_scrape_error", "1 if nothing was measured, else 0.", nil, nil),
	}
}

// Collect implements prometheus.Collector.
func (c *nodeCollector) Collect(ch chan<- prometheus.Metric) {
	m := c.last()
	failed := 0.0
	if m == nil {
		failed = 1
	}
	put := func(which int, kind prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.metrics[which], kind, value, labels...)
	}
	put(resourceError, prometheus.GaugeValue, failed)
	if m == nil {
		return
	}
	put(nodeCPU, prometheus.CounterValue, m.Machine.CPU.Seconds())
	put(nodeMemory, prometheus.GaugeValue, float64(m.Machine.WorkingSetBytes))
	type sum struct{ cpu, memory float64 }
	names, pods, newest := c.agent.Names(), map[types.UID]sum{}, map[string]int{}
	for i := range m.Containers {
		newest[string(m.Containers[i].Pod)+"/"+m.Containers[i].Container] = i // sorted: the last run is the newest
	}
	for _, i := range slices.Sorted(maps.Values(newest)) {
		one := &m.Containers[i]
		name, known := names[one.Pod]
		if !known {
			continue
		}
		labels := []string{one.Container, name.Name, name.Namespace}
		put(containerCPU, prometheus.CounterValue, one.CPU.Seconds(), labels...)
		put(containerMemory, prometheus.GaugeValue, float64(one.WorkingSetBytes), labels...)
		if !one.StartedAt.IsZero() {
			put(containerStart, prometheus.GaugeValue, float64(one.StartedAt.UnixNano())/1e9, labels...)
		}
		s := pods[one.Pod]
		pods[one.Pod] = sum{s.cpu + one.CPU.Seconds(), s.memory + float64(one.WorkingSetBytes)}
	}
	for uid, s := range pods {
		put(podCPU, prometheus.CounterValue, s.cpu, names[uid].Name, names[uid].Namespace)
		put(podMemory, prometheus.GaugeValue, s.memory, names[uid].Name, names[uid].Namespace)
	}
}
