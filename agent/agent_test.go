package agent_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/pki"
)

func TestSmoke(t *testing.T) {
	ctx := context.Background()
	log := hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: os.Stderr})
	ca, err := pki.NewCA(time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var join []string
	var agents []*agent.Agent
	source := func(kind pki.Kind, name string) *pki.Source {
		pair, err := ca.Issue(time.Now(), pki.Request{Kind: kind, Name: name, IPs: nil})
		if err != nil {
			t.Fatal(err)
		}
		src, err := pki.FromPEM(ca.CertPEM(), pair)
		if err != nil {
			t.Fatal(err)
		}
		return src
	}
	for i := range 3 {
		name := fmt.Sprintf("s%d", i+1)
		a, err := agent.Start(ctx, agent.Config{
			Name: name, Version: "test", DataDir: t.TempDir(), BindAddr: "127.0.0.1", Join: join,
			TLS: source(pki.Server, name), CA: ca.CertPEM(), RetryInterval: time.Second,
			Server: &agent.ServerPart{BootstrapExpect: 3}, Logger: log,
		})
		if err != nil {
			t.Fatal(err)
		}
		agents = append(agents, a)
		join = append(join, a.GossipAddr())
	}
	for i := range 3 {
		name := fmt.Sprintf("w%d", i+1)
		a, err := agent.Start(ctx, agent.Config{
			Name: name, Version: "test", DataDir: t.TempDir(), BindAddr: "127.0.0.1", Join: join,
			TLS: source(pki.Worker, name), CA: ca.CertPEM(),
			Worker: &agent.WorkerPart{Runtime: "fake"}, Logger: log,
		})
		if err != nil {
			t.Fatal(err)
		}
		agents = append(agents, a)
	}
	defer func() {
		for i := len(agents) - 1; i >= 0; i-- {
			if err := agents[i].Stop(ctx); err != nil {
				t.Error(err)
			}
		}
	}()
	pair, err := ca.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: "admin", Groups: []string{"system:masters"}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := kubernetes.NewForConfig(&restclient.Config{
		Host:            "https://" + agents[1].Server().HTTPAddr(),
		TLSClientConfig: restclient.TLSClientConfig{CAData: ca.CertPEM(), CertData: pair.CertPEM, KeyData: pair.KeyPEM, ServerName: pki.ServerDNSName},
	})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err == nil && len(nodes.Items) == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err, nodes)
		}
		time.Sleep(100 * time.Millisecond)
	}
	_, err = c.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x", Command: []string{"sleep", "1000"},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		p, err := c.CoreV1().Pods("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if p.Status.Phase == corev1.PodRunning {
			t.Log(p.Spec.NodeName, p.Status.Conditions)
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(p.Spec.NodeName, p.Status)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
