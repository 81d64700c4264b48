package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched"
)

// refusal gathers the nodes that have the same against a pod.
type refusal struct {
	nodes    int
	examples []string
	reasons  []gathered
}

// gathered is one reason of several nodes: the least and the most that is
// missing on one of them, who is in the way, and what else they tell.
type gathered struct {
	text, resource string
	least, most    int64
	details        []string
	own            int // how many of the details are the first node's
	blockers       blockers
	skews          skews
}

// maxDetails is how many different details are told of one reason, or as many as one node has.
const maxDetails = 3

func newRefusal(v *sched.NodeVerdict) *refusal {
	out := &refusal{}
	for _, r := range v.Reasons {
		out.reasons = append(out.reasons, gathered{
			text: r.Text(), resource: r.Resource, least: r.ShortBy, most: r.ShortBy, blockers: blockers{reason: r.Text()},
		})
	}
	return out
}

// add takes in a node whose reasons have the same wording.
func (f *refusal) add(v *sched.NodeVerdict) {
	f.nodes++
	if len(f.examples) < maxExamples {
		f.examples = append(f.examples, v.Node)
	}
	for i, r := range v.Reasons {
		g := &f.reasons[i]
		g.least, g.most = min(g.least, r.ShortBy), max(g.most, r.ShortBy)
		g.tell(r.Detail, f.nodes == 1)
		g.blockers.add(r.Blockers)
		g.skews.add(r.Skews)
	}
}

// tell takes in what one node tells: clauses of which another node may tell the same.
func (g *gathered) tell(detail string, first bool) {
	for clause := range strings.SplitSeq(detail, "; ") {
		if clause != "" && !slices.Contains(g.details, clause) && (first || len(g.details) <= max(maxDetails, g.own)) {
			g.details = append(g.details, clause)
		}
	}
	if first {
		g.own = len(g.details)
	}
}

func (f *refusal) shown(who *naming) ledger.Refusal {
	out := ledger.Refusal{Nodes: f.nodes, Examples: f.examples}
	for i := range f.reasons {
		g := &f.reasons[i]
		switch {
		case len(g.blockers.keys) > 0:
			fields, words := who.told(&g.blockers)
			out.InTheWay = append(out.InTheWay, fields...)
			if note := g.note(); g.blockers.kept() && note != "" {
				words = note + "; " + words
			}
			out.Reasons = append(out.Reasons, fmt.Sprintf("%s (%s)", g.text, words))
		case len(g.skews.of) > 0:
			out.Skews = append(out.Skews, g.skews.of...)
			out.Reasons = append(out.Reasons, fmt.Sprintf("%s (%s)", g.text, g.skews.words()))
		default:
			out.Reasons = append(out.Reasons, g.shown())
		}
	}
	return out
}

func (g *gathered) shown() string {
	if note := g.note(); note != "" {
		return fmt.Sprintf("%s (%s)", g.text, note)
	}
	return g.text
}

// note is what the nodes tell beside the reason, or how much is missing.
func (g *gathered) note() string {
	switch {
	case len(g.details) > max(maxDetails, g.own):
		return strings.Join(g.details[:max(maxDetails, g.own)], "; ") + "; …"
	case len(g.details) > 0:
		return strings.Join(g.details, "; ")
	case g.most > 0 && g.least == g.most:
		return "short " + model.FormatAmount(g.resource, g.most)
	case g.most > 0:
		return fmt.Sprintf("short %s to %s", model.FormatAmount(g.resource, g.least), model.FormatAmount(g.resource, g.most))
	}
	return ""
}
