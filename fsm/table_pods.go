package fsm

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/usage"
)

var podTable = func() *tableDef[*corev1.Pod] {
	def := protoTable("pods", indexPod)
	def.Size = podBytes
	def.Bytes = (*live).podTakes
	def.Restore = func(v *live, b []byte) (*corev1.Pod, error) { return v.cache.restore(b) }
	return def
}()

// indexPod keeps what is used of nodes, who waits for another scheduler, who has
// ended, and what budgets, owners and counters make of pods.
func indexPod(v *live, key string, old, now *corev1.Pod, hadOld, hasNow bool) {
	v.cache.specs.follow(old, now)
	indexUnclaimed(v, key, old, now, hadOld, hasNow)
	var is *model.Class
	was := v.usage.ClassOf(old)
	if hasNow && now.Spec.NodeName != "" {
		is = v.placedClass(key, old, now, was)
	}
	v.cache.work += v.portWork(old, now, was, is)
	v.usage.PutPod(old, now, was, is)
	v.countPod(old, now, was, is)
	if hasNow && model.Terminal(now) {
		v.ended.Set(key, now)
	} else if hadOld && model.Terminal(old) {
		v.ended.Delete(key)
	}
	v.budgets.PutPod(v.budgetState(), old, now)
	v.owners.PutPod(key, old, now)
	v.indexPodUse(old, now)
	indexClaims(v, old, now)
	indexDevicePod(v, key, old, now)
}

// portWork is the work of a change of the host ports that are used of nodes: the more a node has, the more is copied.
func (v *live) portWork(old, now *corev1.Pod, was, is *model.Class) (work int64) {
	if from, to := usage.NodeOf(old), usage.NodeOf(now); from != to || was != is {
		if from != "" {
			work += int64(len(was.Ports) * (costPort + v.usage.Of(from).Ports.Len()/portsPerUnit))
		}
		if to != "" {
			work += int64(len(is.Ports) * (costPort + v.usage.Of(to).Ports.Len()/portsPerUnit))
		}
	}
	return work
}

// placedClass is the class of a pod on a node, from where it is known already:
// most changes of a pod leave alone what it asks for.
func (v *live) placedClass(key string, old, now *corev1.Pod, was *model.Class) *model.Class {
	if old != nil && v.asksTheSame(old, now) {
		if was != nil {
			return was
		}
		if e, ok := v.Queue.Get(key); ok && e.UID == now.UID {
			return e.Class() // it is being bound
		}
	}
	return v.compile(now)
}

// classOf is the class of a pod, from where it is known already if this is the
// pod's newest state.
func (v *live) classOf(pod *corev1.Pod) *model.Class {
	key := PodKey(pod.Namespace, pod.Name)
	if now, ok := v.Pods.Get(key); ok && now == pod {
		if pod.Spec.NodeName != "" {
			return v.usage.ClassOf(pod)
		}
		if e, ok := v.Queue.Get(key); ok && e.UID == pod.UID {
			return e.Class()
		}
	}
	return v.compile(pod)
}

// asksTheSame says whether two states of a pod surely have one class. Specs
// are immutable and shared, so one slice of containers means one spec, but for
// the node.
func (v *live) asksTheSame(a, b *corev1.Pod) bool {
	return sameSpec(&a.Spec, &b.Spec) && maps.Equal(a.Labels, b.Labels) && model.DemandsStrictBudgets(a) == model.DemandsStrictBudgets(b) &&
		(!v.resizes() || model.SameCharge(a, b))
}

func sameSpec(a, b *corev1.PodSpec) bool {
	return len(a.Containers) > 0 && len(a.Containers) == len(b.Containers) && &a.Containers[0] == &b.Containers[0]
}

// PodKey is the key of a pod in the tables.
func PodKey(namespace, name string) string { return namespace + "/" + name }
