package controller

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// TaintEviction ends the pods that do not tolerate a NoExecute taint of their
// node, or no longer: their toleration's seconds count from when the taint was
// added, whoever leads (PD12, AF4).
//
// Its memory spares it the pods of nodes on which nothing has changed and
// nothing is due: taints that everybody tolerates cost nothing.
type TaintEviction struct {
	looked map[string]look
	held   bool
}

// look is what was found on a node.
type look struct {
	node  *corev1.Node
	usage *model.Usage // another one whenever a pod comes, goes, asks for something else or tolerates otherwise
	next  int64        // when the next pod has to go
}

const never = math.MaxInt64

// Reconcile returns the deletions that are due. hold stops those for the sake
// of unreachable nodes (see NodeLifecycle.Held).
func (e *TaintEviction) Reconcile(v *fsm.View, hold bool, nowUnixNano int64) []fsm.Command {
	before := e.looked
	if hold != e.held {
		before = nil
	}
	e.looked, e.held = make(map[string]look, len(before)), hold
	var out []fsm.Command
	v.Nodes.Scan("", func(name string, n *corev1.Node) bool {
		if len(n.Spec.Taints) == 0 {
			return true
		}
		is := look{node: n, usage: v.Usage(name), next: never}
		if was, ok := before[name]; ok && was.node == is.node && was.usage == is.usage && nowUnixNano < was.next {
			e.looked[name] = was
			return true
		}
		taints := noExecute(n, hold)
		if len(taints) == 0 {
			return true
		}
		v.PodsOnNode(name, func(pod *corev1.Pod) bool {
			if model.Terminating(pod) || model.Terminal(pod) {
				return true
			}
			at := leavesAt(pod, taints)
			is.next = min(is.next, at)
			if at > nowUnixNano {
				return true
			}
			out = append(out, &fsm.DeletePod{
				Key:               fsm.PodKey(pod.Namespace, pod.Name),
				Precondition:      fsm.Precondition{UID: string(pod.UID)},
				DisruptionReason:  "DeletionByTaintManager",
				DisruptionMessage: "Taint manager: deleting due to NoExecute taint",
			})
			return len(out) < Batch
		})
		if len(out) < Batch {
			e.looked[name] = is
		}
		return len(out) < Batch
	})
	return out
}

func noExecute(n *corev1.Node, hold bool) []*corev1.Taint {
	var out []*corev1.Taint
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectNoExecute && !(hold && t.Key == corev1.TaintNodeUnreachable) {
			out = append(out, t)
		}
	}
	return out
}

// leavesAt is when the pod has to go: at once (0) if it does not tolerate one
// of the taints, else when the first of its tolerations ends. Of several
// tolerations for one taint the first that matches holds.
func leavesAt(pod *corev1.Pod, taints []*corev1.Taint) int64 {
	at := int64(never)
	for _, taint := range taints {
		toleration := matching(pod.Spec.Tolerations, taint)
		switch {
		case toleration == nil:
			return 0
		case toleration.TolerationSeconds == nil:
		case *toleration.TolerationSeconds <= 0:
			return 0
		case taint.TimeAdded != nil: // who stores a taint stamps it
			at = min(at, after(taint.TimeAdded.UnixNano(), *toleration.TolerationSeconds))
		}
	}
	return at
}

// after adds seconds, of which a user may have given as many as there are.
func after(unixNano, s int64) int64 {
	if s > (never-unixNano)/seconds(1) {
		return never
	}
	return unixNano + seconds(s)
}

func matching(tolerations []corev1.Toleration, taint *corev1.Taint) *corev1.Toleration {
	for i := range tolerations {
		if model.Tolerates(&tolerations[i], taint) {
			return &tolerations[i]
		}
	}
	return nil
}
