package agent_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/cluster"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/server"
)

// patience is how long a condition may take on a busy machine.
const patience = time.Minute

func startDev(t *testing.T, c agent.DevConfig) *agent.Dev {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c.Version, c.Runtime = "test", "fake"
	d, err := agent.StartDev(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func stopDev(t *testing.T, d *agent.Dev) {
	t.Helper()
	if err := d.Stop(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func client(t *testing.T, d *agent.Dev, s *server.Server) *kubernetes.Clientset {
	t.Helper()
	pair, err := d.Client()
	if err != nil {
		t.Fatal(err)
	}
	c, err := kubernetes.NewForConfig(&restclient.Config{
		Host:            "https://" + s.HTTPAddr(),
		TLSClientConfig: restclient.TLSClientConfig{CAData: d.CA(), CertData: pair.CertPEM, KeyData: pair.KeyPEM},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// await waits until the server's state satisfies the condition.
func await(t *testing.T, s *server.Server, what string, ok func(v *fsm.View) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		v := s.View()
		if ok(v) {
			return
		}
		if err := s.Feed().Wait(ctx, v.Revision()); err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

func podRuns(key string) func(v *fsm.View) bool {
	return func(v *fsm.View) bool {
		p, ok := v.Pods.Get(key)
		return ok && p.Status.Phase == corev1.PodRunning
	}
}

func pod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "none", Command: []string{"sleep", "1000"},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}},
		}}},
	}
}

// A pod created through one server runs, every server says so, and a cluster
// that is started again from its directory still has it.
func TestDevelopmentCluster(t *testing.T) {
	config := agent.DevConfig{
		DataDir: t.TempDir(), Servers: 3, Workers: 2,
		Capacity: corev1.ResourceList{"cpu": resource.MustParse("4")},
	}
	d := startDev(t, config)
	servers := d.Servers()
	created, err := client(t, d, servers[1]).CoreV1().Pods("default").Create(t.Context(), pod("web", "1"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		await(t, s, "the pod to run as "+s.Name()+" sees it", podRuns("default/web"))
	}
	// A log that is not there is refused with a status before anything is answered.
	logs := func(o *corev1.PodLogOptions) ([]byte, error) {
		return client(t, d, servers[2]).CoreV1().Pods("default").GetLogs("web", o).DoRaw(t.Context())
	}
	if b, err := logs(&corev1.PodLogOptions{}); err != nil {
		t.Errorf("logs: %q, %v", b, err)
	}
	if b, err := logs(&corev1.PodLogOptions{Previous: true}); !apierrors.IsBadRequest(err) ||
		!strings.Contains(string(b), `previous terminated container \"main\" in pod \"web\" not found`) {
		t.Errorf("previous logs: %q, %v", b, err)
	}
	// Nor is a pod admitted whose service account is not there.
	orphan := pod("orphan", "1")
	orphan.Spec.ServiceAccountName = "nobody"
	if _, err := client(t, d, servers[1]).CoreV1().Pods("default").Create(t.Context(), orphan, metav1.CreateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "error looking up service account default/nobody") {
		t.Errorf("without its service account: %v", err)
	}
	verified, err := servers[2].Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !verified.Equal || len(verified.Servers) != 3 {
		t.Errorf("the servers' states differ: %+v", verified)
	}
	// Who reaches its gossip, and has no key, is no member: all users of the machine do.
	stranger := cluster.Config{Name: "stranger", Meta: cluster.Meta{Role: cluster.RoleWorker}, BindAddr: "127.0.0.1", Loopback: true}
	var mismatch *cluster.MismatchError
	if err := joins(t, stranger, servers[0].GossipAddr()); !errors.As(err, &mismatch) {
		t.Errorf("joins without the key: %v", err)
	}
	key, err := os.ReadFile(filepath.Join(config.DataDir, "ca", "gossip-key"))
	if err != nil {
		t.Fatal(err)
	}
	before, _ := servers[0].View().Nodes.Get("worker-1")
	stopDev(t, d)

	d = startDev(t, config)
	defer stopDev(t, d)
	after, _ := d.Servers()[0].View().Nodes.Get("worker-1")
	if after.UID != before.UID || after.Status.NodeInfo.SystemUUID != before.Status.NodeInfo.SystemUUID || before.Status.NodeInfo.SystemUUID == "" {
		t.Errorf("after the restart the worker is another one: %s %s, was %s %s",
			after.UID, after.Status.NodeInfo.SystemUUID, before.UID, before.Status.NodeInfo.SystemUUID)
	}
	if now, err := os.ReadFile(filepath.Join(config.DataDir, "ca", "gossip-key")); err != nil || !bytes.Equal(now, key) {
		t.Errorf("after the restart the key of gossip is another one: %v", err)
	}
	again, err := client(t, d, d.Servers()[0]).CoreV1().Pods("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if again.UID != created.UID {
		t.Errorf("after the restart the pod is another one: %s, was %s", again.UID, created.UID)
	}
}

// joins says why somebody can not join the members of gossip at an address.
func joins(t *testing.T, c cluster.Config, addr string) error {
	t.Helper()
	p, err := cluster.New(c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Join(t.Context(), addr)
	return errors.Join(err, p.Shutdown())
}

// Ending the pods of a cluster leaves none behind, nor what makes them again.
func TestEndPods(t *testing.T) {
	d := startDev(t, agent.DevConfig{DataDir: t.TempDir(), Servers: 1, Workers: 1})
	defer stopDev(t, d)
	s := d.Servers()[0]
	kube := client(t, d, s)
	pods := kube.CoreV1().Pods("default")
	for _, p := range []*corev1.Pod{pod("runs", "10m"), pod("waits", "100000")} {
		if _, err := pods.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	labels, replicas := map[string]string{"app": "kept"}, int32(2)
	kept := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("kept", "10m").Spec},
	}}
	if _, err := kube.AppsV1().ReplicaSets("default").Create(t.Context(), kept, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, s, "the pod to run", podRuns("default/runs"))
	// The controllers of these are Kubernetes' own.
	meta := metav1.ObjectMeta{Name: "made"}
	of := func(kind string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
		labels := map[string]string{"of": kind}
		return &metav1.LabelSelector{MatchLabels: labels},
			corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("made", "10m").Spec}
	}
	deployment := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	deployment.Spec.Selector, deployment.Spec.Template = of("deployment")
	set := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{ServiceName: "made"}}
	set.Spec.Selector, set.Spec.Template = of("set")
	daemons := &appsv1.DaemonSet{ObjectMeta: meta}
	daemons.Spec.Selector, daemons.Spec.Template = of("daemons")
	job := &batchv1.Job{ObjectMeta: meta}
	_, job.Spec.Template = of("job")
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	for _, create := range []func() error{
		func() error {
			_, err := kube.AppsV1().Deployments("default").Create(t.Context(), deployment, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := kube.AppsV1().StatefulSets("default").Create(t.Context(), set, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := kube.AppsV1().DaemonSets("default").Create(t.Context(), daemons, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := kube.BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{})
			return err
		},
	} {
		if err := create(); err != nil {
			t.Fatal(err)
		}
	}
	await(t, s, "the workloads to have their pods", func(v *fsm.View) bool { return v.Pods.Len() == 9 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.EndPods(ctx); err != nil {
		t.Fatal(err)
	}
	if n := s.View().Pods.Len(); n != 0 {
		t.Errorf("%d pods are left", n)
	}
	for _, kind := range fsm.ObjectKinds() {
		if kind.Workload == nil {
			continue
		}
		s.View().Objects.Scan(kind.Resource+"/", func(key string, o *fsm.Object) bool {
			if o.Value.GetDeletionTimestamp() == nil {
				t.Errorf("%s makes its pods again", key)
			}
			return true
		})
	}
}

func TestStartRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		config agent.Config
		want   string
	}{
		{"no part", agent.Config{Name: "a"}, "neither a server nor a worker"},
		{
			"port in use",
			agent.Config{Name: "a", DataDir: t.TempDir(), BindAddr: "127.0.0.1", Ports: agent.Ports{HTTP: n}, Server: &agent.ServerPart{BootstrapExpect: 1}},
			"port " + port + " for the API is in use on 127.0.0.1 by another process",
		},
		{
			"a worker without a certificate",
			agent.Config{Name: "a", DataDir: t.TempDir(), BindAddr: "127.0.0.1", Worker: &agent.WorkerPart{Runtime: "fake"}},
			"run `berth tls worker a -d DIR`",
		},
		{
			"a server that joins without a certificate",
			agent.Config{Name: "a", DataDir: t.TempDir(), BindAddr: "127.0.0.1", Join: []string{"127.0.0.1"}, Server: &agent.ServerPart{BootstrapExpect: 1}},
			"run `berth tls server a -d DIR`",
		},
		{
			"one of three servers without a certificate",
			agent.Config{Name: "a", DataDir: t.TempDir(), BindAddr: "127.0.0.1", Server: &agent.ServerPart{BootstrapExpect: 3}},
			"a certificate of the cluster's CA is missing",
		},
		{
			"unknown runtime",
			agent.Config{Name: "a", DataDir: t.TempDir(), BindAddr: "127.0.0.1", TLS: ownSource(t), Worker: &agent.WorkerPart{Runtime: "docker"}},
			`there is no runtime "docker"`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := agent.Start(t.Context(), tt.config)
			if err == nil {
				err = errors.Join(errors.New("it started"), a.Stop(t.Context()))
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %q, want it to say %q", err, tt.want)
			}
		})
	}
}
