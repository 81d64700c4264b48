package fsm

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/owners"
)

// coverage is what a budget's pods add up to. It is immutable; it is replaced
// as pods change, at a cost that depends only on the budgets that cover them.
type coverage struct {
	rule      *budgetRule
	pods      int64
	healthy   int64 // PD3
	unmanaged int64 // pods without a controller
	// scale is how many pods the controllers want in all (PD2); strays are
	// controllers that nobody knows. Both only for rules that count scales.
	scale  int64
	strays int64
}

// countForBudgets keeps the counts as a pod changes. Most changes of a pod
// mean nothing to its budgets, and cost next to nothing.
func (v *live) countForBudgets(old, new *corev1.Pod) {
	if v.budgetRules.Len() == 0 {
		return
	}
	if old != nil && new != nil && controllerOf(old) == controllerOf(new) && maps.Equal(old.Labels, new.Labels) {
		was, is := model.Healthy(old), model.Healthy(new)
		if was == is && new.DeletionTimestamp.Equal(old.DeletionTimestamp) {
			return
		}
		for _, r := range v.rulesOf(new.Namespace, new.Labels) {
			c, _ := v.coverages.Get(r.key)
			next := *c
			next.healthy += one64(is) - one64(was)
			v.setCoverage(&next)
		}
		return
	}
	if old != nil {
		for _, r := range v.rulesOf(old.Namespace, old.Labels) {
			v.count(r, old, -1)
		}
	}
	if new != nil {
		for _, r := range v.rulesOf(new.Namespace, new.Labels) {
			v.count(r, new, 1)
		}
	}
}

func one64(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// count adds a pod to what a rule covers, or takes it away.
func (v *live) count(r *budgetRule, pod *corev1.Pod, by int64) {
	c, _ := v.coverages.Get(r.key)
	next := *c
	next.pods += by
	next.healthy += by * one64(model.Healthy(pod))
	if r.scaled {
		owner := controllerOf(pod)
		if owner == (ownerRef{}) {
			next.unmanaged += by
		} else if at := owner.key(pod.Namespace); v.countOwner(r.key, at, int32(by)) {
			if scale, known := v.scaleOf(at); known {
				next.scale += by * int64(scale)
			} else {
				next.strays += by
			}
		}
	}
	v.setCoverage(&next)
}

func (v *live) setCoverage(c *coverage) {
	v.touchBudget(c.rule.key)
	v.coverages.Set(c.rule.key, c)
}

// touchBudget notes that a budget's status has to be looked at when the
// command is carried out, and what its pods added up to before.
func (v *live) touchBudget(key string) {
	if _, touched := v.touchedBudgets[key]; touched {
		return
	}
	if v.touchedBudgets == nil {
		v.touchedBudgets = map[string]*coverage{}
	}
	v.touchedBudgets[key], _ = v.coverages.Get(key)
}

// countOwner counts the pods of a controller below a budget, and says whether
// it is new there or gone.
func (v *live) countOwner(budget, owner string, by int32) bool {
	n, _ := v.budgetOwners.Get(budget + "\x00" + owner)
	if n+by == 0 {
		v.budgetOwners.Delete(budget + "\x00" + owner)
		v.ownersBudgets.Delete(owner + "\x00" + budget)
		return true
	}
	v.budgetOwners.Set(budget+"\x00"+owner, n+by)
	if n == 0 {
		v.ownersBudgets.Set(owner+"\x00"+budget, budget)
	}
	return n == 0
}

// firstStray names a controller of a budget's pods that nobody knows.
func (v *View) firstStray(budget string) (name string) {
	v.budgetOwners.ScanFrom(budget+"\x00", budget+"\x00", func(k string, _ int32) bool {
		owner := k[len(budget)+1:]
		if _, ok := v.scaleOf(owner); !ok {
			parts := strings.Split(owner, "/")
			name = parts[1] + " " + parts[3]
		}
		return name == ""
	})
	return name
}

// ownerRef is a pod's controller.
type ownerRef struct{ apiVersion, kind, name, uid string }

func controllerOf(pod *corev1.Pod) ownerRef {
	if r := owners.ControllerOf(pod); r != nil {
		return ownerRef{r.APIVersion, r.Kind, r.Name, string(r.UID)}
	}
	return ownerRef{}
}

// key is group/kind/namespace/name/uid; none of them has a slash in it.
func (o ownerRef) key(namespace string) string {
	gv, _ := schema.ParseGroupVersion(o.apiVersion)
	return strings.Join([]string{gv.Group, o.kind, namespace, o.name, o.uid}, "/")
}

// scaleOf is how many pods the controller of a key wants, if it is known.
func (v *View) scaleOf(owner string) (int32, bool) {
	parts := strings.Split(owner, "/")
	if len(parts) != 5 {
		return 0, false
	}
	kind := kindsByName[schema.GroupKind{Group: parts[0], Kind: parts[1]}]
	if kind.Workload == nil {
		return 0, false
	}
	o, ok := v.Objects.Get(ObjectKey(kind.Resource, parts[2], parts[3]))
	if !ok || string(o.Value.GetUID()) != parts[4] {
		return 0, false
	}
	return kind.Workload.Replicas(o.Value), true
}

// rescaleBudgets follows a change of a workload: the budgets of its pods
// expect another number of them.
func (v *live) rescaleBudgets(old, new *Object) {
	if v.ownersBudgets.Len() == 0 {
		return
	}
	was, wasScale := workloadScale(old)
	is, isScale := workloadScale(new)
	switch {
	case was != is:
		v.rescale(was, -int64(wasScale), 1) // its pods are strays from here on
		v.rescale(is, int64(isScale), -1)
	case wasScale != isScale:
		v.rescale(is, int64(isScale)-int64(wasScale), 0)
	}
}

// workloadScale is under which key a workload is found as an owner, and how
// many pods it wants; "" for an object of another kind.
func workloadScale(o *Object) (owner string, scale int32) {
	if o == nil {
		return "", 0
	}
	kind := objectKinds[o.Resource]
	if kind.Workload == nil {
		return "", 0
	}
	ref := ownerRef{kind.apiVersion(), kind.Kind, o.Value.GetName(), string(o.Value.GetUID())}
	return ref.key(o.Value.GetNamespace()), kind.Workload.Replicas(o.Value)
}

// rescale changes what an owner adds to the budgets of its pods.
func (v *live) rescale(owner string, scale, strays int64) {
	if owner == "" {
		return
	}
	var budgets []string
	v.ownersBudgets.ScanFrom(owner+"\x00", owner+"\x00", func(_, budget string) bool {
		budgets = append(budgets, budget)
		return true
	})
	for _, budget := range budgets {
		c, _ := v.coverages.Get(budget)
		next := *c
		next.scale += scale
		next.strays += strays
		v.setCoverage(&next)
	}
}
