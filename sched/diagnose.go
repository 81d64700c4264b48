package sched

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// What a failed attempt says about preemption: each has its own diagnosis of a class.
type attempt uint8

const (
	attemptNoPreemption attempt = iota // preemption is switched off (PC11)
	attemptNever                       // PC12
	attemptWaiting                     // T5: its victims are still ending
	attemptHelpless                    // PR13: preemption helps nowhere
	attemptPreempted                   // a node was found by preempting
	numDiagnoses
)

type cachedDiagnosis struct {
	of       *fsm.Diagnosis
	at       version
	position uint64 // of the log; matters only where amounts are told
}

// diagnose tells why no node has room for the class. Failures of the same class share one diagnosis for as long as
// nothing changed.
func (s *Scheduler) diagnose(b *board, how attempt) *fsm.Diagnosis {
	kept := &b.diagnoses[how]
	// The amounts that are short are told only where the pod stays without a place.
	exact := how != attemptPreempted
	position, now := s.view.log.head(), b.version(s.view)
	if kept.at == now && (!exact || kept.position == position) {
		return kept.of
	}
	s.meter.Spend(len(b.hist) * (workReason + b.terms()*workTerm))
	reasons := b.reasons()
	d := &fsm.Diagnosis{Reasons: bounded(reasons), Nodes: int32(s.view.live)}
	if exact {
		s.meter.Spend(len(s.view.nodes) * workNode * (1 + len(d.Reasons)))
		b.fillShort(s.view, d.Reasons)
	}
	d.Message = unavailable(d.Nodes, countByText(reasons))
	if d.Nodes == 0 {
		how = attemptNoPreemption // there is nowhere to preempt
	}
	switch how {
	case attemptNever:
		d.Preemption = "not eligible due to preemptionPolicy=Never."
	case attemptWaiting:
		d.Preemption = "not eligible due to a terminating pod on the nominated node."
	case attemptHelpless:
		s.meter.Spend(len(s.view.nodes)*workReason + s.costs[b.key].blockedRefs*workBudget)
		d.Preemption = unavailable(d.Nodes, s.costs[b.key].counts(s.view))
		d.Budgets = firstNames(s.costs[b.key].blocking())
	}
	if d.Preemption != "" {
		d.Message += " preemption: " + d.Preemption
	}
	*kept = cachedDiagnosis{of: d, at: now, position: position}
	return d
}

// reasons counts the nodes by reason, every reason of a node and not only the first.
func (b *board) reasons() []fsm.ReasonCount {
	var out []fsm.ReasonCount
	for _, t := range b.hist {
		if t.nodes == 0 {
			continue
		}
		for _, r := range (t.fails | b.topo.fails(t.topo)).Reasons(b.class) {
			i := slices.IndexFunc(out,
				func(c fsm.ReasonCount) bool { return c.Kind == r.Kind && c.Resource == r.Resource })
			if i < 0 {
				i = len(out)
				out = append(out, fsm.ReasonCount{Kind: r.Kind, Resource: r.Resource, Text: r.Text()})
			}
			out[i].Nodes += t.nodes
		}
	}
	slices.SortFunc(out, func(a, b fsm.ReasonCount) int {
		if c := cmp.Compare(a.Kind, b.Kind); c != 0 {
			return c
		}
		return cmp.Compare(a.Resource, b.Resource)
	})
	return out
}

// fillShort adds the least that is missing on any node, for each resource that is short.
func (b *board) fillShort(v *View, counts []fsm.ReasonCount) {
	if !slices.ContainsFunc(counts, func(c fsm.ReasonCount) bool { return c.Resource != "" }) {
		return
	}
	var scratch model.Usage
	for slot := range b.cells {
		c, n := &b.cells[slot], &v.nodes[slot]
		if c.fails == 0 || !c.known {
			continue
		}
		u := n.usageOf(b.class, &scratch)
		for i := range counts {
			r := &counts[i]
			if r.Kind != model.InsufficientResource && r.Kind != model.ExceedsCapacity {
				continue
			}
			want, capacity := b.class.Request.Get(r.Resource), n.alloc.Get(r.Resource)
			short := want - (capacity - u.Requested.Get(r.Resource))
			if want == 0 || short <= 0 || (want > capacity) != (r.Kind == model.ExceedsCapacity) {
				continue
			}
			if r.ShortBy == 0 || short < r.ShortBy {
				r.ShortBy = short
			}
		}
	}
}

