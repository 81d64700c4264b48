package budgets

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Owner is the controller of pods of a namespace.
type Owner struct{ Group, Kind, Namespace, Name, UID string }

// key is group/kind/namespace/name/uid, without a NUL. A reference is whatever its author wrote: what has a slash in it
// and is no UID is a name that nobody has.
func (o Owner) key() string {
	return escapeNUL.Replace(strings.Join([]string{o.Group, o.Kind, o.Namespace, o.Name, o.UID}, "/"))
}

// parseOwner is the inverse of key, but for those slashes.
func parseOwner(key string) Owner {
	parts := strings.SplitN(unescapeNUL.Replace(key), "/", 5)
	return Owner{parts[0], parts[1], parts[2], parts[3], parts[4]}
}

// A NUL ends a key among others.
var (
	escapeNUL   = strings.NewReplacer("\x00", "\x01\x01", "\x01", "\x01\x02")
	unescapeNUL = strings.NewReplacer("\x01\x01", "\x00", "\x01\x02", "\x01")
)

func controllerOf(pod *corev1.Pod) (Owner, bool) {
	r := metav1.GetControllerOfNoCopy(pod)
	if r == nil {
		return Owner{}, false
	}
	gv, _ := schema.ParseGroupVersion(r.APIVersion)
	return Owner{gv.Group, r.Kind, pod.Namespace, r.Name, string(r.UID)}, true
}

// sameController says whether two states of a pod surely have one controller.
func sameController(a, b *corev1.Pod) bool {
	x, y := metav1.GetControllerOfNoCopy(a), metav1.GetControllerOfNoCopy(b)
	if x == nil || y == nil {
		return x == y
	}
	return x == y || x.APIVersion == y.APIVersion && x.Kind == y.Kind && x.Name == y.Name && x.UID == y.UID
}

// countOwner counts the pods of a controller below a budget, and says whether
// it is new there or gone.
func (x *Index) countOwner(budget, owner string, by int32) bool {
	n, _ := x.scaledBy.Get(budget + "\x00" + owner)
	if n+by == 0 {
		x.scaledBy.Delete(budget + "\x00" + owner)
		x.scales.Delete(owner + "\x00" + budget)
		return true
	}
	x.scaledBy.Set(budget+"\x00"+owner, n+by)
	if n == 0 {
		x.scales.Set(owner+"\x00"+budget, budget)
	}
	return n == 0
}

// firstStray names a controller of a budget's pods that nobody knows.
func (x *Index) firstStray(s State, budget string) (name string) {
	x.scaledBy.Scan(budget+"\x00", func(k string, _ int32) bool {
		owner := parseOwner(k[len(budget)+1:])
		if _, known := s.Scale(owner); !known {
			name = owner.Kind + " " + owner.Name
		}
		return name == ""
	})
	return name
}

// Scale is a controller and how many pods it wants.
type Scale struct {
	Owner Owner
	Pods  int32
}

// PutScale follows a change of what keeps pods: the budgets of its pods expect
// another number of them. nil stands for a controller that is not there.
func (x *Index) PutScale(old, now *Scale) {
	if x.scales.Len() == 0 {
		return
	}
	switch {
	case old != nil && now != nil && old.Owner == now.Owner:
		if old.Pods != now.Pods {
			x.rescale(old.Owner, int64(now.Pods)-int64(old.Pods), 0)
		}
		return
	case old != nil:
		x.rescale(old.Owner, -int64(old.Pods), 1) // its pods are strays from here on
	}
	if now != nil {
		x.rescale(now.Owner, int64(now.Pods), -1)
	}
}

// rescale changes what an owner adds to the budgets of its pods.
func (x *Index) rescale(o Owner, scale, strays int64) {
	owner := o.key()
	var budgets []string
	x.scales.Scan(owner+"\x00", func(_, budget string) bool {
		budgets = append(budgets, budget)
		return true
	})
	for _, budget := range budgets {
		c, _ := x.coverages.Get(budget)
		next := *c
		next.scale += scale
		next.strays += strays
		x.set(&next)
	}
}
