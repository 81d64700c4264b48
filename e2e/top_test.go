package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/berth-dev/berth/agent/fleet"
)

// What pods use is seen: by the verbs of kubectl, through a server that does not hold
// the worker's connection, and in the worker's own words.
func TestTop(t *testing.T) {
	t.Run("process", func(t *testing.T) {
		w := worker("worker-1", `sample_interval = "1s"`)
		c := newCluster(t, server("server-1", "bootstrap_expect = 3"), server("server-2", "bootstrap_expect = 3"), server("server-3", "bootstrap_expect = 3"), w)
		top(t, c)
	})
	t.Run("cri", func(t *testing.T) {
		d := realContainers(t)
		w := criWorker(d, "worker-1", "cri", `sample_interval = "1s"`)
		s := server("server-1", "bootstrap_expect = 1")
		s.Host, w.Host = reachable(), reachable()
		c := newCluster(t, s, w)
		c.emptied(t, d)
		top(t, c)
	})
}

func top(t *testing.T, c *cluster) {
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	kube := c.Reader().Kube
	busy := func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "busy"}
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("300m")}
	}
	create(t, kube, imaged("burns", "while :; do :; done", busy), imaged("sleeps", "exec sleep 1000"))
	burns := c.waitRunning(t, "default", "burns", "sleeps")[0]
	usage := func(ctx context.Context, server *fleet.Process) (map[string]int64, error) {
		raw, err := server.Kube.CoreV1().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods").DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		var list metricsv1beta1.PodMetricsList
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, err
		}
		out := map[string]int64{}
		for _, p := range list.Items {
			for _, one := range p.Containers {
				out[p.Name+"/"+one.Name] = one.Usage.Cpu().MilliValue()
			}
		}
		return out, nil
	}
	for _, server := range c.Servers() {
		c.eventually(t, "server "+server.Name+" to know what the pods use", func(ctx context.Context) error {
			got, err := usage(ctx, server)
			if err != nil {
				return err
			}
			if sleeps, known := got["sleeps/main"]; !known || sleeps > 50 || got["burns/main"] < 100 || got["burns/main"] > 600 {
				return fmt.Errorf("it knows %v", got)
			}
			return nil
		})
	}
	if out := c.berth(t, "top", "pods", "--containers", "--sort-by=cpu"); !before(out, "burns", "sleeps") || !strings.Contains(out, "main") {
		t.Errorf("berth top pods:\n%s", out)
	}
	if out := c.berth(t, "top", "pods", "-l", "app=busy"); !strings.Contains(out, "burns") || strings.Contains(out, "sleeps") {
		t.Errorf("berth top pods -l app=busy:\n%s", out)
	}
	if out := c.berth(t, "top", "nodes"); !strings.Contains(out, "worker-1") || strings.Contains(out, "unknown") {
		t.Errorf("berth top nodes:\n%s", out)
	}
	c.eventually(t, "the worker's own account", func(context.Context) error { return summary(t, c, burns) })
	resources := c.berth(t, "get", "--raw", "/api/v1/nodes/worker-1/proxy/metrics/resource")
	for _, want := range []string{
		`container_cpu_usage_seconds_total{container="main",namespace="default",pod="burns"}`, `pod_memory_working_set_bytes{namespace="default",pod="sleeps"}`,
		"node_cpu_usage_seconds_total", "resource_scrape_error 0",
	} {
		if !strings.Contains(resources, want) {
			t.Errorf("/metrics/resource has no %s:\n%s", want, resources)
		}
	}
	if out := c.berth(t, "get", "--raw", "/api/v1/nodes/worker-1/proxy/metrics"); !strings.Contains(out, "go_goroutines") {
		t.Errorf("/metrics:\n%.500s", out)
	}
	if r := run(t, c.env, "", "get", "--raw", "/api/v1/nodes/worker-1/proxy/run/default/burns/main"); r.code == 0 {
		t.Errorf("a worker runs something: %s", r.out)
	}
	if err := kube.CoreV1().Pods("default").Delete(t.Context(), "burns", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually(t, "the pod that is gone to be shown no more", func(ctx context.Context) error {
		got, err := usage(ctx, c.Reader())
		if _, there := got["burns/main"]; there {
			return errors.New("it is still shown")
		}
		return err
	})
}

// summary is what /stats/summary says of a pod that burns.
func summary(t *testing.T, c *cluster, burns *corev1.Pod) error {
	var s statsv1alpha1.Summary
	if err := json.Unmarshal([]byte(c.berth(t, "get", "--raw", "/api/v1/nodes/worker-1/proxy/stats/summary")), &s); err != nil {
		return err
	}
	n := &s.Node
	if n.NodeName != "worker-1" || n.CPU == nil || n.CPU.UsageNanoCores == nil || *n.CPU.UsageNanoCores == 0 || n.Memory == nil || *n.Memory.WorkingSetBytes == 0 ||
		n.Fs == nil || *n.Fs.CapacityBytes == 0 || n.Runtime == nil || n.Runtime.ImageFs == nil {
		return fmt.Errorf("the node: %+v", n)
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.PodRef.UID != string(burns.UID) {
			continue
		}
		if p.PodRef.Name != "burns" || len(p.Containers) != 1 || p.Containers[0].Name != "main" || *p.CPU.UsageNanoCores < 100_000_000 ||
			p.EphemeralStorage == nil || p.StartTime.IsZero() {
			return fmt.Errorf("the pod: %+v", p)
		}
		return nil
	}
	return fmt.Errorf("it has %d pods, and not the one", len(s.Pods))
}

// before says whether the text has one word before another.
func before(text, first, second string) bool {
	i := strings.Index(text, first)
	return i >= 0 && i < strings.Index(text, second)
}
