package fsm

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// sound checks what holds in every state.
func (r *random) sound(t *rapid.T) {
	v := r.view()
	r.checkNodes(t, v)
	r.checkPods(t, v)
	r.checkQueue(t, v)
	r.checkNominations(t, v)
	r.checkBudgets(t, v)
	r.checkQuotas(t, v)
	compareViews(t, "recomputed", v, restoredFrom(t, v).View())
}

// checkNodes: what is used is what the pods ask for, and no more than what the
// node has.
func (r *random) checkNodes(t *rapid.T, v *View) {
	used, given := map[string]model.Usage{}, map[string]model.Resources{}
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		if p.Spec.NodeName != "" && !model.Terminal(p) {
			used[p.Spec.NodeName] = used[p.Spec.NodeName].With(model.ClassOf(model.Charged(p)))
			given[p.Spec.NodeName] = given[p.Spec.NodeName].Add(setAside(p))
		}
		return true
	})
	v.Nodes.Scan("", func(name string, n *corev1.Node) bool {
		u := used[name]
		if got := v.Usage(name); !got.Requested.Equal(u.Requested) || got.Ports.String() != u.Ports.String() {
			t.Fatalf("%s: the pods use %+v, the index says %+v", name, u, *got)
		}
		left := model.Allocatable(n).Sub(given[name]) // what pods merely want is more than there is now and then
		if left.MilliCPU < 0 || left.MemoryBytes < 0 || left.Pods < 0 {
			t.Fatalf("%s is overcommitted: %+v left", name, left)
		}
		v.ClassesOnNode(name, func(pod *corev1.Pod, c *model.Class) bool {
			if !model.Terminal(pod) && slices.ContainsFunc(c.Ports, u.Ports.Without(c.Ports).Take) {
				t.Fatalf("%s: another pod has a port of %s", name, pod.Name)
			}
			return true
		})
		return true
	})
}

// setAside is what a pod's node has set aside for it, as far as it has said so.
func setAside(p *corev1.Pod) model.Resources {
	if s := p.Status.ContainerStatuses; len(s) > 0 {
		pod := *p
		pod.Spec.Containers = slices.Clone(p.Spec.Containers)
		pod.Spec.Containers[0].Resources.Requests = s[0].AllocatedResources
		return model.PodRequest(&pod)
	}
	return model.PodRequest(p)
}

// checkPods: a pod that is bound stays where it is (PO2), and everybody who
// waits has an entry.
func (r *random) checkPods(t *rapid.T, v *View) {
	v.Pods.Scan("", func(key string, p *corev1.Pod) bool {
		uid := string(p.UID)
		if was, ok := r.bound[uid]; ok && was != p.Spec.NodeName {
			t.Fatalf("%s moved from %s to %s", key, was, p.Spec.NodeName)
		}
		if p.Spec.NodeName != "" {
			r.bound[uid] = p.Spec.NodeName
		}
		e, queued := v.Queue.Get(key)
		joins, leaves := v.isPending(queue.PendingJoin), v.isPending(queue.PendingLeave) // a panic may hold that up
		if waits := v.waits(p); waits && !queued && !joins || queued && !waits && !leaves {
			t.Fatalf("%s waits: %t, has an entry: %t", key, waits, queued)
		}
		if queued && e.UID != p.UID {
			t.Fatalf("%s: the entry is of another pod", key)
		}
		n, nominated := v.Nominations.Get(key)
		if nominated != (p.Status.NominatedNodeName != "") || nominated && (n.Node != p.Status.NominatedNodeName || n.UID != p.UID) {
			t.Fatalf("%s: the status says nominated to %q, the nomination is %+v", key, p.Status.NominatedNodeName, n)
		}
		return true
	})
}

// checkQueue: every entry has its pod, and stands where its state puts it.
func (r *random) checkQueue(t *rapid.T, v *View) {
	q := v.QueueLengths()
	gated := 0
	v.Queue.Scan("", func(key string, e *QueueEntry) bool {
		p, ok := v.Pods.Get(key)
		if !ok {
			t.Fatalf("%s has an entry and is no pod", key)
		}
		if e.Priority != model.Priority(p) || e.Class().Signature != model.ClassOf(p).Signature {
			t.Fatalf("%s: the entry does not ask for what the pod asks for", key)
		}
		if e.Promised() != v.promisedTo(key) {
			t.Fatalf("%s: the entry is promised %v, the pod is promised %v", key, e.Promised(), v.promisedTo(key))
		}
		if (e.State == berthv1.QueueGated) != model.Gated(p) {
			t.Fatalf("%s: gated %t, state %s", key, model.Gated(p), e.State)
		}
		if e.State == berthv1.QueueGated {
			gated++
		}
		return true
	})
	if gated != q.Gated {
		t.Fatalf("%d entries have no place in the queue, %d are gated", q.Gated, gated)
	}
}

// checkNominations: a nomination has its pod, which waits, its node, and
// victims that are on their way out there and give way to it.
func (r *random) checkNominations(t *rapid.T, v *View) {
	v.Nominations.Scan("", func(key string, n *Nomination) bool {
		if _, waits := v.Queue.Get(key); !waits {
			t.Fatalf("%s is nominated and does not wait", key)
		}
		if _, there := v.Nodes.Get(n.Node); !there {
			t.Fatalf("%s is nominated to %s, which is gone", key, n.Node)
		}
		if _, recorded := v.Preemptions.Get(n.Preemption); n.Reserved != (n.Preemption == "") || !n.Reserved && !recorded || !n.Reserved && !strings.HasPrefix(n.Preemption, "default/") {
			t.Fatalf("%s: nothing is recorded of its preemption", key)
		}
		for _, ref := range n.Victims {
			p, ok := v.Pods.Get(ref.Key)
			if !ok || p.UID != ref.UID || p.Spec.NodeName != cmp.Or(ref.Node, n.Node) || !model.Terminating(p) || model.Terminal(p) || model.Priority(p) >= n.Priority {
				t.Fatalf("%s waits for %s, which is no victim on its way out of %s", key, ref.Key, n.Node)
			}
		}
		return true
	})
}

func (v *View) isPending(key string) bool {
	_, is := v.pending.Get(key)
	return is
}
