package fsm

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/queue"
)

// The statuses of disruption budgets are exact at the end of every command:
// the index (package budgets) counts as pods change, and what changed is written
// into the rows once a command is carried out (flushBudgets). Only a budget whose
// rule is new may be behind: its pods are counted by so many an entry, and until
// then it allows nothing.

var budgetTable = protoTable("poddisruptionbudgets", indexBudget)

func indexBudget(v *live, key string, old, now *policyv1.PodDisruptionBudget, hadOld, hasNow bool) {
	var was, is metav1.Object
	if hadOld {
		was = old
	}
	if hasNow {
		is = now
	}
	v.owners.Put(DisruptionBudgets, was, is)
	indexBudgetUse(v, was, is)
	v.budgets.Put(old, now)
	if v.cache.restored != nil { // its pods are put one by one afterwards
		p, counting := v.pending.Get(queue.PendingBudgets + key)
		upTo := ""
		if counting {
			upTo = p.From
		}
		v.budgets.Resume(key, upTo, !counting)
	}
}

// countBudget counts pods that a budget covers which is new, or covers others now,
// and notes where to go on.
func (tx *Tx) countBudget(key string) (done bool) {
	v := tx.view
	pods := func(namespace, from string, f func(pod *corev1.Pod) bool) {
		v.Pods.ScanFrom(namespace+"/", PodKey(namespace, from), func(_ string, pod *corev1.Pod) bool { return f(pod) })
	}
	upTo, done := v.budgets.Count(v.budgetState(), key, pods, func(units int) bool {
		if tx.work.HalfOver() {
			return false
		}
		tx.work.Charge(units)
		return true
	})
	if !done {
		put(tx, v.pending, queue.PendingBudgets+key, &queue.Pending{From: upTo})
	} else if v.pending.Len() > 0 {
		remove(tx, v.pending, queue.PendingBudgets+key)
	}
	return done
}

// budgetState implements budgets.State.
type budgetState struct{ *View }

func (v *View) budgetState() budgetState { return budgetState{v} }

func (s budgetState) Budget(key string) (*policyv1.PodDisruptionBudget, bool) {
	return s.Budgets.Get(key)
}

func (s budgetState) Pod(key string) (*corev1.Pod, bool) { return s.Pods.Get(key) }

// Scale knows workloads of the kinds that are served.
func (s budgetState) Scale(o budgets.Owner) (int32, bool) {
	kind := kindsByName[schema.GroupKind{Group: o.Group, Kind: o.Kind}]
	if kind.Workload == nil || kind.Workload.Replicas == nil {
		return 0, false
	}
	row, ok := s.Objects.Get(ObjectKey(kind.Resource, o.Namespace, o.Name))
	if !ok || string(row.Value.GetUID()) != o.UID {
		return 0, false
	}
	return kind.Workload.Replicas(row.Value), true
}

// scaleOf is what a workload wants; nil for an object of another kind.
func scaleOf(o *Object) *budgets.Scale {
	if o == nil {
		return nil
	}
	kind := objectKinds[o.Resource]
	if kind.Workload == nil || kind.Workload.Replicas == nil {
		return nil
	}
	return &budgets.Scale{
		Owner: budgets.Owner{Group: kind.Group, Kind: kind.Kind, Namespace: o.Value.GetNamespace(), Name: o.Value.GetName(), UID: string(o.Value.GetUID())},
		Pods:  kind.Workload.Replicas(o.Value),
	}
}

// BudgetsOf calls f for every disruption budget that covers a pod of these
// labels, by name, until f returns false (PD1).
func (v *View) BudgetsOf(namespace string, podLabels map[string]string, f func(b *policyv1.PodDisruptionBudget) bool) {
	v.budgets.Of(v.budgetState(), namespace, podLabels, f)
}

// flushBudgets writes into the rows of the touched budgets what their pods add
// up to now. It ends every command.
func (tx *Tx) flushBudgets() {
	v := tx.view
	v.budgets.Touched(v.TimeUnixNano(), func(key string, before *budgets.Coverage) {
		old, ok := v.Budgets.Get(key)
		if !ok {
			return
		}
		next := *old
		next.Status = tx.budgetStatus(old)
		if !budgets.SameStatus(&next.Status, &old.Status) {
			put(tx, v.Budgets, key, &next)
		}
		for _, n := range v.budgets.Notices(v.budgetState(), &next, before) {
			tx.budgetEvent(&next, n.Type, n.Reason, n.Message)
		}
	})
}

func (tx *Tx) budgetStatus(b *policyv1.PodDisruptionBudget) policyv1.PodDisruptionBudgetStatus {
	return tx.view.budgets.Status(tx.view.budgetState(), b, tx.now())
}

func (tx *Tx) budgetEvent(b *policyv1.PodDisruptionBudget, eventType, reason, message string) {
	tx.repeatedEvent(eventSource, b.Namespace, budgetInvolved(b), eventType, reason, message)
}

func budgetInvolved(b *policyv1.PodDisruptionBudget) corev1.ObjectReference {
	return corev1.ObjectReference{
		Kind: "PodDisruptionBudget", APIVersion: "policy/v1", Namespace: b.Namespace, Name: b.Name, UID: b.UID, ResourceVersion: b.ResourceVersion,
	}
}
