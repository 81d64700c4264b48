package model

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// What kube-scheduler takes for a container that states no cpu or memory request, in scoring only: without it, any
// number of such pods would look like no load at all and pile up on one node.
const (
	DefaultMilliCPURequest    int64 = 100
	DefaultMemoryBytesRequest int64 = 200 << 20
)

// PodRequest returns the pod's effective request (IN6):
// max(Σ containers + Σ sidecars, max over init containers i of (i + Σ sidecars before i)), pod-level resources in place
// of it where they are set, plus overhead, plus one pod.
func PodRequest(pod *corev1.Pod) Resources {
	if list, ok := soleContainerRequests(pod); ok {
		return podResources(list)
	}
	return podResources(resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}))
}

// PodNonZeroRequest is PodRequest with DefaultMilliCPURequest and DefaultMemoryBytesRequest for what containers leave
// open. Scores use it; whether a pod fits never does.
func PodNonZeroRequest(pod *corev1.Pod) Resources {
	if list, ok := soleContainerRequests(pod); ok {
		r := podResources(list)
		if _, ok := list[corev1.ResourceCPU]; !ok {
			r.MilliCPU = DefaultMilliCPURequest
		}
		if _, ok := list[corev1.ResourceMemory]; !ok {
			r.MemoryBytes = DefaultMemoryBytesRequest
		}
		return r
	}
	missing := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(DefaultMilliCPURequest, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(DefaultMemoryBytesRequest, resource.BinarySI),
	}
	if resourcehelper.IsPodLevelRequestsSet(pod) {
		// A pod-level request speaks for all containers: only what is asked for nowhere gets the default.
		// order does not matter: each name is deleted by itself.
		for name := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
			delete(missing, name)
		}
	}
	return podResources(resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{NonMissingContainerRequests: missing}))
}

// soleContainerRequests is the short way for the commonest pod: one container and nothing that adds to it.
func soleContainerRequests(pod *corev1.Pod) (corev1.ResourceList, bool) {
	s := &pod.Spec
	if len(s.Containers) != 1 || len(s.InitContainers) != 0 || s.Resources != nil || len(s.Overhead) != 0 {
		return nil, false
	}
	return s.Containers[0].Resources.Requests, true
}

func podResources(list corev1.ResourceList) Resources {
	r := FromList(list)
	r.Pods = 1
	return r
}

// Allocatable returns what the node offers to pods: status.allocatable, but no more than MaxPodsPerNode pods.
func Allocatable(node *corev1.Node) Resources {
	r := FromList(node.Status.Allocatable)
	r.Pods = min(r.Pods, MaxPodsPerNode)
	return r
}

// FromList converts a Kubernetes resource list; what is below 0 or above MaxAmount becomes that. Names that scheduling does not know are left out, as in kube-scheduler.
func FromList(list corev1.ResourceList) Resources {
	var r Resources
	// order does not matter: amounts go to fields of their own, and scalars are sorted below.
	for name, q := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = MilliAmountOf(q)
		case corev1.ResourceMemory:
			r.MemoryBytes = AmountOf(q)
		case corev1.ResourceEphemeralStorage:
			r.EphemeralStorageBytes = AmountOf(q)
		case corev1.ResourcePods:
			r.Pods = AmountOf(q)
		default:
			if v := AmountOf(q); v != 0 && isScalarName(string(name)) {
				r.Scalars = append(r.Scalars, Scalar{Name: string(name), Value: v})
			}
		}
	}
	slices.SortFunc(r.Scalars, func(a, b Scalar) int { return strings.Compare(a.Name, b.Name) })
	return r
}

// isScalarName says whether the scheduler counts a resource of this name: extended resources (with a domain of their
// own), huge pages, attachable volumes and prefixed native ones.
func isScalarName(name string) bool {
	if strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	return strings.Contains(name, "/") || strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(name, corev1.ResourceAttachableVolumesPrefix)
}
