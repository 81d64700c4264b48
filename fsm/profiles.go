package fsm

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// Whose pods are placed is replicated configuration: those that name the
// scheduler of one of its profiles. The others are stored, and left to whom
// they name.

// schedulerOf is the name of the scheduler that a pod is left to: of a profile
// of the configuration, or of another one.
func schedulerOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName)
}

// waits says whether a pod belongs in the queue.
func (v *View) waits(pod *corev1.Pod) bool {
	return unplaced(pod) && v.SchedulerConfig().Spec.Profile(pod.Spec.SchedulerName) != nil
}

// unplaced: a scheduler, whichever, has still to find a node for the pod.
func unplaced(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && !model.Terminating(pod) && !model.Terminal(pod)
}

// unclaimedKey sorts the pods that wait for another scheduler by its name.
func unclaimedKey(pod *corev1.Pod, key string) string { return pod.Spec.SchedulerName + "\x00" + key }

// indexUnclaimed keeps the pods that nobody here places, so that a profile that
// is added finds its own.
func indexUnclaimed(v *live, key string, old, new *corev1.Pod, hadOld, hasNew bool) {
	if hadOld && v.unclaimed.Len() > 0 {
		v.unclaimed.Delete(unclaimedKey(old, key))
	}
	if hasNew && unplaced(new) && !v.waits(new) {
		v.unclaimed.Set(unclaimedKey(new, key), new)
	}
}

// indexProfiles follows a change of the profiles.
func indexProfiles(v *live, before, after *berthv1.SchedulerConfiguration) {
	joined, left := changedProfiles(before, after)
	for _, pod := range v.unclaimedBy(joined) {
		v.unclaimed.Delete(unclaimedKey(pod, PodKey(pod.Namespace, pod.Name)))
	}
	for _, pod := range v.waitingFor(left) {
		v.unclaimed.Set(unclaimedKey(pod, PodKey(pod.Namespace, pod.Name)), pod)
	}
}

// changedProfiles lists the scheduler names that only one of two configurations
// has a profile for.
func changedProfiles(before, after *berthv1.SchedulerConfiguration) (joined, left []string) {
	only := func(in, notIn *berthv1.SchedulerConfiguration) (names []string) {
		for i := range in.Spec.Profiles {
			if name := in.Spec.Profiles[i].SchedulerName; notIn.Spec.Profile(name) == nil {
				names = append(names, name)
			}
		}
		return names
	}
	return only(after, before), only(before, after)
}

// unclaimedBy lists the pods without a profile that name one of these
// schedulers, the oldest first.
func (v *View) unclaimedBy(schedulers []string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, name := range schedulers {
		for _, written := range spellings(name) {
			v.unclaimed.ScanFrom(written+"\x00", written+"\x00", func(_ string, pod *corev1.Pod) bool {
				if pod.Spec.SchedulerName == written {
					pods = append(pods, pod)
				}
				return true
			})
		}
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return pods
}

// spellings is how a pod may name a scheduler.
func spellings(scheduler string) []string {
	if scheduler == corev1.DefaultSchedulerName {
		return []string{scheduler, ""}
	}
	return []string{scheduler}
}

// waitingFor lists the pods in the queue that name one of these schedulers.
func (v *View) waitingFor(schedulers []string) []*corev1.Pod {
	if len(schedulers) == 0 {
		return nil
	}
	var pods []*corev1.Pod
	v.Queue.Scan("", func(key string, _ *QueueEntry) bool {
		if pod, ok := v.Pods.Get(key); ok && slices.ContainsFunc(schedulers, func(name string) bool {
			return slices.Contains(spellings(name), pod.Spec.SchedulerName)
		}) {
			pods = append(pods, pod)
		}
		return true
	})
	return pods
}

// followProfiles brings those into the queue who name a new profile, and takes
// those out whose profile is gone, with the room that was being cleared for
// them. It costs what these pods cost.
func (tx *Tx) followProfiles(joined, left []*corev1.Pod) {
	v := tx.view
	for _, pod := range left {
		key := PodKey(pod.Namespace, pod.Name)
		if n, ok := v.Nominations.Get(key); ok {
			tx.releaseNomination(n, "no profile of the scheduler configuration is for "+pod.Spec.SchedulerName+" any more")
		}
		tx.dequeue(key)
	}
	for _, pod := range joined {
		tx.enqueue(PodKey(pod.Namespace, pod.Name), pod, v.cache.class(pod))
	}
}
