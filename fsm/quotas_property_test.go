package fsm

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/model"
)

// checkQuotas: what a quota's status says is what a walk over the objects finds. And
// what is used grows up to the bound alone: who has more than that had it before, or the
// bound was lowered, or the quota is new.
func (r *random) checkQuotas(t *rapid.T, v *View) {
	now := map[string]*corev1.ResourceQuota{}
	v.Objects.Scan(ResourceQuotas+"/", func(key string, o *Object) bool {
		q := o.Value.(*corev1.ResourceQuota)
		now[key] = q
		for name := range q.Spec.Hard {
			used, hard := q.Status.Used[name], q.Status.Hard[name]
			if want := countFor(v, q, string(name)); used.Cmp(want) != 0 {
				t.Fatalf("%s says that %s of %s are used, and it is %s", key, used.String(), name, want.String())
			}
			if of := q.Spec.Hard[name]; hard.Cmp(of) != 0 {
				t.Fatalf("%s says %s of %s, and it is %s", key, hard.String(), name, of.String())
			}
			before, known := r.quotas[key]
			if !known || before.UID != q.UID || fmt.Sprint(before.Spec) != fmt.Sprint(q.Spec) {
				continue
			}
			if was := before.Status.Used[name]; used.Cmp(hard) > 0 && used.Cmp(was) > 0 {
				t.Fatalf("%s: %s of %s were used, and now %s, of %s", key, was.String(), name, used.String(), hard.String())
			}
		}
		return true
	})
	r.quotas = now
}

// countFor counts what a quota bounds in the dumbest way.
func countFor(v *View, q *corev1.ResourceQuota, name string) apiresource.Quantity {
	sum := apiresource.Quantity{}
	one := *apiresource.NewQuantity(1, apiresource.DecimalSI)
	resource, isCount := map[string]string{
		"configmaps": "configmaps", "count/replicasets.apps": ReplicaSets, "services": "services", "services.nodeports": "services",
		"persistentvolumeclaims": VolumeClaims, "requests.storage": VolumeClaims,
	}[name]
	if isCount {
		v.Objects.Scan(resource+"/"+q.Namespace+"/", func(_ string, o *Object) bool {
			n := one
			switch o := o.Value.(type) {
			case *corev1.PersistentVolumeClaim:
				if !claimInScopes(q, o) {
					return true
				}
				if name == "requests.storage" {
					n = o.Spec.Resources.Requests["storage"]
					if given := o.Status.AllocatedResources["storage"]; given.Cmp(n) > 0 {
						n = given
					}
					if most := apiresource.MustParse("256Ti"); n.Cmp(most) > 0 {
						n = most
					}
				}
			case *corev1.Service:
				if name == "services.nodeports" {
					n = apiresource.Quantity{}
					if o.Spec.Type == corev1.ServiceTypeNodePort {
						n = *apiresource.NewQuantity(int64(len(o.Spec.Ports)), apiresource.DecimalSI)
					}
				}
			}
			if _, claim := o.Value.(*corev1.PersistentVolumeClaim); claim || len(q.Spec.Scopes) == 0 && q.Spec.ScopeSelector == nil {
				sum.Add(n)
			}
			return true
		})
		return sum
	}
	v.Pods.Scan(q.Namespace+"/", func(_ string, p *corev1.Pod) bool {
		if model.Resizing(p) {
			p = model.Charged(p) // for what its node has not given back
		}
		switch {
		case !inScopes(q, p) || model.Terminal(p) && name != "count/pods":
		case name == "requests.cpu":
			for _, c := range p.Spec.Containers {
				sum.Add(c.Resources.Requests["cpu"])
			}
			sum.Add(p.Spec.Overhead["cpu"])
		default:
			sum.Add(one)
		}
		return true
	})
	return sum
}

// claimInScopes: the quotas of these tests have one scope at most.
func claimInScopes(q *corev1.ResourceQuota, c *corev1.PersistentVolumeClaim) bool {
	if q.Spec.ScopeSelector == nil {
		return len(q.Spec.Scopes) == 0
	}
	r, named := q.Spec.ScopeSelector.MatchExpressions[0], c.Spec.VolumeAttributesClassName
	switch {
	case r.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass:
		return false
	case r.Operator == corev1.ScopeSelectorOpDoesNotExist:
		return named == nil
	}
	return named != nil && slices.Contains(r.Values, *named)
}

func inScopes(q *corev1.ResourceQuota, p *corev1.Pod) bool {
	for _, scope := range q.Spec.Scopes {
		switch scope {
		case corev1.ResourceQuotaScopeBestEffort:
			if model.QOS(p) != corev1.PodQOSBestEffort { // the API lets no update change it
				return false
			}
		case corev1.ResourceQuotaScopeNotTerminating:
			if p.Spec.ActiveDeadlineSeconds != nil {
				return false
			}
		}
	}
	if q.Spec.ScopeSelector == nil {
		return true
	}
	if q.Spec.ScopeSelector.MatchExpressions[0].ScopeName != corev1.ResourceQuotaScopePriorityClass {
		return false
	}
	r, class := q.Spec.ScopeSelector.MatchExpressions[0], p.Spec.PriorityClassName
	switch r.Operator {
	case corev1.ScopeSelectorOpIn:
		return slices.Contains(r.Values, class)
	case corev1.ScopeSelectorOpNotIn:
		return !slices.Contains(r.Values, class)
	}
	return class == ""
}
