package workloads

import (
	"encoding/json"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	podcontroller "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/history"
	"k8s.io/kubernetes/pkg/controller/volume/common"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/informers"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/owners"
)

// opening gives a row's object as it was before it was sealed.
type opening func(row *fsm.Object) (*fsm.Object, error)

// secrets are told of as they are stored, and opened for who gets one. What cannot be opened
// here is shown as it is.
func secrets(open opening) *informers.Rows {
	r := informers.Plain("secrets")
	r.Get = func(v *fsm.View, key string) (any, bool) {
		o, ok := v.Objects.Get("secrets/" + key)
		if !ok {
			return nil, false
		}
		if opened, err := open(o); err == nil {
			o = opened
		}
		return o.Value, true
	}
	return r
}

// statefulSets are told of as they are stored. Who gets one gets none that has more pods than may be, as one may have that
// was stored before there was a bound: its controller makes all of them in memory at once, from the template or from the
// one before. The API counts what the template takes a little otherwise, and here twice as much is let through.
func statefulSets() *informers.Rows {
	r := informers.Plain("statefulsets")
	get := r.Get
	r.Get = func(v *fsm.View, key string) (any, bool) {
		o, ok := get(v, key)
		if !ok || tooManyPods(v, o.(*appsv1.StatefulSet)) {
			return nil, false
		}
		return o, true
	}
	return r
}

func tooManyPods(v *fsm.View, set *appsv1.StatefulSet) bool {
	if set.Spec.Replicas == nil || *set.Spec.Replicas <= fewPods {
		return false
	}
	bytes := 0
	if b, err := json.Marshal(&set.Spec.Template); err == nil {
		bytes = len(b)
	}
	if before, ok := v.Objects.Get(fsm.ObjectKey(controllerRevisions, set.Namespace, set.Status.CurrentRevision)); ok {
		bytes = max(bytes, len(before.Value.(*appsv1.ControllerRevision).Data.Raw))
	}
	return *set.Spec.Replicas > model.MostSetPods(bytes/2)
}

// fewPods are so many that no template can be too large for them.
const fewPods = 16

// daemonSets are told of as they are stored. Who gets one is given no larger numbers of pods that may be replaced at a
// time than there are nodes anywhere: its controller makes room for as many.
func daemonSets() *informers.Rows {
	r := informers.Plain("daemonsets")
	get := r.Get
	r.Get = func(v *fsm.View, key string) (any, bool) {
		o, ok := get(v, key)
		if !ok {
			return nil, false
		}
		set := o.(*appsv1.DaemonSet)
		u := set.Spec.UpdateStrategy.RollingUpdate
		if u == nil || !isLarge(u.MaxUnavailable) && !isLarge(u.MaxSurge) {
			return set, true
		}
		clipped := *set
		clipped.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: clip(u.MaxUnavailable), MaxSurge: clip(u.MaxSurge)}
		return &clipped, true
	}
	return r
}

const mostAtATime = 100_000

func isLarge(n *intstr.IntOrString) bool {
	return n != nil && n.Type == intstr.Int && n.IntVal > mostAtATime
}

func clip(n *intstr.IntOrString) *intstr.IntOrString {
	if !isLarge(n) {
		return n
	}
	most := intstr.FromInt32(mostAtATime)
	return &most
}

// gathered are all that a walk comes by.
func gathered[T any](walk func(f func(o T) bool)) []any {
	out := []any{}
	walk(func(o T) bool {
		out = append(out, o)
		return true
	})
	return out
}

func pods() *informers.Rows {
	r := informers.Typed("pods", func(v *fsm.View) fsm.Table[*corev1.Pod] { return v.Pods })
	r.Indexes = map[string]informers.Index{
		podcontroller.PodControllerIndex: func(v *fsm.View, value string) []any {
			out := []any{}
			add := func(_ string, pod *corev1.Pod) bool {
				out = append(out, pod)
				return true
			}
			if owner, ok := ownerOf(value); ok {
				v.PodsOf(owner, add)
			} else {
				v.Orphans(value, add) // who has ended is nobody's any more
			}
			return out
		},
		podcontroller.PodNodeNameKeyIndex: func(v *fsm.View, node string) []any {
			return gathered(func(f func(pod *corev1.Pod) bool) { v.PodsOnNode(node, f) })
		},
		common.PodPVCIndex: func(v *fsm.View, claim string) []any {
			out := []any{}
			v.PodsWithClaim(claim, func(pod *corev1.Pod) bool {
				out = append(out, pod)
				return true
			})
			return out
		},
	}
	return r
}

func nodes() *informers.Rows {
	return informers.Typed("nodes", func(v *fsm.View) fsm.Table[*corev1.Node] { return v.Nodes })
}

const controllerRevisions = "controllerrevisions"

func revisions() *informers.Rows {
	r := informers.Plain(controllerRevisions)
	r.Indexes = map[string]informers.Index{
		history.ControllerRevisionControllerIndex: func(v *fsm.View, value string) []any {
			owner, ok := ownerOf(value)
			if !ok {
				return slices.DeleteFunc(r.List(v, value+"/"), func(o any) bool { return metav1.GetControllerOfNoCopy(o.(*appsv1.ControllerRevision)) != nil })
			}
			out := []any{}
			v.Dependents(owner, "", func(_ string, ref fsm.ObjectRef, d owners.Dependent) bool {
				if o, ok := r.Get(v, ref.Namespace+"/"+ref.Name); ok && d.Controller && ref.Resource == controllerRevisions {
					out = append(out, o)
				}
				return true
			})
			return out
		},
	}
	return r
}

// ownerOf reads a value of client-go's indexes by controller: "namespace/kind/name/uid",
// or the namespace alone for what has none.
func ownerOf(value string) (owners.ID, bool) {
	parts := strings.SplitN(value, "/", 4)
	if len(parts) < 4 {
		return owners.ID{}, false
	}
	return owners.ID{Namespace: parts[0], UID: types.UID(parts[3])}, true
}
