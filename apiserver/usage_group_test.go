package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/sample"
)

// fakeUsage knows nodes that end in "-node", and says of each that it has every pod
// that is not called quiet, wherever it is, and one that is not there.
type fakeUsage struct{ backend Backend }

func (u fakeUsage) Of(context.Context, []string) (Samples, error) { return u, nil }

func (u fakeUsage) Sample(node string) (sample.Taken, bool) {
	if !strings.HasSuffix(node, "-node") {
		return sample.Taken{}, false
	}
	n := &sample.Node{WindowNano: int64(10 * time.Second), Used: sample.Amount{NanoCPU: 1_500_000_000, MemoryBytes: 3 << 30}}
	say := func(uid string) {
		a := sample.Amount{NanoCPU: 250_000_000, MemoryBytes: 64 << 20}
		n.Pods = append(n.Pods, sample.Pod{UID: uid, Containers: []sample.Container{{Name: "main", Used: a}, {Name: "invented", Used: a}}})
	}
	say("not-there")
	u.backend.View().Pods.Scan("", func(_ string, pod *corev1.Pod) bool {
		if pod.Name != "quiet" {
			say(string(pod.UID))
		}
		return true
	})
	return sample.Taken{At: time.Unix(1_700_000_000, 0), Node: n}, true
}

// fakeNodes are workers that answer with what they were asked.
type fakeNodes struct{}

func (fakeNodes) Open(_ context.Context, node string) (net.Conn, error) {
	if strings.HasPrefix(node, "away") {
		return nil, apierrors.NewServiceUnavailable("the worker is not connected")
	}
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		r, err := http.ReadRequest(bufio.NewReader(theirs))
		if err != nil {
			return
		}
		text := fmt.Sprintf("<script>%s %s of %s, authorization %q, cookie %q", r.Method, r.URL, r.Host, r.Header.Get("Authorization"), r.Header.Get("Cookie"))
		resp := &http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
			Header: http.Header{"Content-Type": {"text/html"}, "Set-Cookie": {"a=b"}, "Location": {"https://elsewhere"}}}
		if strings.HasPrefix(node, "leads") {
			resp.StatusCode = http.StatusFound
		}
		_ = resp.Write(theirs)
	}()
	return ours, nil
}

func usageClient(t *testing.T, s *testServer, user string, groups ...string) metricsclient.Interface {
	t.Helper()
	c, err := metricsclient.NewForConfig(s.config(t, user, groups...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What nodes and pods use is shown as Kubernetes' metrics server shows it; of what a
// worker says, what is true of the state.
func TestUsage(t *testing.T) {
	s := share(t)
	pods, ns, node := podsOn(t, s, "runs", "waits", "quiet", "elsewhere")
	other := ns + "-silent"
	s.node(t, other)
	for name, at := range map[string]string{"runs": node, "quiet": node, "elsewhere": other} {
		if err := bind(pods, name, at); err != nil {
			t.Fatal(err)
		}
	}
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		p := &list.Items[i]
		if p.Spec.NodeName != "" {
			p.Status.Phase = corev1.PodRunning
			report := fsm.PodReport{Key: fsm.PodKey(ns, p.Name), UID: string(p.UID)}
			report.Status.Object = &p.Status
			s.double.must(t, &fsm.ReportPods{Node: p.Spec.NodeName, Reports: []fsm.PodReport{report}})
		}
	}

	usage := usageClient(t, s, "root", "system:masters").MetricsV1beta1()
	got, err := usage.PodMetricses(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Items) != 1 || got.Items[0].Name != "runs" {
		t.Fatalf("the pods are %+v", got.Items)
	}
	one, err := usage.PodMetricses(ns).Get(t.Context(), "runs", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(one.Containers) != 1 || one.Containers[0].Name != "main" || one.Containers[0].Usage.Cpu().MilliValue() != 250 ||
		one.Containers[0].Usage.Memory().Value() != 64<<20 || one.Window.Duration != 10*time.Second || one.Timestamp.Unix() != 1_700_000_000 {
		t.Errorf("it uses %+v", one)
	}
	for _, name := range []string{"waits", "quiet", "elsewhere", "nobody"} {
		if _, err := usage.PodMetricses(ns).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("of %s: %v", name, err)
		}
	}
	n, err := usage.NodeMetricses().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil || n.Usage.Cpu().MilliValue() != 1500 || n.Usage.Memory().Value() != 3<<30 {
		t.Errorf("the node uses %+v, %v", n, err)
	}
	if _, err := usage.NodeMetricses().Get(t.Context(), other, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("of a silent node: %v", err)
	}
	nodes, err := usage.NodeMetricses().List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + node})
	if err != nil || len(nodes.Items) != 1 {
		t.Errorf("the nodes are %+v, %v", nodes, err)
	}
	none, err := usage.PodMetricses(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "no=such"})
	if err != nil || len(none.Items) != 0 {
		t.Errorf("of no pods: %+v, %v", none, err)
	}
	if _, err := usage.PodMetricses(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}); !apierrors.IsBadRequest(err) {
		t.Errorf("by a field that is not known: %v", err)
	}
	k := newKubectl(t, s, ns)
	k.want("", []string{"top", "pods"}, "NAME", "runs", "250m", "64Mi")
	k.want("", []string{"top", "pods", "--containers", "--sort-by=cpu"}, "main", "250m")
	k.want("", []string{"top", "node", node}, "1500m", "3072Mi")
	k.want("", []string{"get", "pods.metrics.k8s.io"}, "CPU", "250m", "64Mi", "10s")
	k.want("", []string{"explain", "pods", "--api-version=metrics.k8s.io/v1beta1"}, "PodMetrics", "window")
}

