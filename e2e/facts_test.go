package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/agent/fleet"
)

// factWatcher sees every revision of the pods of a namespace and of what keeps them: where a watch breaks off, it goes
// on at another server from the revision it had come to.
type factWatcher struct {
	fleet *fleet.Fleet
	space string // the namespace

	mu     sync.Mutex
	facts  []fact
	missed []string
}

// start watches until ctx ends. Everything that is made later is seen.
func (w *factWatcher) start(ctx context.Context, running *sync.WaitGroup) {
	for kind, from := range map[string]func(p *fleet.Process, o metav1.ListOptions) (watch.Interface, error){
		"Pod": func(p *fleet.Process, o metav1.ListOptions) (watch.Interface, error) {
			return p.Kube.CoreV1().Pods(w.space).Watch(ctx, o)
		},
		"Deployment": func(p *fleet.Process, o metav1.ListOptions) (watch.Interface, error) {
			return p.Kube.AppsV1().Deployments(w.space).Watch(ctx, o)
		},
		"ReplicaSet": func(p *fleet.Process, o metav1.ListOptions) (watch.Interface, error) {
			return p.Kube.AppsV1().ReplicaSets(w.space).Watch(ctx, o)
		},
		"StatefulSet": func(p *fleet.Process, o metav1.ListOptions) (watch.Interface, error) {
			return p.Kube.AppsV1().StatefulSets(w.space).Watch(ctx, o)
		},
		"Job": func(p *fleet.Process, o metav1.ListOptions) (watch.Interface, error) {
			return p.Kube.BatchV1().Jobs(w.space).Watch(ctx, o)
		},
	} {
		running.Go(func() { w.run(ctx, kind, from) })
	}
}

func (w *factWatcher) run(ctx context.Context, kind string, from func(p *fleet.Process, o metav1.ListOptions) (watch.Interface, error)) {
	revision := "0" // which tells of what there is
	for i := 0; ctx.Err() == nil; i++ {
		p := w.fleet.Servers()[i%len(w.fleet.Servers())]
		stream, err := from(p, metav1.ListOptions{ResourceVersion: revision, AllowWatchBookmarks: true})
		if err != nil {
			chaosPause(ctx, pollEvery)
			continue
		}
		for e := range stream.ResultChan() {
			if e.Type == watch.Error {
				w.miss(kind, p.Name, revision, e.Object)
				break
			}
			m, ok := e.Object.(metav1.Object)
			if !ok {
				break
			}
			revision = m.GetResourceVersion()
			if e.Type != watch.Bookmark {
				w.note(kind, e, m)
			}
		}
		stream.Stop()
	}
}

// seen is how many facts there are until now, and all are those.
func (w *factWatcher) seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.facts)
}

func (w *factWatcher) all() []fact {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.facts)
}

// miss: a server that is just starting may not have come to a revision yet; what it cannot tell any more is lost.
func (w *factWatcher) miss(kind, server, revision string, what runtime.Object) {
	status, ok := what.(*metav1.Status)
	if ok && status.Reason != metav1.StatusReasonExpired && status.Reason != metav1.StatusReasonGone {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missed = append(w.missed, fmt.Sprintf("the watch of %s at %s ended at revision %s: %v", kind, server, revision, what))
}

func (w *factWatcher) note(kind string, e watch.Event, m metav1.Object) {
	f := fact{at: time.Now(), kind: kind, uid: m.GetUID(), name: m.GetName(), gone: e.Type == watch.Deleted}
	f.revision, _ = strconv.ParseInt(m.GetResourceVersion(), 10, 64)
	if owner := metav1.GetControllerOf(m); owner != nil {
		f.owner = owner.UID
	}
	switch o := e.Object.(type) {
	case *corev1.Pod:
		f.pod = factOfPod(o)
	case *appsv1.Deployment:
		n := int(*o.Spec.Replicas)
		f.set.replicas = n
		f.set.unavailable, _ = intstr.GetScaledValueFromIntOrPercent(o.Spec.Strategy.RollingUpdate.MaxUnavailable, n, false)
		f.set.surge, _ = intstr.GetScaledValueFromIntOrPercent(o.Spec.Strategy.RollingUpdate.MaxSurge, n, true)
	case *appsv1.ReplicaSet:
		f.set.replicas = int(*o.Spec.Replicas)
	case *appsv1.StatefulSet:
		f.set.replicas = int(*o.Spec.Replicas)
	case *batchv1.Job:
		f.set = setFact{replicas: int(*o.Spec.Parallelism), completions: int(*o.Spec.Completions), succeeded: int(o.Status.Succeeded),
			indexes: o.Status.CompletedIndexes, complete: complete(o)}
	}
	w.mu.Lock()
	w.facts = append(w.facts, f)
	w.mu.Unlock()
}
