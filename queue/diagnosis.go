package queue

import (
	"slices"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// Diagnosis is the outcome of an attempt that found no place: how many nodes
// refused for which reason. A node that refuses for several reasons counts
// under each of them.
type Diagnosis struct {
	Nodes   int32         `msgpack:"nodes"`
	Reasons []ReasonCount `msgpack:"reasons,omitempty"`
	// Preemption says why no eviction could help, when one was considered.
	Preemption string `msgpack:"preemption,omitempty"`
	// Message is the Kubernetes wording of it all (QU10).
	Message string `msgpack:"message"`
	// Budgets are disruption budgets that forbid evictions that would have helped,
	// by key: as many as are kept. The pod is tried again when any allows more.
	Budgets []string `msgpack:"budgets,omitempty"`
}

// ReasonCount is how many nodes gave a reason.
type ReasonCount struct {
	Kind     model.ReasonKind `msgpack:"kind"`
	Resource string           `msgpack:"resource,omitempty"`
	Text     string           `msgpack:"text"`
	Nodes    int32            `msgpack:"nodes"`
	// ShortBy is the least that was missing on any node, in the resource's
	// base unit (milli-CPU, bytes, or a count).
	ShortBy int64  `msgpack:"short_by,omitempty"`
	Detail  string `msgpack:"detail,omitempty"`
}

// Equal says whether two diagnoses say the same.
func (d *Diagnosis) Equal(o *Diagnosis) bool {
	return d == o || d.Message == o.Message && d.Nodes == o.Nodes && d.Preemption == o.Preemption &&
		slices.Equal(d.Reasons, o.Reasons) && slices.Equal(d.Budgets, o.Budgets)
}

// keptAway says whether other pods' rules are among the reasons.
func (d *Diagnosis) keptAway() bool {
	return d != nil &&
		slices.ContainsFunc(d.Reasons, func(r ReasonCount) bool { return r.Kind == model.ExistingAntiAffinity })
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

// Bytes is about what memory the diagnosis holds; nil holds none.
func (d *Diagnosis) Bytes() int {
	if d == nil {
		return 0
	}
	n := 256 + len(d.Message) + len(d.Preemption)
	for i := range d.Reasons {
		r := &d.Reasons[i]
		n += 96 + len(r.Resource) + len(r.Text) + len(r.Detail)
	}
	for _, b := range d.Budgets {
		n += 16 + len(b)
	}
	return n
}
