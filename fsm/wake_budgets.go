package fsm

import "github.com/berth-dev/berth/model"

// budgetAllows wakes those for whom pods may be evicted now that a disruption
// budget protected before (PD13): the first of each group, and the others when
// that has found a place.
func (tx *Tx) budgetAllows(key string) {
	var groups []string
	prefix := string(byte(model.DisruptionBudget)) + key + "\x00"
	tx.view.wakeups.ScanFrom(prefix, prefix, func(_ string, w wakeup) bool {
		groups = append(groups, w.group)
		return true
	})
	for _, group := range groups {
		tx.wakeNext(group)
	}
}

// missedBudget says whether a budget that the diagnosis names was changed after
// a revision, or is gone.
func (v *live) missedBudget(revision int64, d *Diagnosis) bool {
	for _, key := range d.Budgets {
		if b, ok := v.Budgets.Get(key); !ok || parseRevision(b.ResourceVersion) > revision {
			return true
		}
	}
	return false
}
