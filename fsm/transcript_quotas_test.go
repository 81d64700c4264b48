package fsm

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// quotaOf: hard=RESOURCE:AMOUNT,… scopes=NAME,… class=OPERATOR:NAME:… attributes=OPERATOR:NAME:… used=RESOURCE:AMOUNT,…
// (what somebody writes into its status)
func (s *transcript) quotaOf(a words, meta metav1.ObjectMeta) *corev1.ResourceQuota {
	amounts := func(key string) corev1.ResourceList {
		list := corev1.ResourceList{}
		for _, h := range a.list(key) {
			name, amount, _ := strings.Cut(h, ":")
			list[corev1.ResourceName(name)] = apiresource.MustParse(amount)
		}
		return list
	}
	q := &corev1.ResourceQuota{ObjectMeta: meta, Spec: corev1.ResourceQuotaSpec{Hard: amounts("hard")}}
	for _, scope := range a.list("scopes") {
		q.Spec.Scopes = append(q.Spec.Scopes, corev1.ResourceQuotaScope(scope))
	}
	for key, scope := range map[string]corev1.ResourceQuotaScope{
		"class": corev1.ResourceQuotaScopePriorityClass, "attributes": corev1.ResourceQuotaScopeVolumeAttributesClass,
	} {
		if v, ok := a.get(key); ok {
			p := strings.Split(v, ":")
			q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{
				ScopeName: scope, Operator: corev1.ScopeSelectorOperator(p[0]), Values: p[1:],
			}}}
		}
	}
	if _, ok := a.get("used"); ok {
		q.Status.Used = amounts("used")
	}
	return q
}

// serviceOf: type=TYPE ports=COUNT address=ADDRESS,… node-port=NUMBER
func (s *transcript) serviceOf(a words, o *corev1.Service) {
	if o.Spec.ClusterIPs = a.list("address"); len(o.Spec.ClusterIPs) > 0 {
		o.Spec.ClusterIP = o.Spec.ClusterIPs[0]
	}
	if n := a.number("node-port"); n != nil {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: "node", Port: 80, NodePort: int32(*n)})
	}
	o.Spec.Type = corev1.ServiceType(a.or("type", ""))
	n, _ := strconv.Atoi(a.or("ports", "0"))
	for i := range n {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + i)})
	}
}

func describeQuota(q *corev1.ResourceQuota) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
		hard := q.Status.Hard[name]
		used, known := q.Status.Used[name]
		if !known {
			out = append(out, fmt.Sprintf("%s ?/%s", name, hard.String()))
			continue
		}
		out = append(out, fmt.Sprintf("%s %s/%s", name, used.String(), hard.String()))
	}
	return strings.Join(out, ", ")
}
