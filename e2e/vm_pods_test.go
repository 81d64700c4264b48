package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/berth-dev/berth/agent/fleet"
	nodes "github.com/berth-dev/berth/e2e/machine"
)

// groups says where the cgroups of a pod and of its only container are, below the root; a runtime without one for the whole of a
// pod has none to tell.
type groups func(p *corev1.Pod) (pod, container string)

// containerOf is the runtime's own name of the only container.
func containerOf(p *corev1.Pod) string {
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	return id
}

func processGroups(p *corev1.Pod) (pod, container string) {
	return "", filepath.Join("berth", string(p.UID), "main_0")
}

func criGroups(p *corev1.Pod) (pod, container string) {
	class := strings.ToLower(string(p.Status.QOSClass))
	if p.Status.QOSClass == corev1.PodQOSGuaranteed {
		class = ""
	}
	pod = filepath.Join("kubepods", class, "pod"+string(p.UID))
	return pod, filepath.Join(pod, containerOf(p))
}

func systemdGroups(p *corev1.Pod) (pod, container string) {
	class, uid := "-"+strings.ToLower(string(p.Status.QOSClass)), strings.ReplaceAll(string(p.UID), "-", "_")
	above := filepath.Join("kubepods.slice", "kubepods"+class+".slice")
	if p.Status.QOSClass == corev1.PodQOSGuaranteed {
		class, above = "", "kubepods.slice"
	}
	pod = filepath.Join(above, "kubepods"+class+"-pod"+uid+".slice")
	return pod, filepath.Join(pod, "cri-containerd-"+containerOf(p)+".scope")
}

// Pods of both runtimes have what they are limited to, in the files of the kernel and in what it does. TestVM runs this in
// machines of its own.
func TestPodsInVM(t *testing.T) {
	driver := os.Getenv(inVM)
	if driver == "" {
		t.Skip("`make e2e-vm` runs this in a virtual machine")
	}
	if _, err := os.Stat(filepath.Join(nodes.Cgroups, "cgroup.controllers")); err != nil {
		t.Fatalf("the machine has no cgroups of version 2: %v", err)
	}
	const bound = "pod_pids = 200"
	kinds := []struct {
		name   string
		worker fleet.Spec
		groups groups
	}{{"process", worker("worker-1", `runtime = "process"`, bound), processGroups}}
	d := realContainers(t)
	ofCRI := criGroups
	if driver == "systemd" {
		ofCRI = systemdGroups
	}
	kinds = append(kinds, kinds[0])
	kinds[1].name, kinds[1].worker, kinds[1].groups = "cri", criWorker(d, "worker-2", "cri", bound), ofCRI
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"), kinds[0].worker, kinds[1].worker)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			g := &grouped{cluster: c, node: k.worker.Name, groups: k.groups}
			t.Run("what is asked for", g.bounded)
			t.Run("what nobody asked for", g.unbounded)
			t.Run("the processor is held back", g.throttled)
			t.Run("too much memory", g.greedy)
		})
	}
}

// grouped are the pods of one node.
type grouped struct {
	*cluster
	node   string
	groups groups
}

// make creates a pod on the node, and waits until it runs.
func (g *grouped) make(t *testing.T, name, command string, requests, limits corev1.ResourceList) *corev1.Pod {
	t.Helper()
	p := imaged(name+"-"+g.node, command, on(g.node))
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
	create(t, g.Reader().Kube, p)
	return g.waitRunning(t, "default", p.Name)[0]
}

// ask asks until it is answered: a server in an emulated machine may be silent for so long that a command line would take it for lost.
func (g *grouped) ask(t *testing.T, what string, f func(context.Context, typedcorev1.PodInterface) error) {
	t.Helper()
	g.eventually(t, "the servers to "+what, func(ctx context.Context) error { return f(ctx, g.Reader().Kube.CoreV1().Pods("default")) })
}

// remove deletes pods, and waits until they are gone.
func (g *grouped) remove(t *testing.T, how metav1.DeleteOptions, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		g.ask(t, "remove "+p.Name, func(ctx context.Context, all typedcorev1.PodInterface) error {
			if err := all.Delete(ctx, p.Name, how); !apierrors.IsNotFound(err) {
				return cmp.Or(err, errors.New("it is there"))
			}
			return nil
		})
	}
}

func amounts(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

// kernelSays fails unless a file of a cgroup has one of the values.
func kernelSays(t *testing.T, group, file string, values ...string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(nodes.Cgroups, group, file))
	if got := strings.TrimSpace(string(b)); err != nil || !slices.Contains(values, got) {
		t.Errorf("%s/%s is %q and not %q: %v", group, file, got, values, err)
	}
}

