package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// asking sets what a pod's only container asks for, and is limited to.
func asking(cpu, memory string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	}
}

// resize asks for other amounts for a pod's only container.
func resize(t *testing.T, c *cluster, name, cpu, memory string) error {
	t.Helper()
	list := fmt.Sprintf(`{"cpu":%q,"memory":%q}`, cpu, memory)
	patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"main","resources":{"requests":%s,"limits":%s}}]}}`, list, list)
	_, err := c.Reader().Kube.CoreV1().Pods("default").Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize")
	return err
}

func condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// hasNow says whether a resize has come to its end: the only container has these amounts.
func hasNow(cpu, memory string) func(p *corev1.Pod) bool {
	is := func(list corev1.ResourceList) bool {
		return list.Cpu().Cmp(resource.MustParse(cpu)) == 0 && list.Memory().Cmp(resource.MustParse(memory)) == 0
	}
	return func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return podReady(p) && p.Status.ObservedGeneration == p.Generation && condition(p, corev1.PodResizeInProgress) == nil &&
			condition(p, corev1.PodResizePending) == nil && s[0].Resources != nil && is(s[0].Resources.Limits) && is(s[0].AllocatedResources)
	}
}

// memoryLimit is that of the kernel for a pod's container.
func memoryLimit(t *testing.T, c *cluster, pod string) string {
	t.Helper()
	for line := range strings.Lines(c.berth(t, "exec", pod, "--", "cat", "/proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		file := filepath.Join("/sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes")
		switch {
		case parts[1] == "" && parts[2] == "/": // it sees its own alone
			return strings.TrimSpace(c.berth(t, "exec", pod, "--", "cat", "/sys/fs/cgroup/memory.max"))
		case parts[1] == "":
			file = filepath.Join("/sys/fs/cgroup", parts[2], "memory.max")
		case parts[1] != "memory":
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	return ""
}

// A pod is given other resources while it runs, where its node has them; where it has not, it says so, and gives them as
// soon as there is room.
func resized(t *testing.T, c *cluster) {
	kube := c.Reader().Kube.CoreV1()
	create(t, c.Reader().Kube, imaged("grows", "exec sleep 1000", asking("100m", "64Mi")))
	p := c.waitFor(t, "grows", "to have what it asks for", hasNow("100m", "64Mi"))
	if err := resize(t, c, "grows", "200m", "96Mi"); err != nil {
		t.Fatal(err)
	}
	p = c.waitFor(t, "grows", "to have more", hasNow("200m", "96Mi"))
	if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("it was started again: %d", n)
	}
	if got := memoryLimit(t, c, "grows"); got != fmt.Sprint(96<<20) {
		t.Errorf("its limit of memory: %s", got)
	}
	if err := resize(t, c, "grows", "100m", "64Mi"); err != nil {
		t.Fatal(err)
	}
	c.waitFor(t, "grows", "to have less", hasNow("100m", "64Mi"))
	if got := memoryLimit(t, c, "grows"); got != fmt.Sprint(64<<20) {
		t.Errorf("its limit of memory: %s", got)
	}

	// Never, and not now.
	nodes, err := kube.Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cpu := nodes.Items[0].Status.Allocatable.Cpu().MilliValue()
	pending := func(reason string) func(p *corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			x := condition(p, corev1.PodResizePending)
			return x != nil && x.Reason == reason && x.ObservedGeneration == p.Generation
		}
	}
	if err := resize(t, c, "grows", "1000", "64Mi"); !apierrors.IsForbidden(err) {
		t.Errorf("who wants more than its node has is told %v", err)
	}
	create(t, c.Reader().Kube, imaged("beside", "exec sleep 1000", asking("400m", "32Mi")))
	c.waitFor(t, "beside", "to run", podReady)
	most := fmt.Sprintf("%dm", cpu-200)
	if err := resize(t, c, "grows", most, "64Mi"); err != nil {
		t.Fatal(err)
	}
	p = c.waitFor(t, "grows", "to wait for room", pending(corev1.PodReasonDeferred))
	if s := p.Status.ContainerStatuses[0]; s.AllocatedResources.Cpu().MilliValue() != 100 || s.Resources.Requests.Cpu().MilliValue() != 100 {
		t.Errorf("what it has while it waits: %+v %+v", s.AllocatedResources, s.Resources)
	}
	has(t, "why", c.berth(t, "why", "grows"), "Its node will give it what it asks for now when there is room: Node didn't have enough resource: cpu")
	now := int64(0)
	if err := kube.Pods("default").Delete(t.Context(), "beside", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	c.waitFor(t, "grows", "to have it", hasNow(most, "64Mi"))
	if err := resize(t, c, "grows", "100m", "64Mi"); err != nil {
		t.Fatal(err)
	}
	c.waitFor(t, "grows", "to have less again", hasNow("100m", "64Mi"))
	c.eventually(t, "events of its resizes", func(ctx context.Context) error {
		events, err := kube.Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=grows"})
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, e := range events.Items {
			seen[e.Reason] = true
		}
		for _, reason := range []string{"ResizeStarted", "ResizeCompleted", "ResizeDeferred"} {
			if !seen[reason] {
				return fmt.Errorf("there is no %s", reason)
			}
		}
		return nil
	})

	// Started again for it, where it says so; what is refused changes nothing.
	create(t, c.Reader().Kube, imaged("again-for-it", "exec sleep 1000", asking("50m", "32Mi"), func(p *corev1.Pod) {
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
		none := int64(0)
		p.Spec.TerminationGracePeriodSeconds = &none
	}))
	c.waitFor(t, "again-for-it", "to run", hasNow("50m", "32Mi"))
	if err := resize(t, c, "again-for-it", "50m", "48Mi"); err != nil {
		t.Fatal(err)
	}
	p = c.waitFor(t, "again-for-it", "to have more", hasNow("50m", "48Mi"))
	if n := p.Status.ContainerStatuses[0].RestartCount; n != 1 {
		t.Errorf("it was started again %d times", n)
	}
	if got := memoryLimit(t, c, "again-for-it"); got != fmt.Sprint(48<<20) {
		t.Errorf("its limit of memory: %s", got)
	}
	_, err = kube.Pods("default").Patch(t.Context(), "grows", types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"50m"}}}]}}`), metav1.PatchOptions{}, "resize")
	if err == nil || !strings.Contains(err.Error(), "Pod QOS Class may not change as a result of resizing") {
		t.Errorf("another class of service: %v", err)
	}
}

