package worker

import (
	"context"
	"fmt"
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

// relief is what the node does about what it runs short of. It belongs to one measurement at a time.
type relief struct {
	config eviction.Config
	state  eviction.State
	// lastEvicted and until: nobody else goes before that one has left, or until then.
	lastEvicted types.UID
	until       time.Time
}

// relieve frees what is short: earlier runs and images that nobody uses first, where a disk is full, and then one pod.
// It returns what is observed afterwards.
func (a *Agent) relieve(ctx context.Context, t *eviction.Threshold, seen eviction.Observations) {
	now := a.clock.Now()
	if a.leaves(now) {
		return
	}
	if r, ok := a.runtime.(runtime.Reclaimer); ok && t.Signal.Disk() {
		if err := r.Reclaim(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("not everything that no pod needs could be removed", "signal", t.Signal, "error", err)
		}
		if again, err := a.opts.Observe(ctx); err == nil {
			if o, known := again[t.Signal]; known && o.Available >= t.Least.Of(o.Capacity)+t.Reclaim.Of(o.Capacity) {
				a.log.Info("what no pod needs was removed, and that is enough", "signal", t.Signal)
				return
			}
			seen = again
		}
	}
	pods, shares := a.candidates(ctx, t.Signal)
	eviction.Rank(t.Signal, pods)
	if len(pods) == 0 {
		a.log.Warn("the node runs short, and there is no pod that may be evicted", "signal", t.Signal, "available", seen[t.Signal].Available)
		return
	}
	uid := pods[0].UID
	message := eviction.Message(t, seen[t.Signal], shares[uid])
	a.log.Warn("the node runs short: evicting a pod", "signal", t.Signal, "pod", uid, "message", message)
	a.caller.meters.evicted(t.Signal)
	a.inputs.put(func(now time.Time) { a.core.Evict(uid, message, &a.relief.config, t, now) })
	a.relief.lastEvicted, a.relief.until = uid, now.Add(leavingPatience)
}

// leaves says whether the pod that was evicted last is still there, or something that it held.
func (a *Agent) leaves(now time.Time) bool {
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
		for _, pod := range objects {
			use, err := a.caller.localUse(ctx, pod, true)
			switch {
			case err != nil: // it is not known
			case signal.Inodes():
				used[pod.UID] = map[string]int64{"": use.inodes}
			default:
				used[pod.UID] = map[string]int64{"": use.total()}
				for name, n := range use.containers {
					used[pod.UID][name] = n
					used[pod.UID][""] -= n
				}
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
		if err != nil {
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
