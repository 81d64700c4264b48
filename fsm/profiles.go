package fsm

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// Whose pods are placed is replicated configuration: those that name the
// scheduler of one of its profiles. The others are stored, and left to whom
// they name.

// schedulerOf is the name of the scheduler that a pod is left to: of a profile
// of the configuration, or of another one.
func schedulerOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName)
}

// profileFor is the profile of those who name a scheduler; nil if there is none.
func (v *View) profileFor(scheduler string) *berthv1.SchedulerProfile {
	return v.SchedulerConfig().Spec.Profile(scheduler)
}

// waits says whether a pod belongs in the queue.
func (v *View) waits(pod *corev1.Pod) bool {
	return unplaced(pod) && v.profileFor(pod.Spec.SchedulerName) != nil
}

// unplaced: a scheduler, whichever, has still to find a node for the pod.
func unplaced(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && !model.Terminating(pod) && !model.Terminal(pod)
}

// unclaimedKey sorts the pods that nobody here places by the name of their
// scheduler, the oldest first. A pod's author may have written a NUL into it, with which no profile has a name.
func unclaimedKey(pod *corev1.Pod, key string) string {
	b := append([]byte(strings.ReplaceAll(schedulerOf(pod), "\x00", "\x01")), 0)
	b = binary.BigEndian.AppendUint64(b, uint64(pod.CreationTimestamp.Unix())^1<<63)
	return string(append(b, key...))
}

// isUnclaimed says whether a pod is to be found by a profile that comes: it is
// not in the queue and has no profile, or has one since a moment ago.
func (v *View) isUnclaimed(key string, pod *corev1.Pod) bool {
	if !unplaced(pod) || !v.mayBeUnclaimed(pod.Spec.SchedulerName) {
		return false
	}
	_, queued := v.Queue.Get(key)
	return !queued
}

func (v *View) mayBeUnclaimed(scheduler string) bool {
	if v.profileFor(scheduler) == nil {
		return true
	}
	_, joining := v.pending.Get(queue.PendingJoin)
	return joining
}

// indexUnclaimed keeps the pods that nobody here places, so that a profile that
// is added finds its own.
func indexUnclaimed(v *live, key string, old, now *corev1.Pod, hadOld, hasNow bool) {
	if hadOld && v.unclaimed.Len() > 0 {
		v.unclaimed.Delete(unclaimedKey(old, key))
	}
	if hasNow && v.isUnclaimed(key, now) {
		v.unclaimed.Set(unclaimedKey(now, key), now)
	}
}

// indexQueued is indexUnclaimed for pods that enter the queue or leave it.
func indexQueued(v *live, key string, old, now *QueueEntry) {
	switch {
	case old == nil && v.unclaimed.Len() > 0:
		if pod, ok := v.Pods.Get(key); ok {
			v.unclaimed.Delete(unclaimedKey(pod, key))
		}
	case now == nil && v.mayBeUnclaimed(old.Class().SchedulerName):
		if pod, ok := v.Pods.Get(key); ok && v.isUnclaimed(key, pod) {
			v.unclaimed.Set(unclaimedKey(pod, key), pod)
		}
	}
}

// changedProfiles says whether scheduler names have a profile now that had none,
// and the other way round.
func changedProfiles(before, after *berthv1.SchedulerConfiguration) (joined, left bool) {
	only := func(in, notIn *berthv1.SchedulerConfiguration) bool {
		return slices.ContainsFunc(in.Spec.Profiles, func(p berthv1.SchedulerProfile) bool {
			return notIn.Spec.Profile(p.SchedulerName) == nil
		})
	}
	return only(after, before), only(before, after)
}

// A change of profiles costs what the pods cost that it brings into the queue, or
// takes out of it, and there may be any number of them: so many an entry. Until
// one whose profile is gone has left, nobody decides about it (schedulable, Ready).

// followProfiles has those enter the queue who name a new profile, and those leave
// it whose profile is gone, from the end of the command on.
func (tx *Tx) followProfiles(before, after *berthv1.SchedulerConfiguration) {
	v := tx.view
	joined, left := changedProfiles(before, after)
	if joined && v.unclaimed.Len() > 0 {
		put(tx, v.pending, queue.PendingJoin, new(queue.Pending))
	}
	if left && v.Queue.Len() > 0 {
		put(tx, v.pending, queue.PendingLeave, new(queue.Pending)) // from the beginning
	}
}

// letOut takes those out of the queue who have no profile, from a key on, with the
// room that was being cleared for them.
func (tx *Tx) letOut(from string) {
	v := tx.view
	var out []string
	next := ""
	v.Queue.ScanFrom("", from, func(key string, e *QueueEntry) bool {
		if tx.work.HalfOver() {
			next = key
			return false
		}
		tx.work.Look()
		if v.profileFor(e.Class().SchedulerName) == nil {
			tx.work.Charge(costLeave)
			out = append(out, key)
		}
		return true
	})
	for _, key := range out {
		e, _ := v.Queue.Get(key)
		if n, ok := v.Nominations.Get(key); ok {
			tx.work.Charge(costLeave)
			tx.releaseNomination(n, noProfile(e.Class().SchedulerName))
		}
		tx.dequeue(key)
	}
	tx.remember(queue.PendingLeave, nil, next, false)
}

// takeIn brings those into the queue who have a profile and are not in it, profile
// by profile, the oldest first.
func (tx *Tx) takeIn() {
	v := tx.view
	profiles := v.SchedulerConfig().Spec.Profiles
	for i := range profiles {
		prefix := profiles[i].SchedulerName + "\x00"
		for {
			at, pod, ok := v.unclaimed.First(prefix)
			if !ok || !strings.HasPrefix(at, prefix) {
				break
			}
			if tx.work.HalfOver() {
				return
			}
			tx.work.Charge(costJoin)
			tx.enqueue(PodKey(pod.Namespace, pod.Name), pod, v.compile(pod))
		}
	}
	remove(tx, v.pending, queue.PendingJoin)
}

// noProfile is why nothing is decided about a pod any more.
func noProfile(scheduler string) string {
	return "no profile of the scheduler configuration is for " + cmp.Or(scheduler, corev1.DefaultSchedulerName) + " any more"
}

// leaving says whether there may be pods in the queue that have no profile.
func (v *View) leaving() bool {
	if v.pending.Len() == 0 {
		return false
	}
	_, is := v.pending.Get(queue.PendingLeave)
	return is
}

// claimed calls f as the queue would, but for those who have no profile any more.
func (v *View) claimed(f func(e *QueueEntry) bool) func(e *QueueEntry) bool {
	if !v.leaving() {
		return f
	}
	return func(e *QueueEntry) bool { return v.profileFor(e.Class().SchedulerName) == nil || f(e) }
}
