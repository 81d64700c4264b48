package worker

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
)

// Devices gives the node's devices to containers.
type Devices interface {
	// Give gives a container its devices, the same each time that it is started. holds says whether a pod keeps what it has.
	Give(ctx context.Context, pod *corev1.Pod, c *corev1.Container, holds func(types.UID) bool) (runtime.Devices, error)
	// Amounts are what the node has, by resource, and what pods may have of it now. What is not named is as it was.
	Amounts() (capacity, allocatable corev1.ResourceList)
}

// DevicesChanged tells that the amounts of Devices are others now. It does not block.
func (a *Agent) DevicesChanged() { a.inputs.put(a.takeAmounts) }

// takeAmounts makes the amounts of devices the node's, and has them reported.
func (a *Agent) takeAmounts(now time.Time) {
	capacity, allocatable := a.opts.Devices.Amounts()
	a.setAmounts(capacity, allocatable, now)
}

// setAmounts makes amounts the node's, and has them reported where they are others. What is not named is as it was.
func (a *Agent) setAmounts(capacity, allocatable corev1.ResourceList, now time.Time) {
	status := &a.node.Status
	if holdsAmounts(status.Capacity, capacity) && holdsAmounts(status.Allocatable, allocatable) {
		return
	}
	status.Capacity, status.Allocatable = maps.Clone(status.Capacity), maps.Clone(status.Allocatable)
	maps.Copy(status.Capacity, capacity)
	maps.Copy(status.Allocatable, allocatable)
	a.core.SetAllocatable(status.Allocatable, now)
	a.registering.wanted = true // so that the next connection begins with them
	a.reportedAt, a.probeAt = time.Time{}, now
	a.outdated = a.probing // what is being told is what was before
}

func holdsAmounts(all, some corev1.ResourceList) bool {
	for name, amount := range some {
		if has, ok := all[name]; !ok || has.Cmp(amount) != 0 {
			return false
		}
	}
	return true
}

// SetAllocatable says what the node has for pods. Those that it has already stay.
func (c *Core) SetAllocatable(amounts corev1.ResourceList, now time.Time) {
	n := c.node.DeepCopy()
	n.Status.Allocatable = amounts
	c.setNode(n)
	c.retryHeld(now)
}

// holds says whether a pod keeps the devices that it has: as long as what it asks for counts.
func (a *Agent) holds(uid types.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.core.pods[uid]
	return p != nil && p.counted
}
