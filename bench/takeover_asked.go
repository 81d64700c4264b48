package bench

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// takeoverTimeout bounds one kill with all that follows it.
const takeoverTimeout = 10 * time.Minute

// asked is what clients ask for right after a kill: of the workloads that are last in the order in which a new leader's
// controllers look at all.
type asked struct {
	works   []*askedWork
	servers []*process // those that are left
	watch   watch.Interface
	cancel  context.CancelFunc
	asking  sync.WaitGroup
	made    chan error // what following the watch has come to
}

// askedWork is one request, and the pods that it has to lead to.
type askedWork struct {
	kind, space, name string
	pods              int
	ask               func(ctx context.Context, client kubernetes.Interface) error

	accepted, made time.Time
	err            error
}

// ask prepares what is asked for after the kill, and watches from before it.
func (t *takeover) ask(ctx context.Context, rest []*process, n int) (*asked, error) {
	last := t.Pods/podsOfEach - 1
	space, replicas := spaceOf(last), podsOfEach+n+1
	set := lastSet(last) // of the same namespace
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	job := fmt.Sprintf("zz-after-kill-%d", n)
	a := &asked{servers: rest, works: []*askedWork{
		{kind: aDeployment, space: space, name: workloadNameOf(last), pods: 1, ask: func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.AppsV1().Deployments(space).Patch(ctx, workloadNameOf(last), types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}},
		{kind: aStatefulSet, space: space, name: workloadNameOf(set), pods: 1, ask: func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.AppsV1().StatefulSets(space).Patch(ctx, workloadNameOf(set), types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}},
		{kind: aJob, space: space, name: job, pods: podsOfEach, ask: func(ctx context.Context, c kubernetes.Interface) error {
			err := createWorkload(ctx, c, aJob, space, job)
			if apierrors.IsAlreadyExists(err) {
				return nil // an earlier attempt, whose answer was lost, was carried out
			}
			return err
		}},
	}}
	pods := rest[0].client.CoreV1().Pods(space)
	list, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
	if err == nil {
		a.watch, err = pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	}
	if err != nil {
		return nil, fmt.Errorf("watch the pods of %s: %w", space, err)
	}
	return a, nil
}

// begin asks, at one server or another, until each is accepted, and follows what comes of it.
func (a *asked) begin(ctx context.Context) {
	ctx, a.cancel = context.WithCancel(ctx)
	a.made = make(chan error, 1)
	go func() { a.made <- a.follow(ctx) }()
	for i, w := range a.works {
		a.asking.Go(func() {
			for at := i; ; at++ {
				w.err = w.ask(ctx, a.servers[at%len(a.servers)].client)
				switch {
				case w.err == nil:
					w.accepted = time.Now()
					return
				case refusedForGood(w.err), ctx.Err() != nil:
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(poll):
				}
			}
		})
	}
}

// follow waits until the pods are made. It reads the clock when it is told of a pod, so nobody may keep it waiting.
func (a *asked) follow(ctx context.Context) error {
	missing := len(a.works)
	for missing > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e, ok := <-a.watch.ResultChan():
			pod, isPod := e.Object.(*corev1.Pod)
			if !ok || !isPod {
				return fmt.Errorf("the watch of pods ended: %v", e.Object)
			}
			if e.Type == watch.Added {
				missing -= a.see(pod, time.Now())
			}
		}
	}
	return nil
}

// done waits until the pods are made, and gives the time when the last one was.
func (a *asked) done() (last time.Time, err error) {
	if err := <-a.made; err != nil {
		return last, fmt.Errorf("%w; made: %s", err, a.times(last))
	}
	a.asking.Wait()
	for _, w := range a.works {
		if w.err != nil {
			return last, fmt.Errorf("ask for %s/%s of %s: %w", w.space, w.name, w.kind, w.err)
		}
		if w.made.After(last) {
			last = w.made
		}
	}
	return last, nil
}

// see takes note of a new pod, and says how many of what was asked for are done with it.
func (a *asked) see(pod *corev1.Pod, now time.Time) int {
	for _, w := range a.works {
		if pod.Labels[appLabel] != w.name || w.pods == 0 {
			continue
		}
		if w.pods--; w.pods == 0 {
			w.made = now
			return 1
		}
	}
	return 0
}

func (a *asked) stop() {
	if a.cancel != nil {
		a.cancel()
	}
	a.asking.Wait()
	a.watch.Stop()
}

// accepted tells when the last request was accepted.
func (a *asked) accepted(since time.Time) string {
	var last time.Time
	for _, w := range a.works {
		if w.accepted.After(last) {
			last = w.accepted
		}
	}
	return inSeconds(last.Sub(since))
}

// times tells when the pods of each were made.
func (a *asked) times(since time.Time) string {
	var out []string
	for _, w := range a.works {
		text := "never"
		if !w.made.IsZero() {
			text = inSeconds(w.made.Sub(since))
		}
		out = append(out, w.kind+" "+text)
	}
	return strings.Join(out, ", ")
}