func countByText(counts []fsm.ReasonCount) map[string]int32 {
	byText := map[string]int32{}
	for _, r := range counts {
		byText[r.Text] += r.Nodes
	}
	return byText
}

// counts says of every node why preempting there does not help, in kube-scheduler's words.
func (e *evictions) counts(v *View) map[string]int32 {
	byText := map[string]int32{}
	for slot := range e.entries {
		if v.nodes[slot].obj == nil {
			continue
		}
		at := &e.entries[slot]
		switch at.verdict {
		case verdictUnresolvable:
			byText["Preemption is not helpful for scheduling"]++
		case verdictNoVictims:
			byText["No preemption victims found for incoming pod"]++
		case verdictBlocked: // PD13
			byText[e.lacking(e.blocked[int32(slot)])]++
		case verdictStillFails:
			for _, r := range at.fails.Reasons(e.class) {
				byText[r.Text()]++
			}
		}
	}
	return byText
}

// lacking names the budgets that stand in the way on a node.
func lacking(blocking []*Budget) string {
	if len(blocking) == 0 {
		return "No preemption victims found for incoming pod" // PR14: only those that the pod needs
	}
	return blocking[0].lacks()
}

// lacking is the same for everybody who may read the pod: of budgets of other namespaces he learns no more than that there is one.
func (e *evictions) lacking(blocking []*Budget) string {
	own := func(b *Budget) bool { return b.row == nil || b.row.Namespace == e.class.Namespace }
	if i := slices.IndexFunc(blocking, own); i >= 0 {
		return lacking(blocking[i:])
	}
	if len(blocking) > 0 {
		return budgets.BarredElsewhere
	}
	return lacking(nil)
}

// blocking are the names of all budgets whose allowance would have to grow for preemption to help.
func (e *evictions) blocking() []string {
	var all []*Budget
	// order does not matter: the names are sorted below.
	for _, blocking := range e.blocked {
		for _, b := range blocking {
			if b.row != nil && b.asked == 0 {
				b.asked = 1
				all = append(all, b)
			}
		}
	}
	var names []string
	for _, b := range all {
		b.asked = 0
		names = append(names, b.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// What a diagnosis holds is kept for every class that waits, in the queue, in the log and in memory, and its message for
// every pod; so it is bounded, whatever the names of resources and budgets are, and however many.
const (
	maxReasonBytes = 8 << 10
	maxTextBytes   = 2 << 10 // of why nodes do not take the pod, and of why preemption does not help, each
	maxNameBytes   = 2 << 10 // of budgets
)

// bounded leaves the reasons of the most nodes, of each kind at least one, in the order that they have.
func bounded(all []fsm.ReasonCount) []fsm.ReasonCount {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(all[j].Nodes, all[i].Nodes) })
	kinds, left := map[model.ReasonKind]bool{}, maxReasonBytes
	keep := make([]bool, len(all))
	take := func(i int) {
		keep[i] = true
		left -= (&fsm.Diagnosis{Reasons: all[i : i+1]}).Bytes()
	}
	for _, i := range order {
		if !kinds[all[i].Kind] {
			kinds[all[i].Kind] = true
			take(i)
		}
	}
	out := all[:0:0]
	for _, i := range order {
		if !keep[i] && left > 0 {
			take(i)
		}
	}
	for i := range all {
		if keep[i] {
			out = append(out, all[i])
		}
	}
	return out
}

// firstNames are as many of the names as may be kept.
func firstNames(names []string) []string {
	held := 0
	for i, name := range names {
		if held += len(name); held > maxNameBytes {
			return slices.Clone(names[:i])
		}
	}
	return names
}

// unavailable is kube-scheduler's sentence for "no node" (QU10). Where it would be too long the reasons of the fewest
// nodes are only counted.
func unavailable(nodes int32, byText map[string]int32) string {
	if nodes == 0 {
		return "no nodes available to schedule pods"
	}
	texts := slices.SortedFunc(maps.Keys(byText), func(a, b string) int {
		return cmp.Or(cmp.Compare(byText[b], byText[a]), strings.Compare(a, b))
	})
	parts, held := make([]string, 0, len(byText)), 0
	for _, text := range texts {
		part := fmt.Sprintf("%d %s", byText[text], text)
		if held += len(part); held > maxTextBytes {
			break
		}
		parts = append(parts, part)
	}
	slices.Sort(parts)
	if more := len(texts) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d reasons more", more))
	}
	return fmt.Sprintf("0/%d nodes are available: %s.", nodes, strings.Join(parts, ", "))
}
