package fsm

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// budget NAME selector=k:v,… | in=key:v1:v2 | all | none; min= max= (a number
// or a percentage) unhealthy=POLICY violators=PRIORITY announce=POD,… update
// at= finalizers= end condition=TYPE
func (s *transcript) budget(a words, _ string) []Command {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: s.meta(a, "default")}
	old, known := s.view().Budgets.Get(PodKey(b.Namespace, b.Name))
	if known && a.has("update") {
		b = old.DeepCopy()
		b.Generation++
	}
	if v, ok := a.get("selector"); ok {
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: pairs(strings.Split(v, ","))}
	}
	if v, ok := a.get("in"); ok {
		p := strings.Split(v, ":")
		b.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: p[0], Operator: metav1.LabelSelectorOpIn, Values: p[1:]}}}
	}
	if v, ok := a.get("without"); ok {
		b.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v, Operator: metav1.LabelSelectorOpDoesNotExist}}}
	}
	if a.has("all") {
		b.Spec.Selector = &metav1.LabelSelector{}
	}
	if a.has("none") {
		b.Spec.Selector = nil
	}
	if v, ok := a.get("min"); ok {
		n := intstr.Parse(v)
		b.Spec.MinAvailable, b.Spec.MaxUnavailable = &n, nil
	}
	if v, ok := a.get("max"); ok {
		n := intstr.Parse(v)
		b.Spec.MaxUnavailable, b.Spec.MinAvailable = &n, nil
	}
	if v, ok := a.get("unhealthy"); ok {
		p := policyv1.UnhealthyPodEvictionPolicyType(v)
		b.Spec.UnhealthyPodEvictionPolicy = &p
	}
	if v, ok := a.get("violators"); ok {
		b.Annotations = map[string]string{"berth.dev/allow-disruption-by-priority-greater-than-or-equal": v}
	}
	if v, ok := a.get("condition"); ok {
		b.Status.Conditions = append(b.Status.Conditions, metav1.Condition{Type: v, Status: metav1.ConditionTrue, Reason: "Test"})
	}
	if _, ok := a.get("announce"); ok {
		b.Status.DisruptedPods = map[string]metav1.Time{}
		for _, name := range a.list("announce") {
			b.Status.DisruptedPods[name] = metav1.NewTime(s.now)
		}
	}
	if a.has("unfinalize") {
		b.Finalizers = nil
	}
	if a.has("end") {
		now := metav1.NewTime(s.now)
		b.DeletionTimestamp = &now
	}
	if a.has("lies") { // a status that is not a user's to say
		b.Status.DisruptionsAllowed, b.Status.CurrentHealthy, b.Status.ExpectedPods, b.Status.DesiredHealthy = 77, 77, 77, 77
		b.Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionTrue, Reason: "Lies"}}
	}
	return one(&PutDisruptionBudget{Budget: BudgetWire{Object: b}, Create: !a.has("update"), Revision: s.revision(a)})
}

func (s *transcript) deleteBudget(a words, _ string) []Command {
	return one(&DeleteDisruptionBudget{Namespace: a.or("ns", "default"), Name: a.name(), Precondition: s.precondition(a)})
}

// replicaset NAME replicas=N [selector=…] [class=…] [cpu=…] [update]
func (s *transcript) replicaSet(a words, _ string) []Command {
	rs := &appsv1.ReplicaSet{ObjectMeta: s.meta(a, "default")}
	if n := a.number("replicas"); n != nil {
		replicas := int32(*n)
		rs.Spec.Replicas = &replicas
	}
	if selector := pairs(a.list("selector")); selector != nil {
		rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: selector}
	}
	if class, ok := a.get("class"); ok {
		rs.Spec.Template.Spec.PriorityClassName = class
		rs.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: a.or("image", "one")}}
	}
	raw, err := rs.Marshal()
	if err != nil {
		s.t.Fatal(err)
	}
	return one(&PutObject{Resource: ReplicaSets, Raw: raw, Create: !a.has("update"), Revision: s.revision(a)})
}

// owners are the owner references of owners=… (see ownerReference), or the one
// controller of owner=[KIND:]NAME.
func (w words) owners() []metav1.OwnerReference {
	var out []metav1.OwnerReference
	for _, owner := range w.list("owners") {
		out = append(out, ownerReference(owner))
	}
	v, ok := w.get("owner")
	if !ok {
		return out
	}
	kind, name, ok := strings.Cut(v, ":")
	version := "batch/v1"
	if !ok {
		version, kind, name = "apps/v1", "ReplicaSet", v
	}
	controller := true
	return append(out, metav1.OwnerReference{APIVersion: version, Kind: kind, Name: name, UID: types.UID("uid-" + name), Controller: &controller})
}

func describeBudget(b *policyv1.PodDisruptionBudget) string {
	out := fmt.Sprintf("allows %d: %d of %d healthy, %d expected", b.Status.DisruptionsAllowed, b.Status.CurrentHealthy, b.Status.DesiredHealthy, b.Status.ExpectedPods)
	if b.Status.ObservedGeneration > 1 {
		out += ", generation " + strconv.FormatInt(b.Status.ObservedGeneration, 10)
	}
	for _, c := range b.Status.Conditions {
		out += fmt.Sprintf(", %s=%s %s", c.Type, c.Status, c.Reason)
		if c.Message != "" {
			out += " (" + c.Message + ")"
		}
	}
	if len(b.Status.DisruptedPods) > 0 {
		out += ", announced " + strings.Join(slices.Sorted(maps.Keys(b.Status.DisruptedPods)), " ")
	}
	return out
}
