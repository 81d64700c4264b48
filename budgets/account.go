package budgets

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/berth-dev/berth/model"
)

// Spares says whether a pod's disruption takes nothing that a budget has to
// give (PD8, PD9), where so many healthy pods are desired and so many there
// are: it is not ready, and is not running yet or one to be lenient with.
func Spares(spec *policyv1.PodDisruptionBudgetSpec, pod *corev1.Pod, desired, current int64) bool {
	return !model.Ready(pod) && (pod.Status.Phase == corev1.PodPending || Lenient(spec, desired, current))
}

// Lenient says whether pods that are not ready may go and cost nothing (PD9).
func Lenient(spec *policyv1.PodDisruptionBudgetSpec, desired, current int64) bool {
	if p := spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return desired > 0 && current >= desired
}

// workAccount is the work of charging one budget.
const workAccount = 12

// Account is what the disruption of several pods at once would cost the budgets
// that cover them. Nothing is changed by asking, but that it counts as work of the
// index.
type Account struct {
	index *Index
	state State
	spent []spending
	// at finds one by the budget's key where there are more than fewSpent.
	at map[string]int
}

// fewSpent are found as fast by looking at all of them.
const fewSpent = 8

type spending struct {
	key    string // of the budget
	health Health
	named  int64 // pods, healthy or not
	taken  int64 // pods that took one of the disruptions allowed
}

// Account opens one.
func (x *Index) Account(s State) Account { return Account{index: x, state: s} }

// Charge is what one more pod does to its budgets.
type Charge struct {
	// Forbidding are the budgets by whose rules the pod must not be disrupted
	// (PD6, PD8, PD9).
	Forbidding []*policyv1.PodDisruptionBudget
	// Broken are those of them that lose a healthy pod that they need.
	Broken []*policyv1.PodDisruptionBudget
	// Beyond are the budgets with fewer disruptions left than pods were named,
	// healthy or not (PR8).
	Beyond []*policyv1.PodDisruptionBudget
}

// Take charges a pod's disruption to all of its budgets, whether they can
// afford it or not. A pod that is ending already costs nothing.
func (a *Account) Take(pod *corev1.Pod) Charge {
	var out Charge
	if model.Terminating(pod) || model.Terminal(pod) {
		return out
	}
	for _, r := range a.index.charged(pod.Namespace, pod.Labels) {
		b, ok := a.state.Budget(r.key)
		if !ok {
			continue
		}
		a.index.work += workAccount
		s := a.of(r.key, b)
		if _, announced := s.health.announced[pod.Name]; announced {
			continue // it is in the count already
		}
		if s.named++; s.named > s.health.Allowed {
			out.Beyond = append(out.Beyond, b)
		}
		if Spares(&b.Spec, pod, s.health.Desired, s.health.Current-s.taken) {
			continue
		}
		if s.taken++; s.taken > s.health.Allowed {
			out.Forbidding = append(out.Forbidding, b)
			if model.Ready(pod) {
				out.Broken = append(out.Broken, b)
			}
		}
	}
	return out
}

// of is what a budget, by its key, has spent. It is good until the next is asked for.
func (a *Account) of(key string, b *policyv1.PodDisruptionBudget) *spending {
	i, known := a.at[key]
	if a.at == nil {
		i = slices.IndexFunc(a.spent, func(s spending) bool { return s.key == key })
		known = i >= 0
	}
	if known {
		return &a.spent[i]
	}
	c, _ := a.index.coverages.Get(key)
	a.spent = append(a.spent, spending{key: key, health: a.index.health(a.state, b, c)})
	switch {
	case a.at != nil:
		a.at[key] = len(a.spent) - 1
	case len(a.spent) > fewSpent:
		a.at = make(map[string]int, 2*len(a.spent))
		for i := range a.spent {
			a.at[a.spent[i].key] = i
		}
	}
	return &a.spent[len(a.spent)-1]
}
