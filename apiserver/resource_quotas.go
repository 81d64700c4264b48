package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"

	"github.com/berth-dev/berth/fsm"
)

func resourceQuotaDescription() description {
	return description{
		kind:     plainKind[core.ResourceQuota, corev1.ResourceQuota](core.Resource(fsm.ResourceQuotas)),
		singular: "resourcequota", shortNames: []string{"quota"}, version: corev1.SchemeGroupVersion,
		list: func() runtime.Object { return new(core.ResourceQuotaList) },
	}.by(resourcequota.Strategy)
}

// What one quota says: all of it is asked for every new pod of the namespace.
const (
	maxQuotaResources = 128
	maxQuotaScopes    = 16 // scopes, and expressions of the selector
)

func (l *limits) resourceQuota(spec *field.Path, q *core.ResourceQuota) {
	l.count(spec.Child("hard"), len(q.Spec.Hard), maxQuotaResources)
	l.count(spec.Child("scopes"), len(q.Spec.Scopes), maxQuotaScopes)
	if s := q.Spec.ScopeSelector; s != nil {
		at := spec.Child("scopeSelector", "matchExpressions")
		l.count(at, len(s.MatchExpressions), maxQuotaScopes)
		for i := range s.MatchExpressions {
			l.count(at.Index(i).Child("values"), len(s.MatchExpressions[i].Values), maxValues)
		}
	}
	status := field.NewPath("status")
	l.count(status.Child("hard"), len(q.Status.Hard), maxQuotaResources)
	l.count(status.Child("used"), len(q.Status.Used), maxQuotaResources)
}
