package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/api/operator"
)

const quickAutopilot = `autopilot { server_stabilization_time = "1s" }`

// What docs/operations.md tells operators to do, done: a snapshot and its
// restore, servers that come and go, and a quorum that is lost for good.
func TestServersAndTheirState(t *testing.T) {
	t.Parallel() // it waits, mostly
	c := newCluster(t,
		server("server-1", "bootstrap_expect = 3", quickAutopilot),
		server("server-2", "bootstrap_expect = 3", quickAutopilot),
		server("server-3", "bootstrap_expect = 3", quickAutopilot))
	c.waitLeader(t)
	c.put(t, "before")
	for _, step := range []struct {
		name string
		run  func(t *testing.T, c *cluster)
	}{
		{"snapshot and restore", saveAndRestore},
		{"a fourth server", addServer},
		{"a server without a vote", addNonVoter},
		{"leadership handed over", transferLeader},
		{"a server removed", removeServer},
		{"a lost quorum", loseQuorum},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, c) }) {
			return // the next step stands on this one
		}
	}
}

// put stores a ConfigMap.
func (c *cluster) put(t *testing.T, name string) {
	t.Helper()
	c.eventually(t, "ConfigMap "+name+" to be stored", func(ctx context.Context) error {
		_, err := c.Reader().Kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	})
}

// stored reports whether a server has a ConfigMap.
func stored(t *testing.T, s *fleet.Process, name string) bool {
	t.Helper()
	_, err := s.Kube.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatalf("%s: %v", s.Name, err)
	}
	return err == nil
}

func saveAndRestore(t *testing.T, c *cluster) {
	file := filepath.Join(c.Dir, "backup.snapshot")
	has(t, "save", c.berth(t, "operator", "snapshot", "save", file), "written to "+file)
	has(t, "inspect", c.berth(t, "operator", "snapshot", "inspect", file), "Digest:", "other objects:")
	c.put(t, "after")
	revision := func() int64 {
		status, err := c.Reader().Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return status.Revision
	}
	old := revision()
	damaged, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged[len(damaged)/2] ^= 1
	if err := os.WriteFile(file+".damaged", damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, c.env, "", "operator", "snapshot", "restore", file+".damaged")
	if r.code != 1 || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, file+".damaged") {
		t.Errorf("restore of a damaged file: status %d, %q", r.code, r.err)
	}
	if !stored(t, c.Servers()[0], "after") {
		t.Fatal("a damaged snapshot changed something")
	}
	has(t, "restore", c.berth(t, "operator", "snapshot", "restore", file), "restored at index")
	for _, s := range c.Servers() {
		if !stored(t, s, "before") || stored(t, s, "after") {
			t.Errorf("%s does not have what the snapshot has", s.Name)
		}
	}
	if now := revision(); now <= old {
		t.Errorf("the revision went from %d to %d", old, now)
	}
	c.put(t, "later")
	c.verify(t, 3)
}

// peers are the servers that keep the log.
func (c *cluster) peers(ctx context.Context) (map[string]operator.RaftServer, error) {
	var conf operator.RaftConfiguration
	if err := c.Reader().Call(ctx, "GET", operator.PathRaftConfiguration, &conf); err != nil {
		return nil, err
	}
	out := map[string]operator.RaftServer{}
	for _, s := range conf.Servers {
		out[s.ID] = s
	}
	return out, nil
}