// An init container that runs is given more, and less again, though its pod asks for no more than that.
func resizedInit(t *testing.T, c *cluster) {
	asks := func(cpu, memory string) corev1.ResourceRequirements {
		p := imaged("", "", asking(cpu, memory))
		return p.Spec.Containers[0].Resources
	}
	create(t, c.Reader().Kube, imaged("begins", "exec sleep 1000", asking("20m", "32Mi"), func(p *corev1.Pod) {
		first := *p.Spec.Containers[0].DeepCopy()
		first.Name, first.Image = "first", daemontest.Busybox
		p.Spec.InitContainers = []corev1.Container{first}
	}))
	for _, cpu := range [...]string{"20m", "40m", "20m"} {
		p := c.waitFor(t, "begins", "its init container to have "+cpu, func(p *corev1.Pod) bool {
			s := p.Status.InitContainerStatuses
			return len(s) == 1 && s[0].State.Running != nil && s[0].Resources != nil
		})
		wants := asks(cpu, "32Mi")
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"initContainers": []any{map[string]any{"name": "first", "resources": wants}}}})
		if err != nil {
			t.Fatal(err)
		}
		p, err = c.Reader().Kube.CoreV1().Pods("default").Patch(t.Context(), p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "resize")
		if err != nil {
			t.Fatal(err)
		}
		c.waitFor(t, p.Name, "its init container to have "+cpu, func(now *corev1.Pod) bool {
			return now.Status.ObservedGeneration >= p.Generation && condition(now, corev1.PodResizeInProgress) == nil &&
				now.Status.InitContainerStatuses[0].Resources.Limits.Cpu().Cmp(*wants.Limits.Cpu()) == 0
		})
	}
	now := int64(0)
	if err := c.Reader().Kube.CoreV1().Pods("default").Delete(t.Context(), "begins", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
}
