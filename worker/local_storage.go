package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

const (
	measureInterval = 10 * time.Second
	// measureTimeout is what a measurement may take: many small files take long, and are no way around a limit.
	measureTimeout = 5 * time.Minute
	// measuresAtOnce bounds the pods that are measured at a time.
	measuresAtOnce = 16
	// evictGrace is what a pod gets that has used more than it may.
	evictGrace = time.Second
)

// localUse is what a pod holds of its node's disk, in bytes but for the inodes.
type localUse struct {
	volumes map[string]int64 // emptyDirs on disk, by name
	objects int64            // volumes that show objects, and what the runtime keeps for all containers of the pod
	// containers is what was written outside of volumes, and logs, by the container's name, whatever runs of it are kept.
	containers map[string]int64
	inodes     int64 // of all of it
	// memory are emptyDirs in memory, by name: they hold nothing of the disk.
	memory map[string]Disk
}

// total is all that the pod holds. The order does not matter: it is a sum.
func (u *localUse) total() int64 {
	all := u.objects
	for _, used := range u.volumes {
		all += used
	}
	for _, used := range u.containers {
		all += used
	}
	return all
}

// overLimit says that a pod holds more of its node's disk than it may, in Kubernetes' words.
type overLimit struct{ message string }

func (e *overLimit) Error() string { return e.message }

// exceeds says which limit of the pod it holds more than; nil: none. The order is Kubernetes'.
func (u *localUse) exceeds(pod *corev1.Pod) *overLimit {
	above := func(limit *resource.Quantity, used int64) bool {
		return limit != nil && limit.Sign() > 0 && resource.NewQuantity(used, resource.BinarySI).Cmp(*limit) > 0
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		used, there := u.volumes[v.Name]
		if limit := diskLimit(v); there && above(limit, used) {
			return &overLimit{fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q.", v.Name, limit.String())}
		}
	}
	if limit := storageLimit(pod); above(limit, u.total()) {
		return &overLimit{fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s.", limit.String())}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if limit := c.Resources.Limits.StorageEphemeral(); above(limit, u.containers[c.Name]) {
			return &overLimit{fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q.", c.Name, limit.String())}
		}
	}
	return nil
}

// limitsDisk says whether the pod may hold only so much of its node's disk.
func limitsDisk(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if diskLimit(&pod.Spec.Volumes[i]) != nil {
			return true
		}
	}
	return !storageLimit(pod).IsZero()
}

// storageLimit is how much all of the pod may hold; zero: any amount.
func storageLimit(pod *corev1.Pod) *resource.Quantity {
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	return limits.StorageEphemeral()
}

// diskLimit is how much an emptyDir on disk may hold; nil: any amount. One in memory is bounded by its file system.
func diskLimit(v *corev1.Volume) *resource.Quantity {
	if e := v.EmptyDir; e != nil && e.Medium == corev1.StorageMediumDefault && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
		return e.SizeLimit
	}
	return nil
}

// stepMeasure has what the pod holds of the disk measured every now and then, where that is limited. A critical pod is
// never ended for it, as in Kubernetes.
func (p *podState) stepMeasure(now time.Time) {
	if p.measuring || p.critical() || !limitsDisk(p.pod) {
		return
	}
	if p.measureAt.IsZero() {
		p.measureAt = now.Add(measureInterval)
	}
	if now.Before(p.measureAt) {
		p.wakeAt(p.measureAt)
		return
	}
	p.measuring = true
	p.act(Action{Kind: ActionMeasure, Timeout: measureTimeout})
}

// measured takes the outcome of a measurement. One that failed is told, once.
func (p *podState) measured(err error, now time.Time) {
	p.measuring, p.measureAt = false, now.Add(measureInterval)
	var over *overLimit
	if !errors.As(err, &over) {
		said := p.measureError
		if p.measureError = ""; err != nil {
			p.measureError = err.Error()
		}
		if err != nil && said == "" {
			p.emit(corev1.EventTypeWarning, "FailedMeasurement", "What the pod holds of the node's disk is not known: "+p.measureError)
		}
		return
	}
	if p.verdict != nil || !p.stopAt.IsZero() {
		return
	}
	p.verdict = &verdict{"Evicted", over.Error()}
	p.emit(corev1.EventTypeWarning, p.verdict.reason, p.verdict.message)
	p.beginStop(now, evictGrace)
}

// measure returns an *overLimit where the pod holds more of the node's disk than it may, as far as that is known. Its time begins when it has a place.
func (c *caller) measure(ctx context.Context, pod *corev1.Pod) error {
	ctx = lifeOf(ctx)
	if c.measures != nil {
		select {
		case c.measures <- struct{}{}:
			defer func() { <-c.measures }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	use, err := c.localUse(ctx, pod, !storageLimit(pod).IsZero())
	if over := use.exceeds(pod); over != nil { // it holds that much at least
		return over
	}
	if errors.Is(err, mounts.ErrTooDeep) { // there is no other reason to do so than to hold more than is allowed
		return &overLimit{fmt.Sprintf("Pod ephemeral local storage usage cannot be measured: %s.", mounts.ErrTooDeep)}
	}
	return err
}

// localUse measures what the pod holds of the node's disk: the volumes that have a limit, and with all everything. With an error it is what the pod holds
// in any case.
func (c *caller) localUse(ctx context.Context, pod *corev1.Pod, all bool) (use localUse, err error) {
	if c.volumes != nil {
		use, err = c.volumes.use(ctx, pod, all)
	}
	if d, ok := c.runtime.(runtime.DiskUser); ok && all {
		held, derr := d.DiskUse(ctx, pod.UID)
		use.containers = held.Bytes
		use.objects += held.Shared
		use.inodes += held.Inodes
		err = errors.Join(err, derr)
	}
	return use, err
}

// localUses measures what pods hold of the node's disk, several at a time, each for so long. A pod that could not be measured whole is missing.
func (c *caller) localUses(ctx context.Context, pods []*corev1.Pod, bound time.Duration) map[types.UID]localUse {
	out := make(map[types.UID]localUse, len(pods))
	var mu sync.Mutex
	next := make(chan *corev1.Pod)
	var workers sync.WaitGroup
	for range min(measuresAtOnce, len(pods)) {
		workers.Go(func() {
			for pod := range next {
				ctx, cancel := context.WithTimeout(ctx, bound)
				use, err := c.localUse(ctx, pod, true)
				cancel()
				if err == nil {
					mu.Lock()
					out[pod.UID] = use
					mu.Unlock()
				}
			}
		})
	}
	for _, pod := range pods {
		next <- pod
	}
	close(next)
	workers.Wait()
	return out
}
