package agent_test

import (
	"context"
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
)

// ownSource is a worker's certificate of a CA of its own.
func ownSource(t *testing.T) *pki.Source {
	t.Helper()
	ca, err := pki.NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(time.Now(), pki.Request{Kind: pki.Worker, Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	source, err := pki.FromPEM(ca.CertPEM(), pair)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func startAgent(t *testing.T, c agent.Config) *agent.Agent {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, err := agent.Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestOwnAuthority: the smallest configuration makes itself a CA. Who has nothing
// of it can do nothing, at any port; the administrator's certificate works, another
// worker joins with one from `berth tls`, and all is the same after a restart.
func TestOwnAuthority(t *testing.T) {
	dir := t.TempDir()
	config := agent.Config{
		Name: "one", Version: "test", DataDir: dir, BindAddr: "127.0.0.1",
		Server: &agent.ServerPart{BootstrapExpect: 1}, Worker: &agent.WorkerPart{Runtime: "fake"},
	}
	a := startAgent(t, config)
	stop := func(a *agent.Agent) {
		t.Helper()
		if err := a.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	own := agent.TLSDir(dir)
	for file, want := range map[string]os.FileMode{"": 0o700, "ca-key.pem": 0o600, "client-admin-key.pem": 0o600, "gossip-key": 0o600} {
		if fi, err := os.Stat(filepath.Join(own, file)); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", file, fi, err)
		}
	}
	await(t, a.Server(), "the node", func(v *fsm.View) bool { _, ok := v.Nodes.Get("one"); return ok })
	strangerGetsNothing(t, a)

	worker := joiner(t, own, a)
	await(t, a.Server(), "the second worker", func(v *fsm.View) bool { _, ok := v.Nodes.Get("two"); return ok })
	stop(worker)
	stop(a)

	a = startAgent(t, config)
	defer stop(a)
	kube, err := kubernetes.NewForConfig(&restclient.Config{Host: "https://" + a.Server().HTTPAddr(), TLSClientConfig: restclient.TLSClientConfig{
		CAFile: filepath.Join(own, "ca.pem"), CertFile: filepath.Join(own, "client-admin.pem"), KeyFile: filepath.Join(own, "client-admin-key.pem"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	await(t, a.Server(), "a leader", func(v *fsm.View) bool { return a.Server().IsLeader() || v.Nodes.Len() == 2 })
	if _, err := kube.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the administrator: %v", err)
	}
}

// joiner starts a worker as the first agent's log says.
func joiner(t *testing.T, own string, first *agent.Agent) *agent.Agent {
	t.Helper()
	files, err := pki.Issue(own, pki.Request{Kind: pki.Worker, Name: "two"}, false)
	if err != nil {
		t.Fatal(err)
	}
	source, err := pki.Open(files)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(own, "gossip-key"))
	if err != nil {
		t.Fatal(err)
	}
	return startAgent(t, agent.Config{
		Name: "two", Version: "test", DataDir: t.TempDir(), BindAddr: "127.0.0.1", TLS: source, EncryptionKey: strings.TrimSpace(string(key)),
		Join: []string{first.GossipAddr()}, RetryInterval: 100 * time.Millisecond, Worker: &agent.WorkerPart{Runtime: "fake"},
	})
}

// strangerGetsNothing is a local user without a certificate, or with one that it
// has made itself.
func strangerGetsNothing(t *testing.T, a *agent.Agent) {
	t.Helper()
	other, err := pki.NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := other.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: "admin", Groups: []string{"system:masters"}})
	if err != nil {
		t.Fatal(err)
	}
	forged, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	for name, certificates := range map[string][]tls.Certificate{"without a certificate": nil, "with a forged one": {forged}} {
		insecure := &tls.Config{InsecureSkipVerify: true, Certificates: certificates, NextProtos: []string{"h2"}}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: insecure.Clone()}}
		for _, path := range []string{"/api/v1/pods", "/metrics", "/berth/v1/snapshot", "/berth/v1/members", "/debug/pprof/", "/apis"} {
			resp, err := client.Get("https://" + a.Server().HTTPAddr() + path)
			if err != nil {
				continue // the handshake failed
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s, %s: %d", name, path, resp.StatusCode)
			}
		}
		client.CloseIdleConnections()
		conn, err := tls.Dial("tcp", a.Server().RPCAddr(), insecure)
		if err != nil {
			continue
		}
		// In TLS 1.3 a client learns from its first read that it was refused.
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: the RPC speaks", name)
		}
		_ = conn.Close()
	}
	plain, err := http.Get("http://" + a.Server().HTTPAddr() + "/api/v1/pods")
	if err == nil {
		_ = plain.Body.Close()
		if plain.StatusCode == http.StatusOK {
			t.Error("the API speaks without TLS")
		}
	}
}
