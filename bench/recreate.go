package bench

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// recreator stands for a controller that creates a replica again the moment one
// is told to end.
type recreator struct {
	client kubernetes.Interface
	seen   map[types.UID]bool // replaced already
	made   int
	done   chan error
	cancel context.CancelFunc
}

// startReplicas creates the replicas and goes on replacing them until stop.
func startReplicas(ctx context.Context, client kubernetes.Interface) (*recreator, error) {
	ctx, cancel := context.WithCancel(ctx)
	r := &recreator{client: client, seen: map[types.UID]bool{}, done: make(chan error, 1), cancel: cancel}
	for range replicas {
		if err := r.create(ctx); err != nil {
			cancel()
			return nil, err
		}
	}
	go func() { r.done <- r.run(ctx) }()
	return r, nil
}

func (r *recreator) create(ctx context.Context) error {
	pod := fought(replicaApp, lowClass, replicaCPU)
	pod.Name = fmt.Sprintf("%s-%d", replicaApp, r.made)
	r.made++
	_, err := r.client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// run watches the replicas, from all that there are.
func (r *recreator) run(ctx context.Context) error {
	for {
		w, err := r.client.CoreV1().Pods(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{ResourceVersion: "0", LabelSelector: appLabel + "=" + replicaApp})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for e := range w.ResultChan() {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok || pod.DeletionTimestamp == nil || r.seen[pod.UID] {
				continue
			}
			r.seen[pod.UID] = true
			if err := r.create(ctx); err != nil && ctx.Err() == nil {
				w.Stop()
				return err
			}
		}
		w.Stop()
	}
}

func (r *recreator) stop() error {
	r.cancel()
	return <-r.done
}
