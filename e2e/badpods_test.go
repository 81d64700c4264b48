package e2e

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ports"
	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// badPods ask for what cannot be. Each is told of by a condition and an event, and the others of the node go on.
func badPods(t *testing.T, c *cluster, d realDaemon) {
	kube := c.Reader().Kube
	closed, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closed.Release)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	emptyDir := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	directory := corev1.HostPathDirectory
	never := policy(corev1.RestartPolicyNever)
	create(t, kube, imaged("beside", "exec sleep 1000"))
	beside := c.waitRunning(t, "default", "beside")[0]

	t.Run("a mount over a file", func(t *testing.T) {
		create(t, kube, imaged("over-file", "true", never, volume("data", "/etc/passwd", emptyDir)))
		if d == nil || *crioPrograms != "" { // they look when they make the container
			p := c.waitFor(t, "over-file", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "CreateContainerError" })
			has(t, "what it is told", p.Status.ContainerStatuses[0].State.Waiting.Message, "/etc/passwd")
		} else {
			p := c.waitFor(t, "over-file", "to fail", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
			if x := p.Status.ContainerStatuses[0].State.Terminated; x.Reason != "StartError" || x.ExitCode != 128 || !strings.Contains(x.Message, "/etc/passwd") {
				t.Errorf("its end: %+v", x)
			}
		}
		c.hasEvent(t, "over-file", "Failed", "/etc/passwd")
	})
	t.Run("a directory that is a file", func(t *testing.T) {
		create(t, kube, imaged("no-directory", "true", volume("data", "/data", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: file, Type: &directory}})))
		c.hasEvent(t, "no-directory", "FailedMount", file)
		p := c.waitFor(t, "no-directory", "to wait", func(p *corev1.Pod) bool { return waiting(p) != "" })
		if p.Status.Phase != corev1.PodPending || waiting(p) != "ContainerCreating" || !strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Message, file) {
			t.Errorf("it is %+v", p.Status)
		}
	})
	t.Run("a probe on a closed port", func(t *testing.T) {
		probe := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intOf(int32(closed.Ports[0]))}}
		create(t, kube, imaged("closed", "exec sleep 1000", func(p *corev1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: probe}
			p.Spec.Containers[0].LivenessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 2, ProbeHandler: probe, TerminationGracePeriodSeconds: new(int64(1))}
		}))
		c.hasEvent(t, "closed", "Unhealthy", "Readiness probe failed: dial tcp")
		c.hasEvent(t, "closed", "Unhealthy", "connect: connection refused")
		c.hasEvent(t, "closed", "Killing", "failed liveness probe")
		p := c.waitFor(t, "closed", "to be started again", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount > 0 })
		if r := condition(p, corev1.PodReady); r == nil || r.Status != corev1.ConditionFalse || r.Reason != "ContainersNotReady" {
			t.Errorf("its readiness is %+v", r)
		}
	})
	if d == nil {
		t.Run("an image", func(t *testing.T) { // is nothing that processes are made of
			create(t, kube, imaged("image", "exec sleep 1000", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "127.0.0.1:1/none:1" }))
			c.waitRunning(t, "default", "image")
			c.hasEvent(t, "image", "ImageIgnored", "127.0.0.1:1/none:1")
		})
	} else {
		t.Run("a user that is not there", func(t *testing.T) { unknownUser(t, c) })
		t.Run("a network that fails", func(t *testing.T) { brokenNetwork(t, c, d) })
	}

	after := c.waitRunning(t, "default", "beside")[0]
	if after.UID != beside.UID || after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("who ran beside them is %+v", after.Status)
	}
	c.waitNode(t, true)
}

