package quotas

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// limit is one resource that a quota bounds.
type limit struct {
	name string // as the quota has it
	own  string // as it is called here
	pods bool   // pods use it; else items do, or it is a number of objects
	most total
	// quantity is the bound as the quota has it.
	quantity resource.Quantity
}

func (l *limit) format() resource.Format {
	if l.pods && !inThousandths(l.own) || strings.HasSuffix(l.own, RequestsStorage) {
		return l.quantity.Format
	}
	return resource.DecimalSI
}

// String tells limits apart, wherever they are in memory.
func (l limit) String() string {
	return fmt.Sprintf("{%s %s %t %v %s}", l.name, l.own, l.pods, l.most, l.quantity.String())
}

func (l *limit) quantityOf(n total) resource.Quantity {
	return n.quantity(inThousandths(l.own), l.format())
}

// quota is a quota with what its pods and items use. It is immutable; it is replaced as these
// change.
type quota struct {
	key, namespace, name string

	spec   *corev1.ResourceQuotaSpec
	hard   []limit // of what is known, sorted by name
	scopes scopes
	used   amounts
}

func keyOf(q *corev1.ResourceQuota) string { return q.Namespace + "/" + q.Name }

func compile(o *corev1.ResourceQuota, devices bool) *quota {
	spec := &o.Spec
	q := &quota{key: keyOf(o), namespace: o.Namespace, name: o.Name, spec: spec, scopes: compileScopes(spec)}
	// order does not matter: sorted below.
	for name, most := range spec.Hard {
		l := limit{name: string(name), quantity: most}
		if l.own, l.pods = podResource(l.name); !l.pods {
			var known bool
			if l.own, known = counted(l.name); !known && !(devices && strings.HasSuffix(l.name, ofDeviceClass)) {
				continue
			}
		}
		l.most = totalOf(most, inThousandths(l.own))
		q.hard = append(q.hard, l)
	}
	slices.SortFunc(q.hard, func(a, b limit) int { return strings.Compare(a.name, b.name) })
	return q
}

// concernsPods says whether the quota bounds anything that pods use.
func (q *quota) concernsPods() bool {
	return slices.ContainsFunc(q.hard, func(l limit) bool { return l.pods })
}

// with gives the quota with other amounts used.
func (q *quota) with(used amounts) *quota {
	next := *q
	next.used = used
	return &next
}

// scopes are the pods and items that a quota is about.
type scopes struct {
	any bool // all objects, not only pods
	// kinds has a bit for each kind of pods that is meant.
	kinds uint16
	// classes are those that are meant; with others: those that are not. The pods
	// without a class have the class "".
	classes map[string]bool
	others  bool
	// podsAlone: there is a scope of pods. attributes are those of volumes.
	podsAlone  bool
	attributes []corev1.ScopedResourceSelectorRequirement
}

func (s *scopes) has(p *Pod) bool {
	return s.kinds&(1<<p.kind()) != 0 && s.classes[p.class] != s.others
}

// compileScopes: all scopes of a quota have to match.
func compileScopes(spec *corev1.ResourceQuotaSpec) scopes {
	s := scopes{kinds: 1<<kinds - 1, classes: map[string]bool{}, others: true}
	var all []corev1.ScopedResourceSelectorRequirement
	for _, name := range spec.Scopes {
		all = append(all, corev1.ScopedResourceSelectorRequirement{ScopeName: name, Operator: corev1.ScopeSelectorOpExists})
	}
	if spec.ScopeSelector != nil {
		all = append(all, spec.ScopeSelector.MatchExpressions...)
	}
	s.any = len(all) == 0
	for i := range all {
		s.narrow(&all[i])
	}
	return s
}

func (s *scopes) narrow(r *corev1.ScopedResourceSelectorRequirement) {
	if r.ScopeName == corev1.ResourceQuotaScopeVolumeAttributesClass {
		s.attributes, s.kinds = append(s.attributes, *r), 0
		return
	}
	s.podsAlone = true
	switch r.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		s.only(isTerminating, true)
	case corev1.ResourceQuotaScopeNotTerminating:
		s.only(isTerminating, false)
	case corev1.ResourceQuotaScopeBestEffort:
		s.only(isBestEffort, true)
	case corev1.ResourceQuotaScopeNotBestEffort:
		s.only(isBestEffort, false)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		s.only(isCrossNamespace, true)
	case corev1.ResourceQuotaScopePriorityClass:
		s.onlyClasses(r.Operator, r.Values)
	default: // no scope of pods
		s.kinds = 0
	}
}

func (s *scopes) only(bit kind, set bool) {
	for k := range kinds {
		if (k&bit != 0) != set {
			s.kinds &^= 1 << k
		}
	}
}

// onlyClasses is a label selector's rule: a pod without a class is in no list.
func (s *scopes) onlyClasses(operator corev1.ScopeSelectorOperator, values []string) {
	list := map[string]bool{}
	others := false
	switch operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		for _, v := range values {
			if v != "" {
				list[v] = true
			}
		}
		others = operator == corev1.ScopeSelectorOpNotIn
	case corev1.ScopeSelectorOpExists:
		list[""], others = true, true
	case corev1.ScopeSelectorOpDoesNotExist:
		list[""] = true
	}
	s.classes, s.others = intersect(s.classes, s.others, list, others)
}

// intersect gives what is in both of two sets; of one that has others, what is listed
// is what it does not hold.
func intersect(a map[string]bool, aOthers bool, b map[string]bool, bOthers bool) (map[string]bool, bool) {
	if aOthers && !bOthers {
		a, aOthers, b, bOthers = b, bOthers, a, aOthers
	}
	out := map[string]bool{}
	// order does not matter: they fill a set.
	for name := range a {
		if aOthers || b[name] != bOthers {
			out[name] = true
		}
	}
	if aOthers {
		// order does not matter: they fill a set.
		for name := range b {
			out[name] = true
		}
	}
	return out, aOthers
}
