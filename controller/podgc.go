package controller

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// Kubernetes' figures (GC1, GC2).
const (
	TerminatedPodThreshold = 12_500
	gcPeriodSeconds        = 20
	quarantineSeconds      = 40
)

// PodGC collects the pods that nobody ends otherwise (GC1, GC2).
type PodGC struct {
	// Threshold is how many ended pods are kept; the oldest go first.
	Threshold int

	next    int64            // when the next round is
	missing map[string]int64 // since when a node has been gone that pods are bound to
	surplus []fsm.PodRef     // ended pods that are to go, the first one first
}

// Reconcile returns the deletions of pods of nodes that have been gone for the
// quarantine or are out of service, and of the ended pods above the threshold.
// It looks every 20 seconds, and goes on in its next call when there was more
// than a batch.
func (g *PodGC) Reconcile(v *fsm.View, nowUnixNano int64) []fsm.Command {
	if nowUnixNano < g.next {
		return nil
	}
	out := g.orphans(v, nowUnixNano)
	out = append(out, outOfService(v, Batch-len(out))...)
	out = append(out, g.ended(v, Batch-len(out))...)
	if len(out) < Batch {
		g.next = nowUnixNano + seconds(gcPeriodSeconds)
	}
	return out
}

// orphans are the pods of nodes that are gone, once the node has been so for
// the quarantine: one that was deleted by mistake may come back.
func (g *PodGC) orphans(v *fsm.View, nowUnixNano int64) []fsm.Command {
	gone := map[string]int64{}
	var out []fsm.Command
	v.NodesWithPods(func(node string) bool {
		if _, there := v.Nodes.Get(node); there {
			return true
		}
		since, known := g.missing[node]
		if !known {
			since = nowUnixNano
		}
		gone[node] = since
		if nowUnixNano-since < seconds(quarantineSeconds) {
			return true
		}
		v.PodsOnNode(node, func(pod *corev1.Pod) bool {
			if len(out) < Batch && !heldByFinalizer(pod) {
				c := deleteNow(pod)
				c.DisruptionReason, c.DisruptionMessage = "DeletionByPodGC", "PodGC: node no longer exists"
				out = append(out, c)
			}
			return len(out) < Batch
		})
		return true
	})
	g.missing = gone
	return out
}

// outOfService are the pods that can not end on nodes of which an operator has
// said, by a taint, that they are shut down.
func outOfService(v *fsm.View, room int) []fsm.Command {
	var out []fsm.Command
	v.Nodes.Scan("", func(name string, n *corev1.Node) bool {
		if readyStatus(n) == corev1.ConditionTrue || !slices.ContainsFunc(n.Spec.Taints, isOutOfService) {
			return true
		}
		v.PodsOnNode(name, func(pod *corev1.Pod) bool {
			if len(out) < room && model.Terminating(pod) && !heldByFinalizer(pod) {
				out = append(out, deleteNow(pod))
			}
			return len(out) < room
		})
		return len(out) < room
	})
	return out
}

func isOutOfService(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }

func deleteNow(pod *corev1.Pod) *fsm.DeletePod {
	zero := int64(0)
	return &fsm.DeletePod{
		Key: fsm.PodKey(pod.Namespace, pod.Name), Precondition: fsm.Precondition{UID: string(pod.UID)}, GraceSeconds: &zero,
		Fail: true,
	}
}

// heldByFinalizer: everything is done about the pod, its finalizers are
// somebody else's.
func heldByFinalizer(pod *corev1.Pod) bool {
	return model.Terminating(pod) && len(pod.Finalizers) > 0 &&
		pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// ended are the ended pods above the threshold. They are sorted once for all
// of them, not once a batch.
func (g *PodGC) ended(v *fsm.View, room int) []fsm.Command {
	if len(g.surplus) == 0 {
		g.surplus = surplus(v, g.Threshold)
	}
	var out []fsm.Command
	for len(g.surplus) > 0 && len(out) < room {
		ref := g.surplus[0]
		g.surplus = g.surplus[1:]
		pod, ok := v.Pods.Get(ref.Key)
		if ok && string(pod.UID) == ref.UID && !model.Terminating(pod) {
			out = append(out, &fsm.DeletePod{Key: ref.Key, Precondition: fsm.Precondition{UID: ref.UID}})
		}
	}
	return out
}

// surplus lists the ended pods that are too many: evicted ones first, then the
// oldest, then by name (GC1). Those that are on their way out do not count.
func surplus(v *fsm.View, threshold int) []fsm.PodRef {
	if v.EndedPods() <= threshold {
		return nil
	}
	var pods []*corev1.Pod
	v.ScanEndedPods(func(pod *corev1.Pod) bool {
		if !model.Terminating(pod) {
			pods = append(pods, pod)
		}
		return true
	})
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(
			compareBool(evicted(b), evicted(a)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Name, b.Name),
			strings.Compare(a.Namespace, b.Namespace),
		)
	})
	var out []fsm.PodRef
	for _, pod := range pods[:max(0, len(pods)-threshold)] {
		out = append(out, fsm.PodRef{Key: fsm.PodKey(pod.Namespace, pod.Name), UID: string(pod.UID)})
	}
	return out
}

func evicted(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Evicted"
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
