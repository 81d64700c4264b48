package sched

import "strings"

// Budget is a disruption budget as preemption sees it.
type Budget struct {
	// Allowed is how many of the budget's pods may be disrupted now.
	Allowed int32
	// Disrupted says of a pod by name that its disruption is in Allowed already.
	Disrupted func(name string) bool
}

// Budgets answers which disruption budgets cover a pod (PR8). A budget is one object however many pods it covers. Equal
// questions must get equal answers until the nodes of the pods concerned are reported as changed.
type Budgets interface {
	Of(namespace string, labels map[string]string) []*Budget
}

// NoBudgets covers no pod.
type NoBudgets struct{}

// Of returns nil.
func (NoBudgets) Of(string, map[string]string) []*Budget { return nil }

// picks is a set of positions in a list of pods; nil is empty.
type picks []bool

func (p picks) has(i int) bool { return p != nil && p[i] }

// violations says which of the pods, taken in this order, would find a budget used up (PR8): every pod spends one of
// each budget that covers it, and those that find one below zero violate it. Readiness does not matter.
func violations(pods []*pod, budgets Budgets) picks {
	if _, none := budgets.(NoBudgets); none {
		return nil
	}
	var out picks
	spent := map[*Budget]int32{}
	for i, p := range pods {
		if p.isLeaving() {
			continue // nobody disrupts it a second time
		}
		for _, b := range budgets.Of(p.class.Namespace, p.class.Labels) {
			if b.Disrupted != nil && b.Disrupted(p.key[strings.IndexByte(p.key, '/')+1:]) {
				continue
			}
			spent[b]++
			if spent[b] > b.Allowed {
				if out == nil {
					out = make(picks, len(pods))
				}
				out[i] = true
			}
		}
	}
	return out
}
