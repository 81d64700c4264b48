package informers

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// Interest says which pods a controller can have something to do with: those of a
// namespace with an object that it keeps pods for, and those with a finalizer, which may
// be its own. Most pods are of namespaces in which most controllers have nothing, and
// each of them would look that up for each change of each pod.
//
// It is as old as the change that is told of. That is soon enough: a controller looks at
// all pods of an object that comes, or selects others, after the pods' changes.
type Interest struct {
	keeps func(o *fsm.Object) bool
	in    map[string]int             // namespace: objects that are kept
	pods  func(pod *corev1.Pod) bool // instead: these pods, wherever they are
}

// InObjectsOf is an interest in the pods for which there are objects of a resource.
func InObjectsOf(resource string) *Interest {
	return &Interest{in: map[string]int{}, keeps: func(o *fsm.Object) bool { return o.Resource == resource }}
}

// InServices is an interest in the pods that services can select.
func InServices() *Interest {
	return &Interest{in: map[string]int{}, keeps: func(o *fsm.Object) bool {
		s, ok := o.Value.(*corev1.Service)
		return ok && s.Spec.Selector != nil
	}}
}

// WithClaims is an interest in the pods that claim volumes, or have them made.
func WithClaims() *Interest {
	return &Interest{pods: func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
	}}
}

// WithDevices is an interest in the pods that claim devices.
func WithDevices() *Interest {
	return &Interest{pods: func(pod *corev1.Pod) bool {
		return len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
	}}
}

// begin takes in what there is.
func (i *Interest) begin(v *fsm.View) {
	if i.keeps == nil {
		return
	}
	v.Objects.Scan("", func(_ string, o *fsm.Object) bool {
		i.count(o, 1)
		return true
	})
}

// follow takes in a change.
func (i *Interest) follow(c *store.Change) {
	old, _ := c.Old.(*fsm.Object)
	now, _ := c.New.(*fsm.Object)
	i.count(old, -1)
	i.count(now, 1)
}

func (i *Interest) count(o *fsm.Object, by int) {
	if o == nil || i.keeps == nil || !i.keeps(o) {
		return
	}
	namespace := o.Value.GetNamespace()
	if i.in[namespace] += by; i.in[namespace] == 0 {
		delete(i.in, namespace)
	}
}

// looksItself: who keeps pods for objects looks at those of each of its objects when it begins, and has to be told by themselves of those
// alone that nobody keeps, or that are not at rest.
func (i *Interest) looksItself() bool { return i != nil && i.pods == nil }

// atRest: a controller's pod that runs, is ready, and that nobody but its controller has something to do with. A Job counts its pods by a
// finalizer, when they have ended.
func atRest(pod *corev1.Pod) bool {
	held := slices.ContainsFunc(pod.Finalizers, func(name string) bool { return name != batchv1.JobTrackingFinalizer })
	return pod.Status.Phase == corev1.PodRunning && !held && !model.Terminating(pod) && metav1.GetControllerOfNoCopy(pod) != nil && model.Ready(pod)
}

// has says whether a controller may have something to do with a pod. Either is nil for
// one that came or went; who has no interest has it in everything.
func (i *Interest) has(old, now any) bool {
	if i == nil {
		return true
	}
	for _, o := range [...]any{old, now} {
		pod, ok := o.(*corev1.Pod)
		if ok && (i.pods != nil && i.pods(pod) || i.pods == nil && (i.in[pod.Namespace] > 0 || len(pod.Finalizers) > 0)) {
			return true
		}
	}
	return false
}
