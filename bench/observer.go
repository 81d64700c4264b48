package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// observer is a client that watches every pod, from one server or another, and
// notices what must not happen: a binding that is lost or changed.
type observer struct {
	servers *processes
	loop    sync.WaitGroup
	cancel  context.CancelFunc

	mu     sync.Mutex
	pods   map[types.UID]*observed
	counts [4]int // of pods, by how they are
	wrong  []error
	moved  time.Time // when the last change came
	// bindings tells the names of pods as they are seen bound; a slow reader
	// misses none.
	onBinding func(name string, at time.Time)
}

type observed struct {
	name, node string
	ends       *metav1.Time // when it has to have ended
	gone       bool
}

// stage is how far a pod is.
type stage int

const (
	waits stage = iota
	isBound
	isEnding
	isGone
)

func (p *observed) stage() stage {
	switch {
	case p.gone:
		return isGone
	case p.ends != nil:
		return isEnding
	case p.node == "":
		return waits
	}
	return isBound
}

func watchPods(servers *processes, onBinding func(name string, at time.Time)) *observer {
	ctx, cancel := context.WithCancel(context.Background())
	o := &observer{servers: servers, cancel: cancel, pods: map[types.UID]*observed{}, moved: time.Now(), onBinding: onBinding}
	o.loop.Go(func() { o.run(ctx) })
	return o
}

func (o *observer) stop() {
	o.cancel()
	o.loop.Wait()
}

// run watches from revision 0, which first tells of every pod there is, and
// goes on at any other server where a watch broke off.
func (o *observer) run(ctx context.Context) {
	revision := "0"
	for i := 0; ctx.Err() == nil; i++ {
		p := o.servers.servers[i%len(o.servers.servers)]
		if !p.alive() {
			continue
		}
		w, err := p.client.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{ResourceVersion: revision})
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(poll):
			}
			continue
		}
		for e := range w.ResultChan() {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				if e.Type == watch.Error && !brokeOff(e.Object) {
					o.note(fmt.Errorf("the watch at %s ended at revision %s: %v", p.name, revision, e.Object))
				}
				break
			}
			revision = pod.ResourceVersion
			o.see(e.Type, pod)
		}
		w.Stop()
	}
}

// brokeOff tells what client-go says itself, of a connection that was lost, from what a server says. An event that cannot be read is told
// likewise; it would come again at every server, and nothing would ever be seen settled.
func brokeOff(what runtime.Object) bool {
	status, ok := what.(*metav1.Status)
	return ok && apierrors.HasStatusCause(&apierrors.StatusError{ErrStatus: *status}, "ClientWatchDecoding")
}

func (o *observer) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wrong = append(o.wrong, err)
}

func (o *observer) see(what watch.EventType, pod *corev1.Pod) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.moved = now
	was, known := o.pods[pod.UID]
	if !known {
		was = &observed{name: pod.Name}
		o.pods[pod.UID] = was
		o.counts[waits]++
	}
	o.counts[was.stage()]--
	defer func() { o.counts[was.stage()]++ }()
	switch {
	case was.gone:
		o.wrong = append(o.wrong, fmt.Errorf("pod %s came back", pod.Name))
	case was.node != "" && pod.Spec.NodeName != was.node:
		o.wrong = append(o.wrong, fmt.Errorf("pod %s was bound to %s, and then to %q", pod.Name, was.node, pod.Spec.NodeName))
	case was.ends != nil && (pod.DeletionTimestamp == nil || pod.DeletionTimestamp.After(was.ends.Time)):
		o.wrong = append(o.wrong, fmt.Errorf("pod %s was told to end by %s, and then by %s", pod.Name, was.ends, pod.DeletionTimestamp))
	}
	if was.node == "" && pod.Spec.NodeName != "" {
		was.node = pod.Spec.NodeName
		o.onBinding(pod.Name, now)
	}
	was.ends = pod.DeletionTimestamp
	was.gone = what == watch.Deleted
	if was.gone && was.ends == nil {
		o.wrong = append(o.wrong, fmt.Errorf("pod %s went without being told to", pod.Name))
	}
}

// settled waits until every one of so many pods has been seen and is bound or
// gone, and none is on its way out; and until no more than left of them are
// bound, unless it is negative.
func (o *observer) settled(ctx context.Context, pods, left int) error {
	for {
		o.mu.Lock()
		waiting, ending, bound := o.counts[waits], o.counts[isEnding], o.counts[isBound]
		seen, moved, wrong := len(o.pods), o.moved, errors.Join(o.wrong...)
		o.mu.Unlock()
		switch {
		case wrong != nil:
			return wrong
		case seen == pods && waiting == 0 && ending == 0 && (left < 0 || bound <= left):
			return nil
		case time.Since(moved) > stallTimeout:
			return fmt.Errorf("nothing moved for %s: of %d pods %d were seen, %d wait and %d are ending", stallTimeout, pods, seen, waiting, ending)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

// compare fails unless the cluster's pods are those that were seen bound and
// not seen to go.
func (o *observer) compare(ctx context.Context, p *process) error {
	list, err := p.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	there := map[types.UID]string{}
	for i := range list.Items {
		there[list.Items[i].UID] = list.Items[i].Spec.NodeName
	}
	errs := append([]error{}, o.wrong...)
	for uid, was := range o.pods {
		node, ok := there[uid]
		switch {
		case ok == was.gone:
			errs = append(errs, fmt.Errorf("pod %s, bound to %s: there: %t, seen to go: %t", was.name, was.node, ok, was.gone))
		case ok && node != was.node:
			errs = append(errs, fmt.Errorf("the binding of pod %s to %s was lost: it is bound to %q", was.name, was.node, node))
		}
	}
	return errors.Join(errs...)
}
