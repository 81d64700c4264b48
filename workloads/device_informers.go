package workloads

import (
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/tools/cache"
)

type registeringPods struct {
	coreinformers.PodInformer
	came chan<- struct{}
}

// Informer implements coreinformers.PodInformer.
func (p registeringPods) Informer() cache.SharedIndexInformer {
	return registering{p.PodInformer.Informer(), p.came}
}

type registeringClaims struct {
	resourceinformers.ResourceClaimInformer
	came chan<- struct{}
}

// Informer implements resourceinformers.ResourceClaimInformer.
func (c registeringClaims) Informer() cache.SharedIndexInformer {
	return registering{c.ResourceClaimInformer.Informer(), c.came}
}

type registeringSlices struct {
	resourceinformers.ResourceSliceInformer
	came chan<- struct{}
}

// Informer implements resourceinformers.ResourceSliceInformer.
func (s registeringSlices) Informer() cache.SharedIndexInformer {
	return registering{s.ResourceSliceInformer.Informer(), s.came}
}
