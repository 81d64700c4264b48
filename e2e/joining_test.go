package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/agent/fleet"
)

// joiner is a worker that has a token and nothing else.
func joiner(s *fleet.Process, name, tokenFile string) fleet.Spec {
	w := worker(name, fmt.Sprintf("join_token_file = %q\n  join_api = [%q]", tokenFile, s.HTTP()))
	w.Bare = true
	return w
}

// Two machines join by one token, run pods, and come back when it is gone; a third one comes too late.
func TestJoiningByToken(t *testing.T) {
	c := newCluster(t, server("s1", "bootstrap_expect = 1"))
	s := c.waitLeader(t)
	made := c.berth(t, "token", "create", "--ttl", "1h", "--description", "rack 7")
	file, err := c.WriteFile("token", made)
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := strings.Cut(made, ".")
	if list := c.berth(t, "token", "list"); !strings.Contains(list, id) || !strings.Contains(list, "rack 7") || strings.Contains(list, strings.TrimSpace(made)[7:23]) {
		t.Errorf("the list of tokens is\n%s", list)
	}
	added, err := c.Add(joiner(s, "w1", file), joiner(s, "w2", file))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ready := func(name string) {
		t.Helper()
		c.eventually(t, name+" to be ready", func(ctx context.Context) error {
			n, err := s.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err == nil && !nodeReady(n) {
				err = errors.New("it is not ready")
			}
			return err
		})
	}
	ready("w1")
	ready("w2")
	namespace := c.namespace(t, "joined")
	create(t, s.Kube, pod(namespace, "p1", "sleep 1000", on("w1")))
	c.waitRunning(t, namespace, "p1")

	c.berth(t, "token", "delete", id)
	added[0].Kill()
	if err := added[0].Start(); err != nil {
		t.Fatal(err)
	}
	create(t, s.Kube, pod(namespace, "p2", "sleep 1000", on("w1")))
	c.waitRunning(t, namespace, "p1", "p2")

	late, err := c.Add(joiner(s, "w3", file))
	if err != nil {
		t.Fatal(err)
	}
	if err := late[0].Start(); err != nil {
		t.Fatal(err)
	}
	c.eventually(t, "w3 to be told", func(context.Context) error {
		if late[0].Running() {
			return errors.New("it runs")
		}
		return nil
	})
	if log := late[0].LogTail(20); !strings.Contains(log, "this worker is not let in") {
		t.Errorf("it says\n%s", log)
	}
	if left, err := filepath.Glob(filepath.Join(late[0].DataDir, "tls", "*.pem")); err != nil || len(left) > 0 {
		t.Errorf("it has %v: %v", left, err)
	}
	if text, err := os.ReadFile(added[0].Log); err != nil || strings.Contains(string(text), strings.TrimSpace(made)[7:23]) {
		t.Errorf("the token is in the log: %v", err)
	}
}

// joined are so many servers, of which one leads, and two workers, w1 and w2, that join it by a token.
func joined(t *testing.T, servers int) (c *cluster, s *fleet.Process, workers []*fleet.Process) {
	t.Helper()
	var specs []fleet.Spec
	for i := range servers {
		specs = append(specs, server(fmt.Sprint("s", i+1), fmt.Sprint("bootstrap_expect = ", servers)))
	}
	c = newCluster(t, specs...)
	s = c.waitLeader(t)
	file, err := c.WriteFile("token", c.berth(t, "token", "create"))
	if err != nil {
		t.Fatal(err)
	}
	if workers, err = c.Add(joiner(s, "w1", file), joiner(s, "w2", file)); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c, s, workers
}

// A machine was stolen: by one command it is out, at the API of every server, at the RPC and with what it has open, and no
// other is. How long that takes is told.
func TestRevokedNode(t *testing.T) {
	c, s, added := joined(t, 3)
	node := func(at, p *fleet.Process) kubernetes.Interface {
		config := rest.AnonymousClientConfig(at.RESTConfig())
		config.QPS = -1
		config.CertFile = filepath.Join(p.DataDir, "tls", "node.pem")
		config.KeyFile = config.CertFile
		kube, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return kube
	}
	for _, p := range added {
		c.eventually(t, p.Name+" to be ready", func(ctx context.Context) error {
			n, err := s.Kube.CoreV1().Nodes().Get(ctx, p.Name, metav1.GetOptions{})
			if err == nil && !nodeReady(n) {
				err = errors.New("it is not ready")
			}
			return err
		})
	}
	w2 := node(s, added[1])
	logEnds := followedLog(t, c, s, "w1")
	start := make(chan struct{})
	outs := map[string]<-chan time.Time{"a log that is followed": endOf(logEnds)}
	for _, at := range c.Servers() {
		requests := node(at, added[0]).CertificatesV1().CertificateSigningRequests()
		watch, err := requests.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Stop()
		over := make(chan struct{})
		go func() {
			defer close(over)
			for range watch.ResultChan() { // until the server ends it
			}
		}()
		outs["a watch at "+at.Name] = endOf(over)
		outs["the API of "+at.Name] = endOf(polled(t, start, func() bool {
			_, err := requests.List(t.Context(), metav1.ListOptions{})
			return apierrors.IsForbidden(err)
		}))
	}
	outs["the RPC"] = endOf(polled(t, start, func() bool { return strings.Contains(added[0].LogTail(50), "its certificate is revoked") }))
	began := time.Now()
	close(start)
	if out := c.berth(t, "node", "revoke", "w1"); !strings.Contains(out, "node w1 revoked") {
		t.Errorf("it says %q", out)
	}
	t.Logf("the command takes %s", time.Since(began))
	for what, out := range outs {
		c.eventually(t, what+" to end for w1", func(context.Context) error {
			select {
			case at := <-out:
				t.Logf("w1 is out of %s after %s", what, at.Sub(began))
				return nil
			default:
				return errors.New("it goes on")
			}
		})
	}
	if _, err := w2.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("w2 is out as well: %v", err)
	}
}

// endOf tells when something has ended.
func endOf(what <-chan struct{}) <-chan time.Time {
	at := make(chan time.Time, 1)
	go func() {
		<-what
		at <- time.Now()
	}()
	return at
}

// polled is closed when something is so that is asked often, from start on, or when the test ends.
func polled(t *testing.T, start <-chan struct{}, is func() bool) <-chan struct{} {
	so := make(chan struct{})
	go func() {
		defer close(so)
		<-start
		often := time.NewTicker(5 * time.Millisecond)
		defer often.Stop()
		for !is() {
			select {
			case <-often.C:
			case <-t.Context().Done():
				return
			}
		}
	}()
	return so
}

// followedLog follows the log of a pod on a node, which says something and goes on; what it gives is closed when that ends.
func followedLog(t *testing.T, c *cluster, s *fleet.Process, node string) <-chan struct{} {
	t.Helper()
	namespace := c.namespace(t, "revoked")
	create(t, s.Kube, pod(namespace, "talks", "echo said; sleep 1000", on(node)))
	c.waitRunning(t, namespace, "talks")
	log, err := s.Kube.CoreV1().Pods(namespace).GetLogs("talks", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(log, make([]byte, len("said"))); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, log) // how it ends is the client's to say
		_ = log.Close()
	}()
	return ended
}
