package model

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"pgregory.net/rapid"
)

// resizedPod is a pod in the middle of any resize.
func resizedPod(t *rapid.T) *corev1.Pod {
	list := func(label string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q := rapid.SampledFrom([]string{"", "0", "1", "1000m", "2"}).Draw(t, label); q != "" {
				out[name] = resource.MustParse(q)
			}
		}
		return out
	}
	both := func(label string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: list(label), Limits: list(label + " at most")}
	}
	always := corev1.ContainerRestartPolicyAlways
	containers := func(label string, init bool) (specs []corev1.Container, statuses []corev1.ContainerStatus) {
		for i := range rapid.IntRange(0, 2).Draw(t, label) {
			c := corev1.Container{Name: label + string(rune('a'+i)), Resources: both("wants")}
			if init && rapid.Bool().Draw(t, "sidecar") {
				c.RestartPolicy = &always
			}
			specs = append(specs, c)
			if rapid.IntRange(0, 3).Draw(t, "told") > 0 {
				s := corev1.ContainerStatus{Name: c.Name, AllocatedResources: list("set aside")}
				if rapid.IntRange(0, 3).Draw(t, "known") > 0 {
					has := both("has")
					s.Resources = &has
				}
				statuses = append([]corev1.ContainerStatus{s}, statuses...)
			}
		}
		return specs, statuses
	}
	pod := &corev1.Pod{}
	pod.Generation, pod.Spec.NodeName = 2, "n1"
	pod.Spec.Containers, pod.Status.ContainerStatuses = containers("app", false)
	pod.Spec.InitContainers, pod.Status.InitContainerStatuses = containers("init", true)
	if rapid.IntRange(0, 3).Draw(t, "as a whole") == 0 {
		wants, has := both("all want"), both("all have")
		pod.Spec.Resources = &wants
		if rapid.Bool().Draw(t, "told of all") {
			pod.Status.Resources, pod.Status.AllocatedResources = &has, list("set aside for all")
			// Kubernetes' library takes what a status does not name of what the spec names for nothing at all.
			for name, q := range wants.Requests {
				if _, ok := has.Requests[name]; !ok {
					has.Requests[name] = q
				}
			}
			for name, q := range wants.Limits {
				if _, ok := has.Limits[name]; !ok {
					has.Limits[name] = q
				}
			}
		}
	}
	if reason := rapid.SampledFrom([]string{"", corev1.PodReasonDeferred, corev1.PodReasonInfeasible}).Draw(t, "pending"); reason != "" {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, ObservedGeneration: 2}}
	}
	return pod
}

// What a pod is charged for is what kube-scheduler and Kubernetes' quotas count.
func TestChargedIsKubernetes(t *testing.T) {
	opts := resourcehelper.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
	rapid.Check(t, func(t *rapid.T) {
		pod := resizedPod(t)
		before := pod.DeepCopy()
		charged := Charged(pod)
		if !equality.Semantic.DeepEqual(pod, before) {
			t.Fatal("the pod itself was changed")
		}
		if want, got := podResources(resourcehelper.PodRequests(pod, opts)), PodRequest(charged); !got.Equal(want) {
			t.Fatalf("charged for %+v, not %+v", got, want)
		}
		limits := func(p *corev1.Pod, opts resourcehelper.PodResourcesOptions) Resources {
			return FromList(resourcehelper.PodLimits(p, opts))
		}
		if want, got := limits(pod, opts), limits(charged, resourcehelper.PodResourcesOptions{}); !got.Equal(want) {
			t.Fatalf("limited to %+v, not %+v", got, want)
		}
		if Resizing(pod) == SameCharge(pod, unsaid(pod)) {
			t.Fatalf("is resized: %t, is charged as by its spec: %t", Resizing(pod), SameCharge(pod, unsaid(pod)))
		}
	})
}

// No container that runs has more than what the most of its pod bounds all of it by, an init container neither.
func TestMostBoundsEveryContainer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := resizedPod(t)
		if pod.Spec.Resources != nil {
			return // a container may have more than its pod: that is what bounds it then
		}
		most := FromList(resourcehelper.PodLimits(Most(pod), resourcehelper.PodResourcesOptions{}))
		for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			if s.Resources == nil {
				continue
			}
			if has := FromList(s.Resources.Limits); has.MilliCPU > most.MilliCPU || has.Get("memory") > most.Get("memory") {
				t.Fatalf("%s has %+v, and its pod %+v", s.Name, has, most)
			}
		}
	})
}

// unsaid is a pod of which its node has said nothing.
func unsaid(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.Status = corev1.PodStatus{}
	return &out
}

// What a node said of an older wish says nothing of this one, and a pod without a node is charged by its spec.
func TestChargedOfWhatIsOld(t *testing.T) {
	one, two := corev1.ResourceList{"cpu": resource.MustParse("1")}, corev1.ResourceList{"cpu": resource.MustParse("2")}
	pod := &corev1.Pod{}
	pod.Generation, pod.Spec.NodeName = 2, "n1"
	pod.Spec.Containers = []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{Requests: two}}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "a", AllocatedResources: one, Resources: &corev1.ResourceRequirements{Requests: one}}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible, ObservedGeneration: 2}}
	want := func(what string, milli int64) {
		t.Helper()
		if got := PodRequest(Charged(pod)).MilliCPU; got != milli {
			t.Errorf("%s: charged for %d", what, got)
		}
	}
	want("infeasible", 1000)
	pod.Generation = 3
	want("another wish", 2000)
	pod.Status.Conditions = nil
	pod.Status.ContainerStatuses[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("4")}
	want("it has more", 4000)
	pod.Spec.NodeName = ""
	want("it is nowhere", 2000)
}

// A status that says what the spec says holds no memory of its own, and one that differs in anything stays as it is.
func TestShareResources(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := resizedPod(t)
		before := pod.DeepCopy()
		ShareResources(&pod.Status, &pod.Spec)
		if !equality.Semantic.DeepEqual(pod, before) {
			t.Fatal("it says something else")
		}
	})
	spec := &corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}}}
	status := &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "a", Resources: spec.Containers[0].Resources.DeepCopy()}}}
	if ShareResources(status, spec); status.ContainerStatuses[0].Resources != &spec.Containers[0].Resources {
		t.Error("an equal one is not shared")
	}
}
