package fsm

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The statuses of disruption budgets are exact at the end of every command:
// the index of pods counts as pods change, and what changed is written into
// the rows once a command is carried out (flushBudgets).

var budgetTable = protoTable("poddisruptionbudgets", indexBudget)

// budgetRule is what a budget covers and how it counts. It is immutable, and
// one for as long as that part of the budget stays.
type budgetRule struct {
	key      string // of Budgets
	of       *metav1.LabelSelector
	selector labels.Selector
	// scaled: what is expected is the scale of the pods' controllers, not the
	// number of pods (PD2).
	scaled bool
}

// indexBudget keeps the rules, where they are found by label, and when the
// next announced disruption of a budget runs out.
func indexBudget(v *live, key string, old, new *policyv1.PodDisruptionBudget, hadOld, hasNew bool) {
	var was, is metav1.Object
	if hadOld {
		was = old
		if at, ok := firstRunsOut(old); ok {
			v.budgetTimes.Delete(budgetTimeKey(at, key))
		}
	}
	if hasNew {
		is = new
		if at, ok := firstRunsOut(new); ok {
			v.budgetTimes.Set(budgetTimeKey(at, key), key)
		}
		v.touchBudget(key)
	}
	v.owners.Put(DisruptionBudgets, was, is)
	if hasNew {
		v.cover(new)
	} else {
		v.dropCoverage(key)
	}
}

// cover sees to it that a budget's pods are counted by its rule as it is now.
func (v *live) cover(b *policyv1.PodDisruptionBudget) {
	key := PodKey(b.Namespace, b.Name)
	c, ok := v.coverages.Get(key)
	if ok && c.rule.isOf(&b.Spec) {
		return
	}
	v.dropCoverage(key)
	v.addCoverage(compileRule(key, &b.Spec), b.Namespace)
}

// isOf says whether the rule is that of a spec. A row that only got another
// status shares its spec with the one before.
func (r *budgetRule) isOf(s *policyv1.PodDisruptionBudgetSpec) bool {
	return (r.of == s.Selector || equality.Semantic.DeepEqual(r.of, s.Selector)) && r.scaled == countsScales(s)
}

func countsScales(s *policyv1.PodDisruptionBudgetSpec) bool {
	return s.MaxUnavailable != nil || s.MinAvailable != nil && s.MinAvailable.Type == intstr.String
}

func compileRule(key string, spec *policyv1.PodDisruptionBudgetSpec) *budgetRule {
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector) // PD1: nil selects nothing, {} everything
	if err != nil {
		selector = labels.Nothing() // such a budget is refused; should it be there, it covers nothing
	}
	return &budgetRule{key: key, of: spec.Selector, selector: selector, scaled: countsScales(spec)}
}

// labelKeys are the keys under which a rule is found: by one pair of labels
// that every pod it covers must have, or else in the list of those that every
// pod of the namespace has to be held against.
func (r *budgetRule) labelKeys() []string {
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

// rulesOf gives the rules that cover a pod of these labels, in the order of
// the budgets' names.
func (v *View) rulesOf(namespace string, podLabels map[string]string) []*budgetRule {
	if k, _, ok := v.budgetRules.First(namespace + "/"); !ok || !strings.HasPrefix(k, namespace+"/") {
		return nil // most namespaces have no budgets
	}
	var rules []*budgetRule
	take := func(prefix string) {
		v.budgetRules.ScanFrom(prefix, prefix, func(_ string, r *budgetRule) bool {
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
		slices.SortFunc(rules, func(a, b *budgetRule) int { return strings.Compare(a.key, b.key) })
	}
	return rules
}

// BudgetsOf calls f for every disruption budget that covers a pod of these
// labels, by name, until f returns false (PD1).
func (v *View) BudgetsOf(namespace string, podLabels map[string]string, f func(b *policyv1.PodDisruptionBudget) bool) {
	for _, r := range v.rulesOf(namespace, podLabels) {
		if b, ok := v.Budgets.Get(r.key); ok && !f(b) {
			return
		}
	}
}

// announcedFor is how long a disruption that somebody announced in a budget's
// status counts without the pod's end having begun (PD3).
const announcedFor = 2 * time.Minute

func runsOut(announced metav1.Time) int64 { return announced.Add(announcedFor).UnixNano() }

func firstRunsOut(b *policyv1.PodDisruptionBudget) (at int64, ok bool) {
	// order does not matter: it is the least.
	for _, announced := range b.Status.DisruptedPods {
		if t := runsOut(announced); !ok || t < at {
			at, ok = t, true
		}
	}
	return at, ok
}

func budgetTimeKey(at int64, key string) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(at))) + key
}

// dropCoverage forgets a budget that goes, or whose rule changes.
func (v *live) dropCoverage(key string) {
	v.touchBudget(key)
	c, ok := v.coverages.Get(key)
	if !ok {
		return
	}
	for _, k := range c.rule.labelKeys() {
		v.budgetRules.Delete(k)
	}
	v.coverages.Delete(key)
	var owners []string
	v.budgetOwners.ScanFrom(key+"\x00", key+"\x00", func(k string, _ int32) bool {
		owners = append(owners, k[len(key)+1:])
		return true
	})
	for _, owner := range owners {
		v.budgetOwners.Delete(key + "\x00" + owner)
		v.ownersBudgets.Delete(owner + "\x00" + key)
	}
}

// addCoverage begins to count for a rule. A state that is being restored has
// its pods counted one by one afterwards.
func (v *live) addCoverage(r *budgetRule, namespace string) {
	for _, k := range r.labelKeys() {
		v.budgetRules.Set(k, r)
	}
	v.coverages.Set(r.key, &coverage{rule: r})
	if v.cache.restored != nil {
		return
	}
	if requirements, selectable := r.selector.Requirements(); !selectable && len(requirements) == 0 {
		return
	}
	v.Pods.Scan(namespace+"/", func(_ string, pod *corev1.Pod) bool {
		if r.selector.Matches(labels.Set(pod.Labels)) {
			v.count(r, pod, 1)
		}
		return true
	})
}