// bounded: a pod's requests and limits, when it begins, when it is resized, and that nothing of it is left.
func (g *grouped) bounded(t *testing.T) {
	p := g.make(t, "bounded", "exec sleep 1000", amounts("250m", "32Mi"), amounts("500m", "64Mi"))
	pod, container := g.groups(p)
	procs, err := os.ReadFile(filepath.Join(nodes.Cgroups, container, "cgroup.procs"))
	if err != nil || len(strings.Fields(string(procs))) == 0 {
		t.Errorf("nothing runs in its cgroup: %q, %v", procs, err)
	}
	are := func(of string, cpu, memory string) {
		t.Helper()
		kernelSays(t, of, "cpu.max", cpu+" 100000")
		kernelSays(t, of, "memory.max", memory)
	}
	are(container, "50000", "67108864")
	kernelSays(t, filepath.Dir(container), "pids.max", "200")
	kernelSays(t, container, "memory.oom.group", "1")
	kernelSays(t, container, "cpu.weight", "10", "35") // 256 shares, as older and newer programs translate them
	if pod != "" {
		are(pod, "50000", "67108864")
		kernelSays(t, pod, "cpu.weight", "10", "35")
	}
	patch := `{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"300m","memory":"48Mi"},"limits":{"cpu":"600m","memory":"96Mi"}}}]}}`
	g.ask(t, "resize "+p.Name, func(ctx context.Context, pods typedcorev1.PodInterface) error {
		_, err := pods.Patch(ctx, p.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize")
		return err
	})
	g.waitFor(t, p.Name, "to have more", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return podReady(p) && condition(p, corev1.PodResizeInProgress) == nil && s[0].Resources != nil && s[0].Resources.Limits.Cpu().MilliValue() == 600
	})
	are(container, "60000", "100663296")
	kernelSays(t, container, "cpu.weight", "12", "40")
	if pod != "" {
		are(pod, "60000", "100663296")
	}
	g.remove(t, metav1.DeleteOptions{}, p)
	g.gone(t, container)
	if pod != "" {
		g.gone(t, pod)
	}
}

// gone waits until a cgroup is.
func (g *grouped) gone(t *testing.T, group string) {
	t.Helper()
	g.eventually(t, "cgroup "+group+" to be gone", func(context.Context) error {
		_, err := os.Stat(filepath.Join(nodes.Cgroups, group))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil:
			err = errors.New("it is there")
		}
		return err
	})
}

// unbounded: pods are among those of their class, and what asked for nothing weighs the least.
func (g *grouped) unbounded(t *testing.T) {
	effort := g.make(t, "effort", "exec sleep 1000", nil, nil)
	guaranteed := g.make(t, "guaranteed", "exec sleep 1000", nil, amounts("100m", "32Mi"))
	for _, p := range []*corev1.Pod{effort, guaranteed} {
		_, container := g.groups(p)
		procs, err := os.ReadFile(filepath.Join(nodes.Cgroups, container, "cgroup.procs"))
		if err != nil || len(strings.Fields(string(procs))) == 0 {
			t.Errorf("nothing of %s runs in %s: %q, %v", p.Name, container, procs, err)
		}
	}
	pod, container := g.groups(effort)
	kernelSays(t, container, "memory.max", "max")
	kernelSays(t, container, "cpu.max", "max 100000")
	kernelSays(t, container, "cpu.weight", "1")
	if pod != "" {
		kernelSays(t, pod, "cpu.weight", "1")
		kernelSays(t, filepath.Dir(pod), "cpu.weight", "1")
	}
	_, container = g.groups(guaranteed)
	kernelSays(t, container, "memory.max", "33554432")
	kernelSays(t, container, "cpu.max", "10000 100000")
	g.remove(t, *metav1.NewDeleteOptions(0), effort, guaranteed)
}

// throttled: who wants more of the processor than its limit waits for it.
func (g *grouped) throttled(t *testing.T) {
	p := g.make(t, "burns", "while :; do :; done", nil, amounts("200m", "32Mi"))
	_, container := g.groups(p)
	g.eventually(t, "the kernel to hold it back", func(context.Context) error {
		b, err := os.ReadFile(filepath.Join(nodes.Cgroups, container, "cpu.stat"))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), "nr_throttled "); ok && n != "0" {
				return nil
			}
		}
		return fmt.Errorf("it says %s", b)
	})
	g.remove(t, *metav1.NewDeleteOptions(0), p)
}

// greedy: who takes more memory than its limit is ended, with all that runs in it, and its pod says why.
func (g *grouped) greedy(t *testing.T) {
	p := imaged("greedy-"+g.node, `dd if=/dev/zero of=/dev/null bs=200M count=1 & wait; exec sleep 1000`, on(g.node))
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	p.Spec.Containers[0].Resources.Limits = amounts("1", "32Mi")
	create(t, g.Reader().Kube, p)
	p = g.waitFor(t, p.Name, "to fail", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if ended := p.Status.ContainerStatuses[0].State.Terminated; ended == nil || ended.Reason != "OOMKilled" || ended.ExitCode != 137 {
		t.Errorf("it says %+v", p.Status.ContainerStatuses[0].State)
	}
}
