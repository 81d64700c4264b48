package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/worker/runtime"
)

// evicted is the reason of pods that go because their node runs short.
const evicted = "Evicted"

// leavingPatience is how long a pod that goes is waited for before another one has to go: what it gives back is not
// there before.
const leavingPatience = 30 * time.Second

const (
	// reclaimTimeout is how long what no pod needs is removed before a pod has to go.
	reclaimTimeout = 2 * time.Minute
	// measurePatience is how long one pod may be measured while others wait for that: whoever has more files than can be counted by then goes first.
	measurePatience = 30 * time.Second
	// shortPause is how long it is not said again that nothing can be done about what is short.
	shortPause = 5 * time.Minute
)

// relief is what the node does about what it runs short of.
type relief struct {
	config eviction.Config
	state  eviction.State // belongs to one measurement at a time
	// disk and other: one is under way for a disk, and for something else. They belong to the goroutine of Run.
	disk, other bool

	mu sync.Mutex
	// lastEvicted and until: nobody else goes before that one has left, or until then.
	lastEvicted types.UID
	until       time.Time
	// toldShort is when it was said last that nothing can be done about what is short.
	toldShort map[eviction.Signal]time.Time
}

// relieveAside has something freed, beside all else: a disk may have so much on it that it takes long, and what the node is short of is measured meanwhile.
func (a *Agent) relieveAside(ctx context.Context, t *eviction.Threshold, seen eviction.Observations) {
	underWay := &a.relief.other
	if t.Signal.Disk() {
		underWay = &a.relief.disk
	}
	if *underWay {
		return
	}
	*underWay = true
	a.spawn(func() {
		a.relieve(ctx, t, seen)
		a.inputs.put(func(time.Time) { *underWay = false })
	})
}

// relieve frees what is short: earlier runs and images that nobody uses first, where a disk is full, and then one pod.
func (a *Agent) relieve(ctx context.Context, t *eviction.Threshold, seen eviction.Observations) {
	if a.leaves(a.clock.Now()) {
		return
	}
	if r, ok := a.runtime.(runtime.Reclaimer); ok && t.Signal.Disk() {
		bounded, cancel := context.WithTimeout(ctx, reclaimTimeout)
		err := r.Reclaim(bounded)
		cancel()
		if err != nil && ctx.Err() == nil {
			a.log.Warn("not everything that no pod needs could be removed", "signal", t.Signal, "error", err)
		}
		again, _ := a.opts.Observe(ctx) // what could not be observed is told when it is next
		if o, known := again[t.Signal]; known {
			if o.Available >= t.Least.Of(o.Capacity)+t.Reclaim.Of(o.Capacity) {
				a.log.Info("what no pod needs was removed, and that is enough", "signal", t.Signal)
				return
			}
			seen = again
		}
	}
	pods, shares := a.candidates(ctx, t.Signal)
	eviction.Rank(t.Signal, pods)
	if len(pods) == 0 {
		a.tellShort(t, seen[t.Signal])
		return
	}
	uid := pods[0].UID
	if !a.mayEvict(uid) {
		return
	}
	message := eviction.Message(t, seen[t.Signal], shares[uid])
	a.log.Warn("the node runs short: evicting a pod", "signal", t.Signal, "pod", uid, "message", message)
	a.caller.meters.evicted(t.Signal)
	a.inputs.put(func(now time.Time) { a.core.Evict(uid, message, &a.relief.config, t, now) })
}

// tellShort says that nothing can be done about what is short, every now and then.
func (a *Agent) tellShort(t *eviction.Threshold, o eviction.Observed) {
	a.relief.mu.Lock()
	last, told := a.relief.toldShort[t.Signal]
	now := a.clock.Now()
	again := !told || now.Sub(last) >= shortPause
	if again {
		if a.relief.toldShort == nil {
			a.relief.toldShort = map[eviction.Signal]time.Time{}
		}
		a.relief.toldShort[t.Signal] = now
	}
	a.relief.mu.Unlock()
	if again {
		a.log.Warn("the node runs short, and there is no pod that may be evicted", "signal", t.Signal,
			"available", t.Signal.Text(o.Available), "threshold", t.Signal.Text(t.Least.Of(o.Capacity)))
	}
}

// mayEvict takes note of who goes, unless somebody else has begun to, for something else that is short.
func (a *Agent) mayEvict(pod types.UID) bool {
	a.relief.mu.Lock()
	defer a.relief.mu.Unlock()
	now := a.clock.Now()
	if a.stillLeaves(now) {
		return false
	}
	a.relief.lastEvicted, a.relief.until = pod, now.Add(leavingPatience)
	return true
}

// leaves says whether the pod that was evicted last is still there, or something that it held.
func (a *Agent) leaves(now time.Time) bool {
	a.relief.mu.Lock()
	defer a.relief.mu.Unlock()
	return a.stillLeaves(now)
}