// join adds a server and waits until it is what it should be.
func (c *cluster) join(t *testing.T, name, suffrage string, options ...string) *fleet.Process {
	t.Helper()
	added, err := c.Add(server(name, append(options, quickAutopilot)...))
	if err == nil {
		err = added[0].Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.waitSuffrage(t, name, suffrage)
	if !stored(t, added[0], "before") {
		t.Errorf("%s does not serve what the others have", name)
	}
	return added[0]
}

func (c *cluster) waitSuffrage(t *testing.T, name, suffrage string) {
	t.Helper()
	c.eventually(t, name+" to be a "+suffrage, func(ctx context.Context) error {
		peers, err := c.peers(ctx)
		if err == nil && peers[name].Suffrage != suffrage {
			err = fmt.Errorf("the servers are %+v", peers)
		}
		return err
	})
}

func addServer(t *testing.T, c *cluster) {
	c.join(t, "server-4", "voter", "bootstrap_expect = 0")
	c.verify(t, 4)
}

func addNonVoter(t *testing.T, c *cluster) {
	s := c.join(t, "server-5", "nonvoter", "bootstrap_expect = 0", "non_voter = true")
	c.eventually(t, "it to know what it is", func(ctx context.Context) error {
		status, err := s.Status(ctx)
		if err == nil && status.State != "learner" {
			err = fmt.Errorf("its state is %s", status.State)
		}
		return err
	})
	r := run(t, c.env, "", "operator", "transfer-leader", "server-5")
	if r.code != 1 || !strings.Contains(r.err, "no vote") {
		t.Errorf("leadership for a server without a vote: status %d, %q", r.code, r.err)
	}
	c.verify(t, 5)
}

func transferLeader(t *testing.T, c *cluster) {
	has(t, "transfer-leader", c.berth(t, "operator", "transfer-leader", "server-4"), "leadership went from", "to server-4")
	if leader := c.waitLeader(t); leader.Name != "server-4" {
		t.Errorf("%s leads", leader.Name)
	}
}

func removeServer(t *testing.T, c *cluster) {
	for _, bad := range []struct{ id, sentence string }{
		{"server-9", "server-9"}, {"server-4", "it is alive"},
	} {
		r := run(t, c.env, "", "operator", "raft", "remove-peer", bad.id)
		if r.code != 1 || !strings.Contains(r.err, bad.sentence) || strings.Count(r.err, "\n") != 1 {
			t.Errorf("remove %s: status %d, %q", bad.id, r.code, r.err)
		}
	}
	four := c.Servers()[3]
	four.Signal(syscall.SIGTERM)
	select {
	case <-four.Exited():
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
	c.waitLeader(t)
	c.eventually(t, "the server to be removed", func(context.Context) error {
		if r := run(t, c.env, "", "operator", "raft", "remove-peer", "server-4"); r.code != 0 {
			return errors.New(r.err)
		}
		return nil
	})
	peers, err := c.peers(t.Context())
	if _, still := peers["server-4"]; err != nil || still || len(peers) != 4 {
		t.Errorf("the servers are %+v, %v", peers, err)
	}
	c.verify(t, 4)
}

// loseQuorum destroys all servers but one, and lets that one go on.
func loseQuorum(t *testing.T, c *cluster) {
	kept := c.Servers()[0]
	status, err := kept.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Servers() {
		if s == kept {
			continue
		}
		s.Kill()
		if err := os.RemoveAll(s.DataDir); err != nil {
			t.Fatal(err)
		}
	}
	// The one that is left tells how far it is, and does nothing else.
	c.eventually(t, "the majority to be missed", func(ctx context.Context) error {
		code, err := post(ctx, kept, `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "never"}}`)
		if err == nil && code != http.StatusServiceUnavailable {
			err = fmt.Errorf("a write is answered with status %d", code)
		}
		return err
	})
	has(t, "status", c.berth(t, "--addresses", kept.HTTP(), "operator", "status"), "candidate", "Committed:")
	kept.Kill()
	peersFile := filepath.Join(kept.DataDir, "server", "raft", "peers.json")
	wrong := `[{"id": "server-2", "address": "127.0.0.1:1"}]`
	if err := os.WriteFile(peersFile, []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, nil, "", "agent", "-config", kept.Config)
	if r.code != 1 || !strings.Contains(r.err, `peers.json: it does not name this server, "server-1"`) {
		t.Errorf("a wrong peers.json: status %d, %q", r.code, r.err)
	}
	right := fmt.Sprintf(`[{"id": "server-1", "address": "127.0.0.1:%d", "non_voter": false}]`, kept.Ports.Raft)
	if err := os.WriteFile(peersFile, []byte(right), 0o600); err != nil {
		t.Fatal(err)
	}
	c.restart(t, kept)
	if leader := c.waitLeader(t); leader != kept {
		t.Fatalf("%s leads", leader.Name)
	}
	if !stored(t, kept, "before") || !stored(t, kept, "later") {
		t.Error("the recovered server has lost something")
	}
	now, err := kept.Status(t.Context())
	if err != nil || now.ClusterID != status.ClusterID || now.Revision < status.Revision {
		t.Errorf("before %+v, now %+v, %v", status, now, err)
	}
	if _, err := os.Stat(peersFile + ".done"); err != nil {
		t.Errorf("peers.json would be read again: %v", err)
	}
	c.put(t, "recovered")
	// Two new ones take the lost ones' places, with empty disks.
	for _, s := range c.Servers()[1:3] {
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		c.waitSuffrage(t, s.Name, "voter")
	}
	for _, s := range c.Servers()[:3] {
		if !stored(t, s, "before") || !stored(t, s, "recovered") {
			t.Errorf("%s has not all", s.Name)
		}
	}
	c.verify(t, 3)
}

// post creates a ConfigMap with one request, which client-go would repeat.
func post(ctx context.Context, s *fleet.Process, body string) (code int, err error) {
	trip, err := transportOf(s)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.HTTP()+"/api/v1/namespaces/default/configmaps", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := trip.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
