package e2e

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/berth-dev/berth/worker/runtime/cri/containerdtest"
)

// ownDaemon is a containerd beside the one that tests share, with everything of it below a directory.
func ownDaemon(t *testing.T, parent string, after uint16) *containerdtest.Daemon {
	t.Helper()
	needsContainers(t)
	d, err := containerdtest.Start(t.Context(), parent, uint16(os.Getpid())+after<<12)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// gate is a directory of the cluster's own, and how a pod has it at /gate: there it waits for files, or makes them.
func (c *cluster) gate(t *testing.T) (dir string, gated func(*corev1.Pod)) {
	t.Helper()
	dir = filepath.Join(c.Dir, "gate")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, volume("gate", "/gate", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}})
}

// A runtime that hangs, and so neither answers nor refuses, makes the node not ready and loses no pod: who runs goes on, what ends meanwhile ends as it did, who
// comes and goes does so when it answers again.
func TestRuntimeHangs(t *testing.T) {
	t.Parallel() // it waits, mostly
	if *crioPrograms != "" {
		t.Skip("it is containerd that is made to hang")
	}
	d := ownDaemon(t, root, 1)
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"), criWorker(d, "worker-1", "cri", `stream_idle_timeout = "10s"`))
	c.emptied(t, d)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	gate, gated := c.gate(t)
	kube := c.Reader().Kube
	create(t, kube, imaged("stays", "exec sleep 1000"), imaged("goes", "exec sleep 1000"),
		imaged("ends", "touch /gate/begun; until test -e /gate/open; do sleep 0.1; done; touch /gate/over; exit 5", policy(corev1.RestartPolicyNever), gated))
	before := c.waitRunning(t, "default", "stays", "goes", "ends")[0]
	there := func(name string) {
		t.Helper()
		c.eventually(t, name, func(context.Context) error {
			_, err := os.Stat(filepath.Join(gate, name))
			return err
		})
	}
	there("begun")

	if err := d.Freeze(); err != nil {
		t.Fatal(err)
	}
	thaw := func() {
		if err := d.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
	hangs := true
	t.Cleanup(func() {
		if hangs {
			thaw()
		}
	})
	if err := os.WriteFile(filepath.Join(gate, "open"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	there("over")
	create(t, kube, imaged("comes", "exec sleep 1000", func(p *corev1.Pod) { p.Spec.NodeName = "worker-1" }))
	now := int64(1)
	if err := kube.CoreV1().Pods("default").Delete(t.Context(), "goes", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	c.waitNode(t, false)
	n, err := kube.CoreV1().Nodes().Get(t.Context(), "worker-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Reason == "KubeletNotReady" && strings.Contains(c.Message, "the container runtime does not answer")
	}) {
		t.Errorf("its conditions are %+v", n.Status.Conditions)
	}
	if p, err := c.get(t.Context(), "stays"); err != nil || p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
		t.Errorf("a pod of the node is %+v: %v", p, err)
	}

	hangs = false
	thaw()
	c.waitNode(t, true)
	after := c.waitRunning(t, "default", "stays", "comes")[0]
	if a, b := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || b.RestartCount != 0 || before.Status.PodIP != after.Status.PodIP {
		t.Errorf("the pod is another: %+v", after.Status)
	}
	ended := c.waitFor(t, "ends", "to have ended", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if x := ended.Status.ContainerStatuses[0].State.Terminated; x == nil || x.ExitCode != 5 {
		t.Errorf("what ended meanwhile: %+v", ended.Status.ContainerStatuses)
	}
	// Its streams end, and whoever is in them is told.
	silent := session{server: c.Reader(), ns: "default", pod: "stays", protocol: "websocket", command: []string{"sleep", "1000"},
		StreamOptions: remotecommand.StreamOptions{Stdout: io.Discard}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := silent.run(ctx); err == nil || !strings.Contains(err.Error(), "nothing was said for 10s") || !strings.Contains(c.Workers()[0].LogTail(20), `why="nothing was said"`) {
		t.Errorf("a command in which nothing is said ended with %v, %v", err, ctx.Err())
	}
	c.waitGone(t, "goes")
}
