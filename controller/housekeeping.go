package controller

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// EventSeconds is how long an event is kept.
const EventSeconds = 3600

// Events removes events that are too old.
func Events(v *fsm.View, nowUnixNano int64) []fsm.Command {
	limit := nowUnixNano - seconds(EventSeconds)
	if oldest, ok := v.OldestEventUnixNano(); !ok || oldest >= limit {
		return nil
	}
	return []fsm.Command{&fsm.DeleteEvents{BeforeUnixNano: limit, Limit: Batch}}
}

// Nominations releases the nominations whose deadline has passed: their
// victims did not go in time (NM7).
func Nominations(v *fsm.View, nowUnixNano int64) []fsm.Command {
	var late []fsm.PodRef
	v.Nominations.Scan("", func(key string, n *fsm.Nomination) bool {
		if n.DeadlineUnixNano <= nowUnixNano {
			late = append(late, fsm.PodRef{Key: key, UID: string(n.UID)})
		}
		return len(late) < Batch
	})
	if len(late) == 0 {
		return nil
	}
	return []fsm.Command{&fsm.ReleaseNominations{Pods: late}}
}

// PodGC collects the pods that nobody ends otherwise (GC1, GC2).
type PodGC struct {
	// Threshold is how many ended pods are kept; the oldest go first.
	Threshold int
	// missing is since when a node has been gone that pods are bound to.
	missing map[string]int64
}

// Kubernetes' figures (GC1, GC2).
const (
	TerminatedPodThreshold = 12_500
	quarantineSeconds      = 40
)

// Reconcile returns the deletions of pods of nodes that have been gone for the
// quarantine, and of the ended pods above the threshold. Its cost is that of
// the nodes that have pods, and of the ended pods.
func (g *PodGC) Reconcile(v *fsm.View, nowUnixNano int64) []fsm.Command {
	out := g.orphans(v, nowUnixNano)
	return append(out, g.ended(v)...)
}

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
			zero := int64(0)
			out = append(out, &fsm.DeletePod{
				Key: fsm.PodKey(pod.Namespace, pod.Name), Precondition: fsm.Precondition{UID: string(pod.UID)},
				GraceSeconds:      &zero,
				DisruptionReason:  "DeletionByPodGC",
				DisruptionMessage: "PodGC: node no longer exists",
			})
			return len(out) < Batch
		})
		return len(out) < Batch
	})
	g.missing = gone
	return out
}

func (g *PodGC) ended(v *fsm.View) []fsm.Command {
	surplus := v.EndedPods() - g.Threshold
	if surplus <= 0 {
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
		if evictedA, evictedB := a.Status.Reason == "Evicted", b.Status.Reason == "Evicted"; evictedA != evictedB {
			if evictedA {
				return -1
			}
			return 1
		}
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	var out []fsm.Command
	for _, pod := range pods[:min(surplus, Batch, len(pods))] {
		out = append(out, &fsm.DeletePod{Key: fsm.PodKey(pod.Namespace, pod.Name), Precondition: fsm.Precondition{UID: string(pod.UID)}})
	}
	return out
}
