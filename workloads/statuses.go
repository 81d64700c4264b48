package workloads

import (
	"maps"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	"k8s.io/client-go/tools/cache"
	deploymentutil "k8s.io/kubernetes/pkg/controller/deployment/util"
)

// statusesLater tells of a Deployment's status a while later, and of several that follow each other once. It is mostly the controller itself
// that wrote it, and looks again then for two things alone: whether old ReplicaSets can go, and when the progress would be too slow. What
// changes beside the status is told at once, and so is what becomes of its ReplicaSets, by which a rollout goes on.
type statusesLater struct {
	appsinformers.DeploymentInformer
}

// Informer implements appsinformers.DeploymentInformer.
func (s statusesLater) Informer() cache.SharedIndexInformer {
	return informerOfStatuses{s.DeploymentInformer.Informer()}
}

type informerOfStatuses struct{ cache.SharedIndexInformer }

// AddEventHandler implements cache.SharedInformer.
func (i informerOfStatuses) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(&statusHandler{ResourceEventHandler: h, waits: map[types.UID]bool{}})
}

// statusDelay is how much later.
const statusDelay = 500 * time.Millisecond

type statusHandler struct {
	cache.ResourceEventHandler
	mu    sync.Mutex
	waits map[types.UID]bool // that a status of theirs is told
}

// OnUpdate implements cache.ResourceEventHandler.
func (h *statusHandler) OnUpdate(old, now any) {
	was, is := old.(*appsv1.Deployment), now.(*appsv1.Deployment)
	if !onlyStatus(was, is) {
		h.ResourceEventHandler.OnUpdate(old, now)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waits[is.UID] {
		return // who is told reads the newest
	}
	h.waits[is.UID] = true
	time.AfterFunc(statusDelay, func() {
		h.mu.Lock()
		delete(h.waits, is.UID)
		h.mu.Unlock()
		h.ResourceEventHandler.OnUpdate(old, now)
	})
}

// onlyStatus: nothing has changed that anybody but the controller writes.
func onlyStatus(was, is *appsv1.Deployment) bool {
	revision := func(annotations map[string]string) map[string]string {
		others := maps.Clone(annotations)
		delete(others, deploymentutil.RevisionAnnotation)
		return others
	}
	return was.UID == is.UID && was.Generation == is.Generation && was.DeletionTimestamp.Equal(is.DeletionTimestamp) &&
		maps.Equal(was.Labels, is.Labels) && maps.Equal(revision(was.Annotations), revision(is.Annotations))
}