// Who sees pods sees what they use.
func TestWhoSeesUsage(t *testing.T) {
	s := share(t)
	if _, err := usageClient(t, s, "ann").MetricsV1beta1().NodeMetricses().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("somebody who is known: %v", err)
	}
	worker, err := metricsclient.NewForConfig(s.configOf(t, pki.Request{Kind: pki.Worker, Name: "n"}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := worker.MetricsV1beta1().NodeMetricses().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a machine: %v", err)
	}
}

// A worker's answer is passed on as data; it learns of the request no more than it needs.
func TestNodeProxy(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	node, away, leads := ns+"-node", "away-"+ns, "leads-"+ns
	for _, name := range []string{node, away, leads} {
		s.node(t, name)
	}
	kube := s.client(t).CoreV1().RESTClient()
	path := func(node string) string { return "/api/v1/nodes/" + node + "/proxy/stats/summary" }
	b, err := kube.Get().AbsPath(path(node)).Param("only_cpu_and_memory", "true").SetHeader("Cookie", "secret").SetHeader("Authorization", "Bearer x").DoRaw(t.Context())
	want := fmt.Sprintf("<script>GET /stats/summary?only_cpu_and_memory=true of %s, authorization \"\", cookie \"\"", node)
	if err != nil || string(b) != want {
		t.Errorf("it answers %q, %v; want %q", b, err, want)
	}
	for _, whole := range []string{node + ":10250", "https:" + node + ":10250", node + ":"} {
		if _, err := kube.Get().AbsPath(path(whole)).DoRaw(t.Context()); err != nil {
			t.Errorf("%s: %v", whole, err)
		}
	}
	for _, wrong := range []string{node + ":9100", "ftp:" + node + ":10250", ":10250"} {
		if err := kube.Get().AbsPath(path(wrong)).Do(t.Context()).Error(); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	if err := kube.Get().AbsPath(path(away)).Do(t.Context()).Error(); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a worker that is away: %v", err)
	}
	if err := kube.Get().AbsPath(path(leads)).Do(t.Context()).Error(); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a worker that leads elsewhere: %v", err)
	}
	if err := kube.Get().AbsPath(path("nobody")).Do(t.Context()).Error(); !apierrors.IsNotFound(err) {
		t.Errorf("no node: %v", err)
	}
	if err := kube.Post().AbsPath(path(node)).Do(t.Context()).Error(); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("something is changed: %v", err)
	}
	if err := s.clientOf(t, "ann").CoreV1().RESTClient().Get().AbsPath(path(node)).Do(t.Context()).Error(); !apierrors.IsForbidden(err) {
		t.Errorf("somebody who may not: %v", err)
	}
}
