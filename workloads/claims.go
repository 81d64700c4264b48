package workloads

import (
	"time"

	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// claimsLater tells of claims a moment after what they name: the binder keeps volumes in a
// store of its own, and takes a claim for lost whose volume is not in there yet. Both
// change in one entry when a claim is bound with its pod.
type claimsLater struct {
	coreinformers.PersistentVolumeClaimInformer
}

// Informer implements coreinformers.PersistentVolumeClaimInformer.
func (c claimsLater) Informer() cache.SharedIndexInformer {
	return informerLater{c.PersistentVolumeClaimInformer.Informer()}
}

type informerLater struct{ cache.SharedIndexInformer }

// AddEventHandler implements cache.SharedInformer.
func (i informerLater) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(handlerLater{h})
}

// claimDelay is that moment. Whoever needs longer is refused by the API, and looks again.
const claimDelay = 100 * time.Millisecond

type handlerLater struct{ cache.ResourceEventHandler }

// OnAdd implements cache.ResourceEventHandler.
func (h handlerLater) OnAdd(o any, initial bool) {
	if initial {
		h.ResourceEventHandler.OnAdd(o, initial)
		return
	}
	time.AfterFunc(claimDelay, func() { h.ResourceEventHandler.OnAdd(o, initial) })
}

// OnUpdate implements cache.ResourceEventHandler.
func (h handlerLater) OnUpdate(old, now any) {
	time.AfterFunc(claimDelay, func() { h.ResourceEventHandler.OnUpdate(old, now) })
}

// OnDelete implements cache.ResourceEventHandler.
func (h handlerLater) OnDelete(o any) {
	time.AfterFunc(claimDelay, func() { h.ResourceEventHandler.OnDelete(o) })
}
