package e2e

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// imageVolume mounts an image at /data.
func imageVolume(reference string, policy corev1.PullPolicy) func(*corev1.Pod) {
	return volume("data", "/data", corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: reference, PullPolicy: policy}})
}

// Pods read the files of images, which are fetched as those of containers are.
func TestImageVolumes(t *testing.T) {
	d := realContainers(t)
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"), criWorker(d, "worker-1", "cri"))
	c.emptied(t, d)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	kube := c.Reader().Kube
	registry := imagepack.NewRegistry("", "")
	host := httptest.NewServer(registry)
	defer host.Close()
	name := strings.TrimPrefix(host.URL, "http://") + "/team/data:1"
	push := func(text string) {
		t.Helper()
		err := registry.Push(&imagepack.Image{Names: []string{"team/data:1"}, Files: []imagepack.File{{Path: "dir", Mode: 0o755, Dir: true},
			{Path: "dir/file", Mode: 0o644, Data: []byte(text + "\n")}}, Over: [][]imagepack.File{{{Path: "top", Mode: 0o644, Data: []byte("top\n")}}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	sub := func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/sub", SubPath: "dir"})
	}
	push("one")
	// Of two streams a runtime keeps no order.
	create(t, kube, imaged("reads", "exec 2>&1; cat /data/dir/file /data/top /sub/file; touch /data/x /sub/file; exec sleep 1000", imageVolume(name, corev1.PullAlways), sub))
	before := c.waitRunning(t, "default", "reads")[0]
	readOnly := "touch: /data/x: Read-only file system\ntouch: /sub/file: Read-only file system\n"
	c.hasEvent(t, "reads", "Pulled", "Successfully pulled image \""+name)

	t.Run("one that cannot be had is waited for, and one that is not mounted is not", func(t *testing.T) {
		none := "127.0.0.1:1/none:1"
		unmounted := func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = nil }
		create(t, kube, imaged("waits", "true", imageVolume(none, "")), imaged("never", "true", imageVolume(none, corev1.PullNever)),
			imaged("misspelt", "true", imageVolume("127.0.0.1:1/None:1", "")), imaged("does-not-mount", "exec sleep 1000", imageVolume(none, ""), unmounted),
			imaged("below", "true", imageVolume(name, ""), func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].SubPath = "nothing" }))
		c.waitFor(t, "waits", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "ImagePullBackOff" })
		c.hasEvent(t, "waits", "BackOff", `Back-off pulling image "`+none)
		c.waitFor(t, "never", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "ErrImageNeverPull" })
		c.waitFor(t, "misspelt", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "InvalidImageName" })
		c.waitFor(t, "below", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "CreateContainerError" })
		c.waitRunning(t, "default", "does-not-mount")
	})

	t.Run("it shows the same for as long as the pod is there, whoever is killed", func(t *testing.T) {
		push("two")
		w := c.Workers()[0]
		w.Kill()
		d.Kill()
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		startWorker(t, c, w)
		c.waitNode(t, true)
		if err := d.KillSandbox(t.Context(), string(before.UID)); err != nil {
			t.Fatal(err)
		}
		c.waitFor(t, "reads", "to read again", func(p *corev1.Pod) bool { return podReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
		waitLog(t, c, "reads", "one\ntop\none\n"+readOnly)
		create(t, kube, imaged("reads-new", "cat /data/dir/file; exec sleep 1000", imageVolume(name, corev1.PullAlways)),
			imaged("reads-too", "cat /data/dir/file; exec sleep 1000", imageVolume(name, "")))
		c.waitRunning(t, "default", "reads-new", "reads-too")
		waitLog(t, c, "reads-new", "two\n")
	})

	t.Run("what ends leaves nothing", func(t *testing.T) {
		left := func() string {
			out, err := d.Left(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		if all := left(); *crioPrograms == "" && strings.Count(all, "view ") < 3 {
			t.Errorf("there are %s", all)
		}
		now := int64(0)
		if err := kube.CoreV1().Pods("default").DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		c.eventually(t, "nothing to be left", func(context.Context) error {
			if strings.Contains(left(), "view ") {
				return errStillThere
			}
			return nil
		})
	})
}

// A worker of processes says that it has no images.
func TestImageVolumesOfProcesses(t *testing.T) {
	c := oneWorker(t, nil, "")
	create(t, c.Reader().Kube, imaged("asks", "true", imageVolume(daemontest.Busybox, "")))
	p := c.waitFor(t, "asks", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "CreateContainerConfigError" })
	if m := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, "spec.volumes[0].image") {
		t.Errorf("it is told %q", m)
	}
	c.hasEvent(t, "asks", "PodFeatureUnsupported", "spec.volumes[0].image")
}
