package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kubernetes' own device plugin, as it is, killed and started again, as is the worker.
func TestDevicePlugins(t *testing.T) {
	plugin := samplePlugin(t)
	t.Run("process", func(t *testing.T) { devicePlugins(t, plugin, nil) })
	t.Run("cri", func(t *testing.T) { devicePlugins(t, plugin, realContainers(t)) })
}

// samplePlugin builds Kubernetes' own device plugin. It needs no libraries, so it runs in a container as well.
func samplePlugin(t *testing.T) string {
	t.Helper()
	plugin := filepath.Join(root, "sample-device-plugin")
	build := exec.Command("go", "build", "-ldflags", "-linkmode external -extldflags -static", "-o", plugin, "k8s.io/kubernetes/test/images/sample-device-plugin")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { // the plugin's devices
		for _, name := range []string{"/tmp/Dev-1", "/tmp/Dev-2"} {
			_ = os.Remove(name)
		}
	})
	return plugin
}

const sampleDevices = corev1.ResourceName("example.com/resource")

func devicePlugins(t *testing.T, plugin string, d daemon) {
	folder, err := os.MkdirTemp("", "dp") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	option := fmt.Sprintf("device_plugins = %q", folder)
	c := oneWorker(t, d, option)
	kill := startPlugin(t, plugin, folder)
	c.waitDevices(t, "worker-1", 2, 2)

	create(t, c.Reader().Kube, withDevice("one"), withDevice("two"))
	c.waitRunning(t, "default", "one", "two")
	create(t, c.Reader().Kube, withDevice("three"))
	c.waitsForDevice(t, "three", 1)

	kill()
	c.waitDevices(t, "worker-1", 2, 0)
	startPlugin(t, plugin, folder)
	c.waitDevices(t, "worker-1", 2, 2)
	c.Workers()[0].Kill()
	startWorker(t, c, c.Workers()[0])
	c.eventually(t, "the plugin to register again", func(context.Context) error {
		if log := c.Workers()[0].LogTail(30); strings.Count(log, "a device plugin has registered") == 0 {
			return errors.New("it is not in the log")
		}
		return nil
	})
	c.waitDevices(t, "worker-1", 2, 2)
	for _, name := range []string{"one", "two"} {
		if p, err := c.get(t.Context(), name); err != nil || p.Status.ContainerStatuses[0].RestartCount != 0 || !podReady(p) {
			t.Errorf("%s did not go on: %v, %+v", name, err, p)
		}
	}
	if err := c.Reader().Kube.CoreV1().Pods("default").Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.waitRunning(t, "default", "three")
	if d != nil { // processes see all of the host's
		c.haveDevices(t, "two", "three")
	}
}

// withDevice is a pod with one of the plugin's devices. It tells which, where it sees no others.
func withDevice(name string) *corev1.Pod {
	return imaged(name, "ls -d /tmp/Dev-*; exec sleep 1000", func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = new(int64(1))
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{sampleDevices: resource.MustParse("1")}
	})
}

// waitsForDevice waits until a pod is told that none of the nodes has a device for it.
func (c *cluster) waitsForDevice(t *testing.T, name string, nodes int) {
	t.Helper()
	c.waitFor(t, name, "to wait for a device", func(p *corev1.Pod) bool {
		scheduled := condition(p, corev1.PodScheduled)
		return scheduled != nil && strings.HasPrefix(scheduled.Message, fmt.Sprintf("0/%d nodes are available: %[1]d Insufficient example.com/resource.", nodes))
	})
}

// haveDevices: two containers have a device each, and see that alone.
func (c *cluster) haveDevices(t *testing.T, one, other string) {
	t.Helper()
	var seen []string
	for _, name := range []string{one, other} {
		c.eventually(t, "the log of "+name, func(context.Context) error {
			r := run(t, c.env, "", "logs", name)
			if r.code != 0 || r.out == "" {
				return fmt.Errorf("%q, %q", r.out, r.err)
			}
			seen = append(seen, r.out)
			return nil
		})
	}
	if slices.Sort(seen); !slices.Equal(seen, []string{"/tmp/Dev-1\n", "/tmp/Dev-2\n"}) {
		t.Errorf("%s and %s have %q", one, other, seen)
	}
}

// startPlugin starts the plugin, which knows only the usual folder, where that is the test's: nothing of it shows on the host.
func startPlugin(t *testing.T, plugin, folder string) (kill func()) {
	t.Helper()
	const usual = "/var/lib/kubelet/device-plugins"
	cmd := exec.Command("unshare", "--mount", "sh", "-c",
		`mount -t tmpfs none /var/lib && mkdir -p "$2" && mount --bind "$1" "$2" && exec "$3"`, "sh", folder, usual, plugin)
	var told strings.Builder
	cmd.Stderr = &told
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	kill = func() {
		if ended {
			return
		}
		ended = true
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the plugin told:\n%s", told.String())
		}
	}
	t.Cleanup(kill)
	return kill
}

// waitDevices waits until the node has so many devices, and so many for pods.
func (c *cluster) waitDevices(t *testing.T, node string, all, healthy int64) {
	t.Helper()
	c.eventually(t, fmt.Sprintf("%d of %d devices", healthy, all), func(ctx context.Context) error {
		n, err := c.Reader().Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		has, free := n.Status.Capacity[sampleDevices], n.Status.Allocatable[sampleDevices]
		if has.Value() != all || free.Value() != healthy {
			return fmt.Errorf("there are %s of %s", free.String(), has.String())
		}
		return nil
	})
}
