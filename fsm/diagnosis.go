package fsm

import (
	"slices"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

func (d *Diagnosis) equal(o *Diagnosis) bool {
	return d == o || d.Message == o.Message && d.Nodes == o.Nodes && d.Preemption == o.Preemption &&
		slices.Equal(d.Reasons, o.Reasons) && slices.Equal(d.Budgets, o.Budgets)
}

// keptAway says whether other pods' rules are among the reasons.
func (d *Diagnosis) keptAway() bool {
	return d != nil && slices.ContainsFunc(d.Reasons, func(r ReasonCount) bool { return r.Kind == model.ExistingAntiAffinity })
}

// API is the diagnosis's reasons as the API shows them; nil has none.
func (d *Diagnosis) API() []berthv1.ReasonCount {
	if d == nil {
		return nil
	}
	out := make([]berthv1.ReasonCount, len(d.Reasons))
	for i, r := range d.Reasons {
		out[i] = berthv1.ReasonCount{Reason: r.Text, Nodes: r.Nodes, Detail: r.Detail}
		if r.ShortBy > 0 && r.Detail == "" {
			out[i].Detail = "short " + model.FormatAmount(r.Resource, r.ShortBy)
		}
	}
	return out
}
