package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Of containers' own disk, which is the images' (imagefs), what earlier runs left goes first; who has written most beyond what it asked for goes when that
// is not enough, and the others stay.
func TestImageDiskPressure(t *testing.T) {
	t.Parallel() // it waits, mostly
	if *crioPrograms != "" {
		t.Skip("it is containerd's disk that is made small")
	}
	needsContainers(t)
	disk, err := os.MkdirTemp(root, "disk-")
	if err != nil {
		t.Fatal(err)
	}
	mountDisk(t, disk, "size=160m,mode=711")
	d := ownDaemon(t, disk, 2)
	kept := runtimeService(t, d)
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"), criWorker(d, "worker-1", "cri", `eviction {
  hard                       = { "imagefs.available" = "48Mi", "nodefs.available" = "0", "nodefs.inodesFree" = "0", "imagefs.inodesFree" = "0", "memory.available" = "0" }
  pressure_transition_period = "5s"
}`))
	c.emptied(t, d)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	gate, gated := c.gate(t)
	// fill writes so much at each gate as leaves the disk so many MiB.
	fill := func(gate string) string {
		return "until test -e /gate/" + gate + "; do sleep 0.1; done; head -c $(cat /gate/" + gate + ")m /dev/zero > /" + gate + "; "
	}
	open := func(name string, leaves int64) {
		t.Helper()
		var fs unix.Statfs_t
		if err := unix.Statfs(disk, &fs); err != nil {
			t.Fatal(err)
		}
		part := filepath.Join(gate, "."+name)
		if err := os.WriteFile(part, fmt.Append(nil, int64(fs.Bavail)*fs.Bsize>>20-leaves), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(part, filepath.Join(gate, name)); err != nil {
			t.Fatal(err)
		}
	}
	asks := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("20Mi")}
	}
	create(t, c.Reader().Kube, imaged("again", "test -e /gate/once || { touch /gate/once; head -c 30m /dev/zero > /left; exit 1; }; exec sleep 1000", gated, asks),
		imaged("modest", "head -c 5m /dev/zero > /little; exec sleep 1000", asks),
		imaged("greedy", fill("first")+fill("second")+"exec sleep 1000", gated))
	p := c.waitFor(t, "again", "to run again", func(p *corev1.Pod) bool { return podReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	c.waitRunning(t, "default", "modest", "greedy")
	if n := len(runsOf(t, kept, p)); n != 2 {
		t.Fatalf("of its runs %d are kept", n)
	}

	open("first", 40)
	c.eventually(t, "what the earlier run left to be removed", func(context.Context) error {
		if n := len(runsOf(t, kept, p)); n != 1 {
			return fmt.Errorf("of its runs %d are kept", n)
		}
		return nil
	})
	c.diskPressure(t, corev1.ConditionFalse)
	for _, name := range []string{"again", "modest", "greedy"} {
		if p := c.waitFor(t, name, "to be there", func(*corev1.Pod) bool { return true }); p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
			t.Errorf("%s is %s, though there was something else to remove: %s", name, p.Status.Phase, p.Status.Message)
		}
	}

	open("second", 30)
	if m := c.waitEvicted(t, "greedy", "48Mi").Status.Message; !strings.Contains(m, "Container main was using ") {
		t.Errorf("it says %q", m)
	}
	c.hasEvent(t, "greedy", "Evicted", "The node was low on resource: ephemeral-storage")
	c.diskPressure(t, corev1.ConditionTrue)
	if err := c.Reader().Kube.CoreV1().Pods("default").Delete(t.Context(), "greedy", metav1.DeleteOptions{}); err != nil { // what its container wrote goes with its object
		t.Fatal(err)
	}
	c.diskPressure(t, corev1.ConditionFalse)
	for _, name := range []string{"again", "modest"} {
		if p := c.waitFor(t, name, "to be there", func(*corev1.Pod) bool { return true }); p.Status.Phase != corev1.PodRunning || p.Status.Reason != "" {
			t.Errorf("%s is %s: %s", name, p.Status.Phase, p.Status.Message)
		}
	}
}

// runsOf is what the runtime keeps of the runs of a pod's containers.
func runsOf(t *testing.T, of criv1.RuntimeServiceClient, p *corev1.Pod) []*criv1.Container {
	t.Helper()
	list, err := of.ListContainers(t.Context(), &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{LabelSelector: ofPod(p)}})
	if err != nil {
		t.Fatal(err)
	}
	return list.Containers
}

// diskPressure waits until the node says whether its disk is full, and keeps others away or not.
func (c *cluster) diskPressure(t *testing.T, want corev1.ConditionStatus) {
	t.Helper()
	c.eventually(t, "disk pressure to be "+string(want), func(ctx context.Context) error {
		n, err := c.Reader().Kube.CoreV1().Nodes().Get(ctx, "worker-1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeDiskPressure })
		is := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeDiskPressure && c.Status == want
		})
		if !is || tainted != (want == corev1.ConditionTrue) {
			return fmt.Errorf("its taints are %v, its conditions %+v", n.Spec.Taints, n.Status.Conditions)
		}
		return nil
	})
}
