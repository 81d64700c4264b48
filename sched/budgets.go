package sched

// Budget is a disruption budget as preemption sees it.
type Budget struct {
	Name string // namespace/name
	// Allowed is how many of the budget's pods may be disrupted now.
	Allowed int32
	// Disrupted says of a pod by name that its disruption is in Allowed already.
	Disrupted func(name string) bool
	// ViolableFrom is the least priority of a pod for which the budget may be violated; nil: any.
	ViolableFrom *int32
}

// protects says whether the budget must not be violated for a pod of the priority.
func (b *Budget) protects(priority int32) bool {
	return b.ViolableFrom != nil && priority < *b.ViolableFrom
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
