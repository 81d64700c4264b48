package fsm

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/quotas"
)

// ResourceQuotas is the resource of what the objects of a namespace may use together.
const ResourceQuotas = "resourcequotas"

// maxResourceQuotas bounds those of a namespace: all of them are asked for every new
// pod, and their statuses are written.
const maxResourceQuotas = 64

// The statuses of quotas are exact at the end of every command: the index (package
// quotas) sums up as objects change, and what changed is written into the rows once a
// command is carried out (flushQuotas). What somebody else writes there is corrected by
// the same command.

func resourceQuotaKind() ObjectKind {
	return ObjectKind{
		Resource: ResourceQuotas, Kind: "ResourceQuota", Since: SinceLimits, MostInNamespace: maxResourceQuotas,
		New: func() codec.Object { return new(corev1.ResourceQuota) },
	}
}

// podUse is a pod as quotas see it.
func (v *live) podUse(pod *corev1.Pod) *quotas.Pod {
	if pod == nil {
		return nil
	}
	if v.isResizing(pod) {
		return quotas.PodOf(pod, quotas.ChargeOf(model.Charged(pod)))
	}
	shared := v.cache.specs.of(&pod.Spec)
	switch {
	case shared == nil:
		return quotas.PodOf(pod, quotas.ChargeOf(pod))
	case shared.charge == nil:
		shared.charge = quotas.ChargeOf(pod)
	}
	return quotas.PodOf(pod, shared.charge)
}

// indexPodUse keeps what pods use. Most changes of a pod mean nothing to it.
func (v *live) indexPodUse(old, now *corev1.Pod) {
	switch {
	case old != nil && now != nil && sameSpec(&old.Spec, &now.Spec) && quotas.SameUse(old, now) && (!v.resizes() || model.SameCharge(old, now)):
	case now != nil:
		v.quotas.PutPod(now.Namespace, v.podUse(old), v.podUse(now))
	case old != nil:
		v.quotas.PutPod(old.Namespace, v.podUse(old), nil)
	}
}

// objectUse is what an object adds to the numbers that are counted in its namespace.
func (v *View) objectUse(o *Object) map[string]int64 {
	if o == nil || v.itemOf(o) != nil {
		return nil
	}
	return countsOf(o)
}

func countsOf(o *Object) map[string]int64 {
	kind, _ := KindOf(o.Resource)
	if kind.ClusterScoped || kind.Custom && o.Value.GetNamespace() == "" {
		return nil
	}
	use := map[string]int64{quotas.Count(kind.Group, kind.names().Name): 1}
	switch value := o.Value.(type) {
	case *corev1.Service:
		quotas.CountService(value, use)
	case *corev1.PersistentVolumeClaim:
		quotas.CountClaim(value, use)
	}
	return use
}

// moreUse is what is in one use and not in another.
func moreUse(is, was map[string]int64) map[string]int64 {
	out := map[string]int64{}
	// order does not matter: each by itself.
	for what, n := range is {
		if n != was[what] {
			out[what] = n - was[what]
		}
	}
	// order does not matter: each by itself.
	for what, n := range was {
		if _, both := is[what]; !both {
			out[what] = -n
		}
	}
	return out
}

func indexObjectUse(v *live, old, now *Object) {
	either := now
	if either == nil {
		either = old
	}
	namespace := either.Value.GetNamespace()
	if is, was := v.itemOf(now), v.itemOf(old); is != nil || was != nil {
		indexItem(v, namespace, was, is)
	} else if usesMore(either) || old == nil || now == nil {
		// order does not matter: each has a number of its own, and the quotas are the same.
		for what, n := range moreUse(v.objectUse(now), v.objectUse(old)) {
			v.quotas.Add(namespace, what, n)
		}
	}
	if either.Resource == ResourceQuotas {
		v.quotas.Put(quotaIn(old), quotaIn(now), v.countsItems())
	}
}

// usesMore says whether more is counted of an object than that it is there.
func usesMore(o *Object) bool {
	return o.Resource == serviceResource.Name || o.Resource == VolumeClaims
}

func quotaIn(o *Object) *corev1.ResourceQuota {
	if o == nil {
		return nil
	}
	return o.Value.(*corev1.ResourceQuota)
}

func indexBudgetUse(v *live, old, now metav1.Object) {
	what := quotas.Count(budgetResource.Group, budgetResource.Name)
	switch {
	case old == nil:
		v.quotas.Add(now.GetNamespace(), what, 1)
	case now == nil:
		v.quotas.Add(old.GetNamespace(), what, -1)
	}
}

// checkPodQuotas refuses a pod that is to be so where a quota does not allow it (PC15).
// old is the pod as it is, nil for a new one.
func (v *live) checkPodQuotas(pod, old *corev1.Pod) (Result, bool) {
	if !v.quotas.Any(pod.Namespace) {
		return Result{}, true
	}
	return refuseQuota(podResource, givenName(pod), v.quotas.RefusePod(pod, v.podUse(old), v.podUse(pod)))
}

// checkManyPods is checkPodQuotas for many new pods that are equal: all of them, or with
// some as many as are allowed, if one is.
func (v *live) checkManyPods(pod *corev1.Pod, count int32, some bool) (allowed int32, r Result, ok bool) {
	if !v.quotas.Any(pod.Namespace) {
		return count, Result{}, true
	}
	use := v.podUse(pod)
	why := v.quotas.RefusePod(pod, nil, use)
	if why == "" {
		if allowed = int32(v.quotas.Room(pod.Namespace, use, int64(count))); allowed < count && !some {
			why = v.quotas.RefuseManyPods(pod, use, int64(count))
		}
	}
	r, ok = refuseQuota(podResource, givenName(pod), why)
	return allowed, r, ok
}

// checkObjectQuotas refuses an object that is to be so where a quota does not allow it.
func (v *live) checkObjectQuotas(o, old *Object) (Result, bool) {
	namespace := o.Value.GetNamespace()
	if !v.quotas.Any(namespace) {
		return Result{}, true
	}
	kind, _ := KindOf(o.Resource)
	if is := v.itemOf(o); is != nil {
		return refuseQuota(kind.names(), o.Value.GetName(), v.quotas.RefuseItem(namespace, v.itemOf(old), is))
	}
	return refuseQuota(kind.names(), o.Value.GetName(),
		v.quotas.RefuseObjects(namespace, moreUse(v.objectUse(o), v.objectUse(old)), !v.countsItems()))
}

// checkCountQuotas is the same for a new object of a table of its own.
func (v *live) checkCountQuotas(res resource, namespace, name string) (Result, bool) {
	return refuseQuota(res, name, v.quotas.RefuseObjects(namespace, map[string]int64{quotas.Count(res.Group, res.Name): 1}, !v.countsItems()))
}

func refuseQuota(res resource, name, why string) (Result, bool) {
	if why == "" {
		return Result{}, true
	}
	return refuseForbidden(res.groupResource(), name, why), false
}

// flushQuotas writes into the rows of the touched quotas what is used now. It ends
// every command.
func (tx *Tx) flushQuotas() {
	v := tx.view
	v.quotas.Touched(func(key string) {
		row := ResourceQuotas + "/" + key
		o, ok := v.Objects.Get(row)
		if !ok {
			return
		}
		old := quotaIn(o)
		status := v.quotas.Status(key)
		if equality.Semantic.DeepEqual(status, old.Status) {
			return
		}
		next := *old
		next.Status = status
		put(tx, v.Objects, row, &Object{Resource: ResourceQuotas, Value: &next})
	})
}
