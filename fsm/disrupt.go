package fsm

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
)

// Whoever ends a pod that does not end of its own accord comes through
// disrupt: the eviction API (and with it a drain), preemption, taints and the
// garbage collection of pods (T14). A disruption counts from the moment at
// which it is carried out, for then the pod is on its way out and healthy no
// more. So nothing is ever spent twice, and nothing has to be given back.

// disruptor is who disrupts, and what it says of it on the pod.
type disruptor struct {
	reason, message string // of the DisruptionTarget condition (PD7)
	graceSeconds    *int64
	fail            bool // the pod becomes Failed before it goes
}

// disrupt ends a pod, marked as disrupted, and returns it as it is then and
// whether it is gone. What its budgets have to say to it was asked before (see
// account); that a budget is broken is told on the budget.
func (tx *Tx) disrupt(key string, pod *corev1.Pod, by disruptor) (*corev1.Pod, bool) {
	for _, b := range tx.newAccount().take(pod).broken {
		h := tx.view.healthOf(b)
		tx.budgetEvent(b, corev1.EventTypeWarning, "BudgetViolated", fmt.Sprintf(
			"Pod %s was disrupted (%s), although %d healthy pods are needed and there were %d", pod.Name, by.reason, h.desired, h.current))
	}
	condition := disruptionTarget(tx, by.reason, by.message)
	if by.fail {
		pod = tx.failPod(key, pod, condition)
	}
	return tx.deletePod(key, pod, by.graceSeconds, condition)
}

// failPod makes a pod that has not ended Failed: whoever watches it learns that
// it has, before it is gone.
func (tx *Tx) failPod(key string, old *corev1.Pod, condition *corev1.PodCondition) *corev1.Pod {
	if model.Terminal(old) {
		return old
	}
	pod := tx.modifyPod(key, old, func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodFailed
		if condition != nil {
			condition.ObservedGeneration = pod.Generation
			setCondition(&pod.Status, *condition)
		}
	})
	tx.leftNode(pod)
	return pod
}

func disruptionTarget(tx *Tx, reason, message string) *corev1.PodCondition {
	return &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: reason, Message: message, LastTransitionTime: tx.now(),
	}
}

func (v *View) healthOf(b *policyv1.PodDisruptionBudget) budgetHealth {
	c, _ := v.coverages.Get(PodKey(b.Namespace, b.Name))
	return v.health(b, c)
}

// account is what the disruption of several pods at once would cost the
// budgets that cover them. Nothing is changed by asking.
type account struct {
	view  *View
	spent map[string]*spending
}

type spending struct {
	health budgetHealth
	named  int64 // pods, healthy or not
	taken  int64 // pods that took one of the disruptions allowed
}

func (tx *Tx) newAccount() *account {
	return &account{view: &tx.view.View, spent: map[string]*spending{}}
}

// charge is what one more pod does to its budgets.
type charge struct {
	// forbidding are the budgets by whose rules the pod must not be disrupted
	// (PD6, PD8, PD9).
	forbidding []*policyv1.PodDisruptionBudget
	// broken are those of them that lose a healthy pod that they need.
	broken []*policyv1.PodDisruptionBudget
	// beyond are the budgets with fewer disruptions left than pods were named,
	// healthy or not (PR8).
	beyond []*policyv1.PodDisruptionBudget
}

// take charges a pod's disruption to all of its budgets, whether they can
// afford it or not. A pod that is ending already costs nothing.
func (a *account) take(pod *corev1.Pod) charge {
	var out charge
	if model.Terminating(pod) || model.Terminal(pod) {
		return out
	}
	a.view.BudgetsOf(pod.Namespace, pod.Labels, func(b *policyv1.PodDisruptionBudget) bool {
		s := a.of(b)
		if _, announced := s.health.announced[pod.Name]; announced {
			return true // it is in the count already
		}
		if s.named++; s.named > s.health.allowed {
			out.beyond = append(out.beyond, b)
		}
		if !model.Ready(pod) && (pod.Status.Phase == corev1.PodPending || s.lenient(b)) {
			return true
		}
		if s.taken++; s.taken > s.health.allowed {
			out.forbidding = append(out.forbidding, b)
			if model.Ready(pod) {
				out.broken = append(out.broken, b)
			}
		}
		return true
	})
	return out
}

func (a *account) of(b *policyv1.PodDisruptionBudget) *spending {
	key := PodKey(b.Namespace, b.Name)
	s, ok := a.spent[key]
	if !ok {
		s = &spending{health: a.view.healthOf(b)}
		a.spent[key] = s
	}
	return s
}

// lenient says whether a pod that is not ready may go and cost nothing (PD9).
func (s *spending) lenient(b *policyv1.PodDisruptionBudget) bool {
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return s.health.desired > 0 && s.health.current-s.taken >= s.health.desired
}

// refuseEviction is the eviction API's answer when budgets stand in the way,
// with one cause for each (PD6).
func (v *View) refuseEviction(budgets []*policyv1.PodDisruptionBudget) Result {
	r := Result{
		Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: "Cannot evict pod as it would violate the pod's disruption budget.",
		Details: &metav1.StatusDetails{},
	}
	for _, b := range budgets {
		r.Details.Causes = append(r.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: v.whyForbidden(b)})
	}
	return r
}

// whyForbidden says what a budget lacks.
func (v *View) whyForbidden(b *policyv1.PodDisruptionBudget) string {
	h := v.healthOf(b)
	switch {
	case h.failed != "":
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s", b.Name, h.failed)
	case h.current <= h.desired:
		return fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, h.desired, h.current)
	}
	return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
}

// judgeVictims says which victims are beyond budgets that the pod may violate
// (PR8), and why a budget forbids to preempt them for it, or "": under
// strictness, or because the pod's priority is below the one that the budget
// demands. What such a budget does not forbid is no violation of it.
func (tx *Tx) judgeVictims(victims []*corev1.Pod, class *model.Class) (map[types.UID]bool, string) {
	strict := model.StrictFor(&tx.view.SchedulerConfig().Spec.Preemption, class)
	account, beyond := tx.newAccount(), map[types.UID]bool{}
	for _, victim := range victims {
		c := account.take(victim)
		beyond[victim.UID] = slices.ContainsFunc(c.beyond, func(b *policyv1.PodDisruptionBudget) bool {
			return model.MayViolate(b, class.Priority, strict)
		})
		for _, b := range c.forbidding {
			if model.MayViolate(b, class.Priority, strict) {
				continue
			}
			why := fmt.Sprintf("victim %s is protected: %s", PodKey(victim.Namespace, victim.Name), lowerFirst(tx.view.whyForbidden(b)))
			if from, ok := b.Annotations[model.ViolatorPriorityAnnotation]; ok && !strict {
				why += ", and only pods of priority " + from + " and above may violate it"
			}
			return nil, why
		}
	}
	return beyond, ""
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }
