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

	"github.com/berth-dev/berth/budgets"
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
	account := tx.newAccount()
	for _, b := range account.Take(pod).Broken {
		h := tx.view.budgets.HealthOf(tx.view.budgetState(), b)
		tx.budgetEvent(b, corev1.EventTypeWarning, "BudgetViolated", fmt.Sprintf(
			"Pod %s was disrupted (%s), although %d healthy pods are needed and there were %d", pod.Name, by.reason, h.Desired, h.Current))
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

func (tx *Tx) newAccount() budgets.Account {
	return tx.view.budgets.Account(tx.view.budgetState())
}

// refuseEviction is the eviction API's answer when budgets stand in the way,
// with one cause for each (PD6).
func (v *live) refuseEviction(forbidding []*policyv1.PodDisruptionBudget) Result {
	v.cache.work += int64(len(forbidding)) * costForbidding
	r := Result{
		Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: "Cannot evict pod as it would violate the pod's disruption budget.",
		Details: &metav1.StatusDetails{},
	}
	for _, b := range forbidding {
		r.Details.Causes = append(r.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: v.whyForbidden(b)})
	}
	return r
}

// whyForbidden says what a budget lacks.
func (v *View) whyForbidden(b *policyv1.PodDisruptionBudget) string {
	h := v.budgets.HealthOf(v.budgetState(), b)
	return h.Lacks(b.Name)
}

// judgeVictims says which victims are beyond budgets that the pod may violate
// (PR8), and why a budget forbids to preempt them for it, or "": under
// strictness, or because the pod's priority is below the one that the budget
// demands. What such a budget does not forbid is no violation of it.
func (tx *Tx) judgeVictims(victims []*corev1.Pod, class *model.Class) (map[types.UID]bool, string) {
	strict := model.StrictFor(&tx.view.SchedulerConfig().Spec.Preemption, class)
	account, beyond := tx.newAccount(), map[types.UID]bool(nil)
	for _, victim := range victims {
		c := account.Take(victim)
		if slices.ContainsFunc(c.Beyond, func(b *policyv1.PodDisruptionBudget) bool {
			return model.MayViolate(b, class.Priority, strict)
		}) {
			if beyond == nil {
				beyond = map[types.UID]bool{}
			}
			beyond[victim.UID] = true
		}
		for _, b := range c.Forbidding {
			if model.MayViolate(b, class.Priority, strict) {
				continue
			}
			why := refusedVictim(PodKey(victim.Namespace, victim.Name), protectedWord+lowerFirst(tx.view.whyForbidden(b)))
			if from, ok := b.Annotations[model.ViolatorPriorityAnnotation]; ok && !strict {
				why += ", and only pods of priority " + from + " and above may violate it"
			}
			return nil, why
		}
	}
	return beyond, ""
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }
