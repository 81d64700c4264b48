package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/fleet"
)

// graceSeconds is how long a silent node counts as ready in this test.
const graceSeconds = 4

// A worker's death is not its pods': the next one of its name takes them over.
func TestWorkerKilledAndBack(t *testing.T) {
	t.Parallel() // it waits, mostly
	c := newCluster(t,
		server("server-1", "bootstrap_expect = 1", fmt.Sprintf("scheduler { node_grace = \"%ds\" }", graceSeconds)),
		worker("worker-1", `labels = { disk = "ssd" }`),
		// With every node lost it would be the servers that are cut off.
		worker("other", `runtime = "fake"`))
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := c.Workers()[0]
	file := filepath.Join(c.Dir, "pids")
	script := fmt.Sprintf("echo $$$$ >> %s; echo begin; while [ ! -e %s.go ]; do sleep 0.1; done; echo end; exec sleep 1000", file, file)
	create(t, c.Reader().Kube, pod("default", "kept", script, on("worker-1")), pod("default", "deleted", "exec sleep 1000", on("worker-1")))
	before := c.waitRunning(t, "default", "kept", "deleted")[0]
	pid := readPID(t, file)

	t.Run("back within the grace", func(t *testing.T) {
		w.Kill()
		alive(t, pid)
		startWorker(t, c, w)
		same(t, c, before, file, pid)
	})
	t.Run("silent for longer than the grace", func(t *testing.T) {
		w.Signal(syscall.SIGSTOP)
		defer w.Signal(syscall.SIGCONT)
		waitLost(t, c, w.Name)
		waitReadiness(t, c, false, "kept", "deleted")
		w.Signal(syscall.SIGCONT)
		waitReadiness(t, c, true, "kept", "deleted")
		same(t, c, before, file, pid)
	})
	t.Run("its node deleted while it lives", func(t *testing.T) {
		nodes := c.Reader().Kube.CoreV1().Nodes()
		if err := nodes.Delete(t.Context(), w.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.eventually(t, "the node to be registered again", func(ctx context.Context) error {
			n, err := nodes.Get(ctx, w.Name, metav1.GetOptions{})
			if err == nil && (!nodeReady(n) || n.Labels["disk"] != "ssd") {
				err = fmt.Errorf("ready: %v, labels: %v", nodeReady(n), n.Labels)
			}
			return err
		})
		same(t, c, before, file, pid)
	})
	t.Run("back after it was declared lost", func(t *testing.T) {
		w.Kill()
		waitLost(t, c, w.Name)
		// What is asked for meanwhile is done at its return: one goes, one comes.
		if err := c.Reader().Kube.CoreV1().Pods("default").Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		create(t, c.Reader().Kube, pod("default", "comes", "exec sleep 1000", on("worker-1")))
		alive(t, pid)
		startWorker(t, c, w)
		same(t, c, before, file, pid)
		c.waitRunning(t, "default", "comes")
		c.eventually(t, "the deleted pod to go", func(ctx context.Context) error {
			if _, err := c.Reader().Kube.CoreV1().Pods("default").Get(ctx, "deleted", metav1.GetOptions{}); err == nil {
				return errors.New("it is there")
			}
			return nil
		})
	})
	t.Run("what it wrote meanwhile is in its log", func(t *testing.T) {
		w.Kill()
		if err := os.WriteFile(file+".go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		c.eventually(t, "the pod to go on", func(context.Context) error {
			cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && !strings.HasPrefix(string(cmdline), "sleep\x00") {
				err = errors.New("it waits")
			}
			return err
		})
		startWorker(t, c, w)
		if got := c.berth(t, "logs", "kept"); got != "begin\nend\n" {
			t.Errorf("its log: %q", got)
		}
		same(t, c, before, file, pid)
	})
}

// waitLost waits until the servers have given a node up.
func waitLost(t *testing.T, c *cluster, node string) {
	t.Helper()
	c.eventually(t, "the node to be declared lost", func(ctx context.Context) error {
		n, err := c.Reader().Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		effects := map[corev1.TaintEffect]bool{}
		for _, taint := range n.Spec.Taints {
			if taint.Key == corev1.TaintNodeUnreachable {
				effects[taint.Effect] = true
			}
		}
		if nodeReady(n) || !effects[corev1.TaintEffectNoSchedule] || !effects[corev1.TaintEffectNoExecute] {
			return fmt.Errorf("ready: %v, taints: %v", nodeReady(n), n.Spec.Taints)
		}
		return nil
	})
}

func waitReadiness(t *testing.T, c *cluster, want bool, names ...string) {
	t.Helper()
	c.eventually(t, fmt.Sprintf("readiness %v", want), func(ctx context.Context) error {
		for _, name := range names {
			p, err := c.Reader().Kube.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if podReady(p) != want {
				return fmt.Errorf("%s: %v", name, p.Status.Conditions)
			}
		}
		return nil
	})
}

func readPID(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatalf("the container was started more than once: %q", text)
	}
	return pid
}

func alive(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the container's process %d is gone: %v", pid, err)
	}
}

// startWorker starts a worker and waits until its node is ready and without the
// marks of a lost one.
func startWorker(t *testing.T, c *cluster, w *fleet.Process) {
	t.Helper()
	old, err := os.ReadFile(w.Log)
	if err == nil {
		err = w.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.eventually(t, "the worker to be connected", func(context.Context) error {
		log, err := os.ReadFile(w.Log)
		if err == nil && !strings.Contains(string(log[len(old):]), "connected: node="+w.Name) {
			err = errors.New("it is not")
		}
		return err
	})
	c.eventually(t, "the node to be ready", func(ctx context.Context) error {
		n, err := c.Reader().Kube.CoreV1().Nodes().Get(ctx, w.Name, metav1.GetOptions{})
		if err == nil && (!nodeReady(n) || len(n.Spec.Taints) > 0) {
			err = fmt.Errorf("ready: %v, taints: %v", nodeReady(n), n.Spec.Taints)
		}
		return err
	})
}

// same makes sure that a pod is the one that it was: no restart, no other process.
func same(t *testing.T, c *cluster, before *corev1.Pod, file string, pid int) {
	t.Helper()
	c.eventually(t, "the pod to be ready", func(ctx context.Context) error {
		p, err := c.Reader().Kube.CoreV1().Pods(before.Namespace).Get(ctx, before.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		old, now := before.Status.ContainerStatuses[0], p.Status.ContainerStatuses[0]
		if p.UID != before.UID || now.RestartCount != 0 || now.ContainerID != old.ContainerID {
			t.Fatalf("the pod is another: %+v", now)
		}
		if !podReady(p) {
			return fmt.Errorf("it is not: %+v", p.Status.Conditions)
		}
		return nil
	})
	alive(t, pid)
	if now := readPID(t, file); now != pid {
		t.Errorf("the container's process is %d, and was %d", now, pid)
	}
}
