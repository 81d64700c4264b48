package budgets

import (
	"fmt"
	"slices"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// rule is what a budget covers and how it counts. It is immutable, and one for
// as long as that part of the budget stays.
type rule struct {
	key      string // of the budget
	of       *metav1.LabelSelector
	selector labels.Selector
	// scaled: what is expected is the scale of the pods' controllers, not the
	// number of pods (PD2).
	scaled bool
	cost   int // of holding a pod against it
}

func (r *rule) String() string {
	return fmt.Sprintf("%s %v %s, scaled %t", r.key, r.of, r.selector, r.scaled)
}

// isOf says whether the rule is that of a spec. A row that only got another
// status shares its spec with the one before.
func (r *rule) isOf(s *policyv1.PodDisruptionBudgetSpec) bool {
	return (r.of == s.Selector || equality.Semantic.DeepEqual(r.of, s.Selector)) && r.scaled == countsScales(s)
}

func countsScales(s *policyv1.PodDisruptionBudgetSpec) bool {
	return s.MaxUnavailable != nil || s.MinAvailable != nil && s.MinAvailable.Type == intstr.String
}

func compile(key string, spec *policyv1.PodDisruptionBudgetSpec) *rule {
	selector := Selector(spec)
	return &rule{key: key, of: spec.Selector, selector: selector, scaled: countsScales(spec), cost: costOf(selector)}
}

// selects says whether the rule covers any pods.
func (r *rule) selects() bool {
	_, selectable := r.selector.Requirements()
	return selectable
}

// What it costs, in units of work (fsm/work.go), to look at a pod and at an entry
// of a selector, and how many of its values are compared for one.
const (
	costPod         = 8
	costRequirement = 4
	valuesPerUnit   = 8
)

// costOf is what it costs to look at a pod and hold a selector against its labels.
func costOf(selector labels.Selector) int {
	requirements, _ := selector.Requirements()
	units := costPod
	for i := range requirements {
		units += requirementCost(len(requirements[i].ValuesUnsorted()))
	}
	return units
}

// requirementCost is what an entry of a selector costs that has so many values.
func requirementCost(values int) int { return costRequirement + values/valuesPerUnit }

// SelectorCost is what it costs, in units of work, to hold a budget's selector against one pod, and how many entries it has, each
// label, expression and value, which is what it costs to compile it.
func SelectorCost(spec *policyv1.PodDisruptionBudgetSpec) (each, entries int) {
	each = costPod
	if spec.Selector == nil {
		return each, 0
	}
	entries = len(spec.Selector.MatchLabels)
	each += entries * requirementCost(1)
	for i := range spec.Selector.MatchExpressions {
		values := len(spec.Selector.MatchExpressions[i].Values)
		each, entries = each+requirementCost(values), entries+1+values
	}
	return each, entries
}

// Selector says which pods of its namespace a budget covers (PD1): nil selects
// nothing, {} everything.
func Selector(spec *policyv1.PodDisruptionBudgetSpec) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err != nil {
		return labels.Nothing() // such a budget is refused; should it be there, it covers nothing
	}
	return selector
}

// keys are those under which a rule is found: by one pair of labels that every
// pod it covers must have, or else in the list of those that every pod of the
// namespace has to be held against.
func (r *rule) keys() []string {
	requirements, selectable := r.selector.Requirements()
	if !selectable {
		return nil
	}
	namespace, name, _ := strings.Cut(r.key, "/")
	key, values := "", []string(nil)
	for _, q := range requirements {
		switch q.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			// The fewer and the longer its values, the fewer pods it is likely to have.
			if vs := q.Values().List(); values == nil || len(vs) < len(values) || len(vs) == len(values) && len(vs[0]) > len(values[0]) {
				key, values = q.Key(), vs
			}
		}
	}
	if values == nil {
		return []string{generalRules(namespace) + name}
	}
	keys := make([]string, len(values))
	for i, value := range values {
		keys[i] = pairRules(namespace, key, value) + name
	}
	return keys
}

func generalRules(namespace string) string { return namespace + "/\x00" }

func pairRules(namespace, key, value string) string {
	return namespace + "/" + key + "=" + value + "\x00"
}

// rulesFor also says what it cost to find them.
func (x *Index) rulesFor(namespace string, podLabels map[string]string) (rules []*rule, cost int64) {
	take := func(prefix string) {
		x.rules.Scan(prefix, func(_ string, r *rule) bool {
			cost += int64(r.cost)
			if r.selector.Matches(labels.Set(podLabels)) {
				rules = append(rules, r)
			}
			return true
		})
	}
	take(generalRules(namespace))
	// order does not matter: the rules are sorted below.
	for key, value := range podLabels {
		take(pairRules(namespace, key, value))
	}
	if len(rules) > 1 {
		slices.SortFunc(rules, func(a, b *rule) int { return strings.Compare(a.key, b.key) })
	}
	return rules, cost
}