// stillLeaves is leaves for who holds relief.mu.
func (a *Agent) stillLeaves(now time.Time) bool {
	if !now.Before(a.relief.until) {
		return false
	}
	there := false
	a.locked(func() {
		p := a.core.pods[a.relief.lastEvicted]
		there = p != nil && (p.alive() || p.sandbox == sandboxStopping || p.removing())
	})
	return there
}

// candidates are the pods that may have to go, with what each of their containers uses.
func (a *Agent) candidates(ctx context.Context, signal eviction.Signal) ([]eviction.Pod, map[types.UID][]eviction.Share) {
	var objects []*corev1.Pod
	var out []eviction.Pod
	a.locked(func() {
		for _, uid := range a.core.uids() {
			if p := a.core.pods[uid]; p.evictable() {
				objects = append(objects, p.pod)
				out = append(out, eviction.Pod{UID: uid, Priority: p.class.Priority, Start: p.startTime})
			}
		}
	})
	used := map[types.UID]map[string]int64{}
	if signal.Disk() {
		// The order does not matter: each has its own entry.
		for uid, use := range a.caller.localUses(ctx, objects, measurePatience) {
			if signal.Inodes() {
				used[uid] = map[string]int64{"": use.inodes}
				continue
			}
			used[uid] = map[string]int64{"": use.total()}
			for name, n := range use.containers {
				used[uid][name] = n
				used[uid][""] -= n
			}
		}
	} else if counter, ok := a.runtime.(runtime.ProcessCounter); ok && signal == eviction.PIDAvailable {
		all, err := counter.Processes(ctx)
		if err != nil {
			a.log.Warn("the pods' processes cannot be counted", "error", err)
		}
		for uid, n := range all {
			used[uid] = map[string]int64{"": n}
		}
	} else if meter, ok := a.runtime.(runtime.Meter); ok {
		all, err := meter.Use(ctx)
		if err != nil && !errors.Is(err, runtime.ErrUnmeasured) {
			a.log.Warn("what the pods use cannot be measured", "error", err)
		}
		for _, u := range all {
			if used[u.Pod] == nil {
				used[u.Pod] = map[string]int64{}
			}
			n := u.WorkingSetBytes
			if signal == eviction.PIDAvailable {
				n = u.Processes
			}
			used[u.Pod][u.Container] += n
		}
	}
	shares := map[types.UID][]eviction.Share{}
	for i, pod := range objects {
		resource := signal.Resource()
		asked := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[resource]
		out[i].Request = asked.Value()
		by, known := used[pod.UID]
		out[i].Known = known
		// The order does not matter: it is a sum.
		for _, n := range by {
			out[i].Used += n
		}
		if signal != eviction.MemoryAvailable && resource != corev1.ResourceEphemeralStorage {
			continue
		}
		for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for j := range list {
				request := list[j].Resources.Requests[resource]
				shares[pod.UID] = append(shares[pod.UID], eviction.Share{Container: list[j].Name, Used: by[list[j].Name], Request: request.Value()})
			}
		}
	}
	return out, shares
}

// evictable: it runs something, and is not of those that a node never puts out: critical pods, and pods that came with
// their node.
func (p *podState) evictable() bool {
	return !p.critical() && !p.leaving() && p.alive()
}

// Evict ends a pod because its node runs short of something.
func (c *Core) Evict(uid types.UID, message string, config *eviction.Config, t *eviction.Threshold, now time.Time) {
	p := c.pods[uid]
	if p == nil || !p.evictable() {
		return
	}
	p.verdict = &verdict{evicted, message}
	p.disruptedFor = message
	p.emit(corev1.EventTypeWarning, evicted, message)
	p.beginStop(now, config.Grace(t, p.pod.Spec.TerminationGracePeriodSeconds))
	c.step(p, now)
}

// SetPressure says what the node is short of: pods that would make it worse are refused, as by Kubernetes' node agent.
func (c *Core) SetPressure(p Pressure) { c.pressure = p }

// pressed says why the node takes no such pod now; nil: it takes it.
func (c *Core) pressed(p *podState) *verdict {
	var short []corev1.NodeConditionType
	if c.pressure.Memory {
		short = append(short, corev1.NodeMemoryPressure)
	}
	if c.pressure.Disk {
		short = append(short, corev1.NodeDiskPressure)
	}
	if c.pressure.PID {
		short = append(short, corev1.NodePIDPressure)
	}
	if len(short) == 0 || p.critical() {
		return nil
	}
	if len(short) == 1 && short[0] == corev1.NodeMemoryPressure {
		if model.QOS(p.pod) != corev1.PodQOSBestEffort || toleratesMemoryPressure(p.pod) {
			return nil
		}
	}
	return &verdict{evicted, fmt.Sprintf("The node had condition: %v. ", short)}
}

func toleratesMemoryPressure(pod *corev1.Pod) bool {
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		key := t.Key == corev1.TaintNodeMemoryPressure || t.Key == "" && t.Operator == corev1.TolerationOpExists
		if key && (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == "") && (t.Operator == corev1.TolerationOpExists || t.Value == "") {
			return true
		}
	}
	return false
}