// unknownUser: an image names a user that it does not have.
func unknownUser(t *testing.T, c *cluster) {
	image, err := daemontest.BusyboxImage("team/nobody:1")
	if err != nil {
		t.Fatal(err)
	}
	image.User = "missing"
	name := serveImage(t, image, "", "")
	create(t, c.Reader().Kube, imaged("no-user", "true", func(p *corev1.Pod) { p.Spec.Containers[0].Image = name }))
	p := c.waitFor(t, "no-user", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "CreateContainerError" })
	if m := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, "user") {
		t.Errorf("it is told %q", m)
	}
	c.hasEvent(t, "no-user", "Failed", "user")
}

// brokenNetwork: the network's plugin fails. Who needs none is started meanwhile, and who does when it works again.
func brokenNetwork(t *testing.T, c *cluster, d realDaemon) {
	kube := c.Reader().Kube
	repair, err := d.BreakNetwork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := repair(); err != nil {
			t.Error(err)
		}
	})
	create(t, kube, imaged("networked", "exec sleep 1000"), imaged("needs-none", "exec sleep 1000", func(p *corev1.Pod) { p.Spec.HostNetwork = true }))
	c.waitRunning(t, "default", "needs-none")
	c.hasEvent(t, "networked", "FailedCreatePodSandBox", "network")
	p := c.waitFor(t, "networked", "to be told of", func(p *corev1.Pod) bool { return condition(p, corev1.PodReadyToStartContainers) != nil })
	if p.Status.Phase != corev1.PodPending || condition(p, corev1.PodReadyToStartContainers).Status != corev1.ConditionFalse || p.Status.PodIP != "" {
		t.Errorf("it is %+v", p.Status)
	}
	if err := repair(); err != nil {
		t.Fatal(err)
	}
	if p := c.waitRunning(t, "default", "networked")[0]; p.Status.PodIP == "" {
		t.Errorf("it has no address: %+v", p.Status)
	}
}

// serveImage puts an image into a registry of its own, which gives it to one user alone, or to anybody if that is "", and returns its full name.
func serveImage(t *testing.T, image *imagepack.Image, user, secret string) string {
	t.Helper()
	registry := imagepack.NewRegistry(user, secret)
	if err := registry.Push(image); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/" + image.Names[0]
}

// neverBegan: who watches a pod that is deleted before anything of it has begun sees that it failed, before it goes. What has its init containers
// still before it is left waiting.
func neverBegan(t *testing.T, c *cluster) {
	kube := c.Reader().Kube
	needs := []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "nowhere"}}}}
	inits := imaged("unborn-init", "true")
	first, second := inits.Spec.Containers[0], inits.Spec.Containers[0]
	first.Name, first.EnvFrom, second.Name = "first", needs, "second"
	inits.Spec.InitContainers = []corev1.Container{first, second}
	create(t, kube, inits, imaged("unborn", "true", func(p *corev1.Pod) { p.Spec.Containers[0].EnvFrom = needs }))
	const why = "CreateContainerConfigError"
	c.waitFor(t, "unborn", "to wait", func(p *corev1.Pod) bool { return waiting(p) == why })
	c.waitFor(t, "unborn-init", "to wait", func(p *corev1.Pod) bool {
		s := p.Status.InitContainerStatuses
		return len(s) == 2 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == why
	})
	list, err := kube.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"unborn": "Failed [137 ContainerStatusUnknown]", "unborn-init": "Failed [137 ContainerStatusUnknown, PodInitializing, PodInitializing]"} {
		if err := kube.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.waitGone(t, name)
		p := lastSeen(t, c, name, list.ResourceVersion)
		var states []string
		for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			switch {
			case s.State.Terminated != nil:
				states = append(states, fmt.Sprint(s.State.Terminated.ExitCode, " ", s.State.Terminated.Reason))
			case s.State.Waiting != nil:
				states = append(states, s.State.Waiting.Reason)
			}
		}
		if got := fmt.Sprintf("%s [%s]", p.Status.Phase, strings.Join(states, ", ")); got != want {
			t.Errorf("the last that is seen of %s is %s, not %s", name, got, want)
		}
	}
}
