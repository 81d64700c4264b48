package fsm

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-dev/berth/quotas"
)

// SinceItems is the LogVersion from which on claims count for quotas as pods do (quotas.Item): their sums do not wrap, and
// scopes by the class of a volume's attributes mean them. From then on, too, devices are counted by class, and what no scope
// means is not asked of quotas that have one.
const SinceItems = 26

// countsItems says whether claims are items of quotas; else they are numbers.
func (v *View) countsItems() bool { return v.Version() >= SinceItems }

// itemOf is an object as quotas see it; nil: it is no item.
func (v *View) itemOf(o *Object) *quotas.Item {
	if o == nil || !v.countsItems() {
		return nil
	}
	switch value := o.Value.(type) {
	case *corev1.PersistentVolumeClaim:
		return quotas.VolumeClaim(value)
	case *resourcev1.ResourceClaim:
		return quotas.DeviceClaim(value)
	}
	return nil
}

// indexItem keeps what an item uses. Most changes mean nothing to it.
func indexItem(v *live, namespace string, was, is *quotas.Item) {
	if !was.Same(is) {
		v.quotas.PutItem(namespace, was, is)
	}
}

// beginItems counts claims as items from now on: it is called when the rules become those that do. The quotas come when all
// is counted, so that each counts once.
func (v *live) beginItems() {
	var all []*corev1.ResourceQuota
	v.Objects.Scan(ResourceQuotas+"/", func(_ string, o *Object) bool {
		all = append(all, quotaIn(o))
		return true
	})
	for _, q := range all {
		v.quotas.Put(q, nil, true)
	}
	for _, resource := range []string{VolumeClaims, ResourceClaims} {
		v.Objects.Scan(resource+"/", func(_ string, o *Object) bool {
			namespace := o.Value.GetNamespace()
			// order does not matter: each has a number of its own.
			for what, n := range countsOf(o) {
				v.quotas.Add(namespace, what, -n)
			}
			indexItem(v, namespace, nil, v.itemOf(o))
			return true
		})
	}
	for _, q := range all {
		v.quotas.Put(nil, q, true)
	}
}
