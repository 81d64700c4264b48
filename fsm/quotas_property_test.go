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
	resource, isCount := map[string]string{"configmaps": "configmaps", "count/replicasets.apps": ReplicaSets}[name]
	if isCount {
		v.Objects.Scan(resource+"/"+q.Namespace+"/", func(string, *Object) bool {
			if len(q.Spec.Scopes) == 0 && q.Spec.ScopeSelector == nil {
				sum.Add(one)
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
	r, class := q.Spec.ScopeSelector.MatchExpressions[0], p.Spec.PriorityClassName
	switch r.Operator {
	case corev1.ScopeSelectorOpIn:
		return slices.Contains(r.Values, class)
	case corev1.ScopeSelectorOpNotIn:
		return !slices.Contains(r.Values, class)
	}
	return class == ""
}
