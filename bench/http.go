package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// httpTarget is in pods a second, end to end.
const httpTarget = 800

// httpCreate: ordinary clients create pods one by one through all servers.
func httpCreate(ctx context.Context, r *run) (err error) {
	c, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	clients, err := c.clients(r.Clients)
	if err != nil {
		return err
	}
	m, err := startMeter()
	if err != nil {
		return err
	}
	latencies, err := createPods(ctx, clients, r.Pods, func(i int) *corev1.Pod {
		pod := newPod("100m", "500Mi")
		pod.Name = fmt.Sprintf("pod-%06d", i)
		return pod
	})
	if err != nil {
		return err
	}
	created := time.Since(m.began)
	if err := c.awaitBound(ctx, r.Pods); err != nil {
		return err
	}
	wall, cpu, err := m.stop()
	if err != nil {
		return err
	}
	rate := float64(r.Pods) / wall.Seconds()
	r.target("created and bound", rate, "pods/s", fmt.Sprintf("≥ %d", httpTarget), rate >= httpTarget)
	r.figure("created", float64(r.Pods)/created.Seconds(), "pods/s")
	r.figure("create, median", millis(quantile(latencies, 0.5)), "ms")
	r.figure("create, p99", millis(quantile(latencies, 0.99)), "ms")
	r.figure("processor time, servers and clients", millis(cpu)/float64(r.Pods), "ms/pod")
	return c.verify(ctx, r.Pods)
}

// createPods creates pods 0 to n-1, every client one at a time.
func createPods(ctx context.Context, clients []kubernetes.Interface, n int, pod func(i int) *corev1.Pod) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	latencies := make([]time.Duration, n)
	var working sync.WaitGroup
	for _, client := range clients {
		working.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || ctx.Err() != nil {
					return
				}
				began := time.Now()
				if err := createPod(ctx, client, pod(i)); err != nil {
					cancel(err)
					return
				}
				latencies[i] = time.Since(began)
			}
		})
	}
	working.Wait()
	return latencies, context.Cause(ctx)
}

// createPod creates a pod as a careful client does: where the outcome is
// unknown it asks again, and takes the pod's being there for its creation.
func createPod(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	give := time.Now().Add(clientPatience)
	for unknown := false; ; unknown = true {
		_, err := client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		switch {
		case err == nil, unknown && apierrors.IsAlreadyExists(err):
			return nil
		case ctx.Err() != nil, time.Now().After(give), !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err):
			return fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
	}
}

func quantile(ds []time.Duration, q float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(ds))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func millis(d time.Duration) float64 { return d.Seconds() * 1000 }
