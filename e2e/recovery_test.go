package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/fleet"
)

// TestWorkersFollowARecoveredServer: the server that is left of three was behind,
// and the worker had come further than it. After the recovery revisions are above
// all that the worker saw, and it goes on running pods.
func TestWorkersFollowARecoveredServer(t *testing.T) {
	c := newCluster(t,
		server("server-1", "bootstrap_expect = 3"), server("server-2", "bootstrap_expect = 3"), server("server-3", "bootstrap_expect = 3"),
		worker("worker-1", `runtime = "fake"`))
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	var kept *fleet.Process
	for _, s := range c.followers(t) {
		if s != c.Servers()[0] {
			kept = s
		}
	}
	create(t, c.Reader().Kube, pod("default", "first", "exec sleep 1000"))
	c.waitRunning(t, "default", "first")
	c.eventually(t, "the server that will be left to have it", func(ctx context.Context) error {
		_, err := kept.Kube.CoreV1().Pods("default").Get(ctx, "first", metav1.GetOptions{})
		return err
	})

	kept.Signal(syscall.SIGSTOP)
	var later []string
	for i := range 10 {
		later = append(later, fmt.Sprintf("later-%d", i))
		create(t, c.Reader().Kube, pod("default", later[i], "exec sleep 1000"))
	}
	c.waitRunning(t, "default", later...) // the worker has seen that
	seen, err := c.Reader().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Servers() {
		s.Kill() // the one that is left, too: it must not catch up
	}
	peers := fmt.Sprintf(`[{"id": %q, "address": "127.0.0.1:%d", "non_voter": false}]`, kept.Name, kept.Ports.Raft)
	if err := os.WriteFile(filepath.Join(kept.DataDir, "server", "raft", "peers.json"), []byte(peers), 0o600); err != nil {
		t.Fatal(err)
	}
	c.restart(t, kept)
	if leader := c.waitLeader(t); leader != kept {
		t.Fatalf("%s leads", leader.Name)
	}
	now, err := kept.Status(t.Context())
	if err != nil || now.Revision <= seen.Revision {
		t.Errorf("the revision is %+v after %d, %v", now, seen.Revision, err)
	}
	create(t, kept.Kube, pod("default", "after", "exec sleep 1000"))
	c.waitRunning(t, "default", "first", "after")
}
