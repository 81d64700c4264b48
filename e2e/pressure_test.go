package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A node whose disk is full says so and takes no more pods; who holds most of it beyond what it asked for goes, and the
// others stay.
func TestNodePressure(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a disk of its own needs root")
	}
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"))
	added, err := c.Add(worker("worker-1", `eviction {
  hard                       = { "nodefs.available" = "20Mi", "imagefs.available" = "0", "nodefs.inodesFree" = "0", "imagefs.inodesFree" = "0", "memory.available" = "0" }
  pressure_transition_period = "5s"
}`))
	if err != nil {
		t.Fatal(err)
	}
	w := added[0]
	disk := filepath.Join(w.DataDir, "worker")
	if err := os.MkdirAll(disk, 0o711); err != nil {
		t.Fatal(err)
	}
	mountDisk(t, disk, "size=64m,mode=711") // its pods are ended when the worker is, which the cluster sees to before it goes
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	kube := c.Reader().Kube
	scratch := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/tmp/scratch"}}
	}
	asks := func(p *corev1.Pod) {
		scratch(p)
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("10Mi")}
	}
	fill := func(mebibytes int) string {
		return fmt.Sprintf(`head -c %dM /dev/zero > "$BERTH_VOLUME_SCRATCH/data"; exec sleep 1000`, mebibytes)
	}
	create(t, kube, pod("default", "modest", fill(5), asks), pod("default", "greedy", fill(45), scratch))
	c.waitEvicted(t, "greedy", "20Mi")
	c.diskPressure(t, corev1.ConditionTrue)
	// What it held is given back with it, though its object stays.
	c.diskPressure(t, corev1.ConditionFalse)
	if p := c.waitFor(t, "greedy", "to be there", func(*corev1.Pod) bool { return true }); p.Status.Phase != corev1.PodFailed {
		t.Errorf("who was evicted is %s", p.Status.Phase)
	}
	if p := c.waitFor(t, "modest", "to be there", func(*corev1.Pod) bool { return true }); p.Status.Phase != corev1.PodRunning {
		t.Errorf("who held no more than it asked for is %s: %s", p.Status.Phase, p.Status.Message)
	}
}

// mountDisk mounts a file system in memory for as long as the test lasts.
func mountDisk(t *testing.T, dir, options string) {
	t.Helper()
	if err := syscall.Mount("berth-e2e", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// waitEvicted waits until a pod is evicted for a disk on which no more than threshold was free, and looks at what it says.
func (c *cluster) waitEvicted(t *testing.T, name, threshold string) *corev1.Pod {
	t.Helper()
	p := c.waitFor(t, name, "to be evicted", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if p.Status.Reason != "Evicted" || !strings.HasPrefix(p.Status.Message, "The node was low on resource: ephemeral-storage. Threshold quantity: "+threshold+", available: ") {
		t.Errorf("it says %s, %q", p.Status.Reason, p.Status.Message)
	}
	if x := condition(p, corev1.DisruptionTarget); x == nil || x.Status != corev1.ConditionTrue || x.Reason != corev1.PodReasonTerminationByKubelet {
		t.Errorf("its conditions are %+v", p.Status.Conditions)
	}
	return p
}
