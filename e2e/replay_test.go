package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftlog"
)

// replayed is what `berth replay -o json` says.
type replayed struct {
	Plans, Decisions, Bindings, Preemptions, Failures, Different int

	Differences []struct{ Pod, Recorded, Decided string }
}

// A server's log is decided again, decision for decision, across restarts; and one decision that is not the scheduler's
// is found.
func TestReplay(t *testing.T) {
	const offers = `capacity { cpu = "4" }`
	c := newCluster(t, server("solo", "bootstrap_expect = 1"), worker("one", `runtime = "fake"`, offers), worker("two", `runtime = "fake"`, offers))
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	solo := c.Servers()[0]
	makeClass(t, c, "low", 1)
	makeClass(t, c, "high", 100)
	const ns = metav1.NamespaceDefault
	soon := func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64) }
	for i := range 10 {
		create(t, c.Reader().Kube, pod(ns, fmt.Sprintf("low-%d", i), "sleep", cpu("1"), class("low"), soon))
	}
	bound := func(names ...string) {
		t.Helper()
		c.eventually(t, fmt.Sprintf("%v to be bound", names), func(ctx context.Context) error {
			for _, name := range names {
				p, err := c.Reader().Kube.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if p.Spec.NodeName == "" {
					return fmt.Errorf("%s is not bound", name)
				}
			}
			return nil
		})
	}
	bound("low-0", "low-1", "low-2")
	create(t, c.Reader().Kube, pod(ns, "high-0", "sleep", cpu("3"), class("high")), pod(ns, "huge", "sleep", cpu("9"), class("high")))
	bound("high-0")
	solo.Signal(syscall.SIGTERM)
	<-solo.Exited()
	c.restart(t, solo)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	create(t, c.Reader().Kube, pod(ns, "high-1", "sleep", cpu("2"), class("high")))
	bound("high-1")
	has(t, "why", c.berth(t, "why", "high-0", "-n", ns), "is bound to", "Room was made for it")

	dir := filepath.Join(solo.DataDir, "server")
	if r := run(t, c.env, "", "replay", "--data-dir", dir); r.code != 1 {
		t.Errorf("the log of a server that runs was replayed: exit status %d\n%s", r.code, r.out)
	} else {
		has(t, "the error", r.err, "is in use: stop its server, or copy the directory")
	}
	stop(c, solo)
	out := replayOf(t, c, dir, 0)
	if out.Different != 0 || out.Preemptions < 2 || out.Failures == 0 || out.Bindings < 8 {
		t.Errorf("the replay says %+v", out)
	}
	has(t, "replay", c.berth(t, "replay", "--data-dir", dir), "all decisions are equal")
	has(t, "replay of the agent's data_dir", c.berth(t, "replay", "--data-dir", solo.DataDir), "all decisions are equal")

	pod := alter(t, dir)
	out = replayOf(t, c, dir, 1)
	if out.Different == 0 || len(out.Differences) == 0 || out.Differences[0].Pod != pod {
		t.Errorf("the binding of %s was altered; the replay says %+v", pod, out)
	}
}

func stop(c *cluster, p *fleet.Process) {
	for _, w := range c.Workers() {
		w.Kill()
	}
	p.Signal(syscall.SIGTERM)
	<-p.Exited()
}

func replayOf(t *testing.T, c *cluster, dir string, code int) replayed {
	t.Helper()
	r := run(t, c.env, "", "replay", "--data-dir", dir, "-o", "json")
	if r.code != code {
		t.Fatalf("exit status %d, want %d\n%s%s", r.code, code, r.out, r.err)
	}
	var out replayed
	if err := json.Unmarshal([]byte(r.out), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// alter gives the last pod that was bound in a log another node, and returns the pod.
func alter(t *testing.T, dir string) string {
	t.Helper()
	store, err := raftlog.Open(filepath.Join(dir, "raft", "log"), raftlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	last, err := store.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	var after []*raft.Log
	for i := last; i > 0; i-- {
		l := new(raft.Log)
		if err := store.GetLog(i, l); err != nil {
			t.Fatal(err)
		}
		after = append([]*raft.Log{l}, after...)
		if l.Type != raft.LogCommand {
			continue
		}
		h, ps, err := fsm.DecodeEntry(l.Data)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ps {
			plan, ok := p.Command.(*fsm.ApplyPlan)
			if !ok || len(plan.Bindings) == 0 {
				continue
			}
			b := &plan.Bindings[0]
			b.Node = "three"
			if l.Data, err = fsm.EncodeEntry(h, ps); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(store.DeleteRange(i, last), store.StoreLogs(after)); err != nil {
				t.Fatal(err)
			}
			return b.Key
		}
	}
	t.Fatal("no binding is in the log")
	return ""
}
