package fsm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
)

// ReportPods is a batch of what a worker says of its pods: their status, and
// that an ending pod has left the node for good (TM4). What is said of a pod
// that is no longer the node's is passed over.
//
// Refuses nothing; Result.Failed are reports of which nothing was kept.
type ReportPods struct {
	Node    string      `msgpack:"node"`
	Reports []PodReport `msgpack:"reports"`
}

// PodReport is the state of one pod on its node.
type PodReport struct {
	Key    string        `msgpack:"key"`
	UID    string        `msgpack:"uid"`
	Status PodStatusWire `msgpack:"status"`
	// Removed: all the pod's containers are gone from the node.
	Removed bool `msgpack:"removed,omitempty"`
	// Seen is the revision up to which the worker had been told of its pods; 0: it does not say. What is said of pods of a state
	// that is gone is passed over: who is told of them anew, and finds them otherwise, says so.
	Seen int64 `msgpack:"seen,omitempty"`
}

// Apply implements Command.
func (c *ReportPods) Apply(tx *Tx) Result {
	var failed []string
	for i := range c.Reports {
		r := &c.Reports[i]
		if !tx.part(r.Key, func() { tx.reportPod(c.Node, r) }) {
			failed = append(failed, r.Key)
		}
	}
	return Result{Failed: failed}
}

func (tx *Tx) reportPod(node string, r *PodReport) {
	pod, ok := tx.findPod(PodRef{r.Key, r.UID})
	if !ok || pod.Spec.NodeName != node || tx.view.IsLate(r.Seen) {
		return
	}
	ending := r.Removed && model.Terminating(pod)
	if ending && len(pod.Finalizers) == 0 {
		tx.removePod(r.Key, pod)
		return
	}
	if r.Status.Object != nil {
		pod = tx.takeStatus(r.Key, pod, r.Status.Object)
	}
	if ending && (pod.DeletionGracePeriodSeconds == nil || *pod.DeletionGracePeriodSeconds != 0) {
		// A finalizer holds the object, but nothing runs any more.
		zero := int64(0)
		tx.modifyPod(r.Key, pod, func(pod *corev1.Pod) { pod.DeletionGracePeriodSeconds = &zero })
	}
}

// SinceEndsStay is the LogVersion from which on a pod that has ended stays as it has ended.
const SinceEndsStay = 32

// takeStatus stores what the worker says of a pod. One that has ended never
// starts again, and does not end in another way: a worker that has seen another end, as by a state that was replaced by a
// snapshot meanwhile, goes by this one once it is told of it.
func (tx *Tx) takeStatus(key string, old *corev1.Pod, reported *corev1.PodStatus) *corev1.Pod {
	next := tx.mergeStatus(old, reported)
	if next.StartTime != nil && old.Status.StartTime == nil {
		next.StartTime = tx.believable(old, next.StartTime)
	}
	ended := model.Terminal(&corev1.Pod{Status: next})
	if model.Terminal(old) && (!ended || next.Phase != old.Status.Phase && tx.view.Version() >= SinceEndsStay) || equality.Semantic.DeepEqual(next, old.Status) {
		return old
	}
	pod := tx.modifyPod(key, old, func(pod *corev1.Pod) { pod.Status = next })
	if ended && !model.Terminal(old) {
		tx.leftNode(pod)
	}
	return pod
}

// believable is when a pod started, by what its worker says: neither before it got
// its node nor after now. The worker's clock may be wrong, and the start is what
// makes a pod senior for as long as it lives (PR7).
func (tx *Tx) believable(pod *corev1.Pod, said *metav1.Time) *metav1.Time {
	now, placed := tx.now(), model.PlacedAt(pod)
	switch {
	case now.Before(said):
		return &now
	case said.Before(&placed):
		return &placed
	}
	return said
}

// mergeStatus takes over what the worker says, and keeps what is not the
// worker's (model.WorkerStatus): the nomination, the conditions of the
// scheduler and of others, and since when its own are what they are.
func (tx *Tx) mergeStatus(pod *corev1.Pod, reported *corev1.PodStatus) corev1.PodStatus {
	next := *reported
	next.NominatedNodeName = pod.Status.NominatedNodeName
	next.QOSClass = pod.Status.QOSClass
	if next.Phase == "" {
		next.Phase = pod.Status.Phase
	}
	if pod.Status.StartTime != nil {
		next.StartTime = pod.Status.StartTime // seniority is never lost (PR7)
	}
	own := tx.view.workerConditions()
	kept := 0
	for i := range pod.Status.Conditions {
		if !slices.Contains(own, pod.Status.Conditions[i].Type) {
			kept++
		}
	}
	next.Conditions = make([]corev1.PodCondition, 0, kept+len(reported.Conditions))
	for _, c := range pod.Status.Conditions {
		if !slices.Contains(own, c.Type) {
			next.Conditions = append(next.Conditions, c)
		}
	}
	for _, c := range reported.Conditions {
		c.LastTransitionTime = tx.turnedAt(pod, &c)
		i := slices.IndexFunc(next.Conditions, func(o corev1.PodCondition) bool { return o.Type == c.Type })
		switch {
		case i < 0 && !slices.Contains(own, c.Type) && c.Type != corev1.DisruptionTarget && c.Type != corev1.PodScheduled:
			// Others' conditions stay, and no worker adds to them.
		case i < 0:
			next.Conditions = append(next.Conditions, c)
		case c.Type == corev1.DisruptionTarget && !model.Terminal(pod):
			next.Conditions[i] = c // what ended the pod is the last word (PR21)
		}
	}
	if tx.view.Version() >= SinceScheduledGeneration {
		scheduledFor(&next, pod.Generation)
	}
	model.ShareResources(&next, &pod.Spec)
	return next
}

// SinceScheduledGeneration is the LogVersion from which on a bound pod's condition PodScheduled
// tells the generation that its worker has taken note of, as with a kubelet, which writes it anew.
const SinceScheduledGeneration = 29

// scheduledFor says of the condition PodScheduled for which generation it holds: the one that the
// worker has seen, of those that there were.
func scheduledFor(s *corev1.PodStatus, generation int64) {
	c := findCondition(s, corev1.PodScheduled)
	if c != nil && c.Status == corev1.ConditionTrue && s.ObservedGeneration > c.ObservedGeneration && s.ObservedGeneration <= generation {
		c.ObservedGeneration = s.ObservedGeneration
	}
}

// turnedAt is since when a pod's condition is what its worker says: since it was said
// first. The worker's clock may be wrong, and since when pods are ready decides
// which of them go when there are to be fewer (SI6).
func (tx *Tx) turnedAt(pod *corev1.Pod, said *corev1.PodCondition) metav1.Time {
	was := findCondition(&pod.Status, said.Type)
	if was == nil || was.Status != said.Status || was.LastTransitionTime.IsZero() {
		return tx.now()
	}
	return was.LastTransitionTime
}
