package server

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
	rally          rally
	skews          skews
}

// maxDetails is how many different details are told of one reason.
const maxDetails = 3

func newRefusal(v *sched.NodeVerdict) *refusal {
	out := &refusal{}
	for _, r := range v.Reasons {
		out.reasons = append(out.reasons, gathered{
			text: r.Text(), resource: r.Resource, least: r.ShortBy, most: r.ShortBy, rally: rally{reason: r.Text()},
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
		if r.Detail != "" && !slices.Contains(g.details, r.Detail) && len(g.details) <= maxDetails {
			g.details = append(g.details, r.Detail)
		}
		g.rally.add(r.Crowds)
		g.skews.add(r.Skews)
	}
}

func (f *refusal) shown(who *naming) ledger.Refusal {
	out := ledger.Refusal{Nodes: f.nodes, Examples: f.examples}
	for i := range f.reasons {
		g := &f.reasons[i]
		switch {
		case len(g.rally.keys) > 0:
			fields, words := who.told(&g.rally)
			out.InTheWay = append(out.InTheWay, fields...)
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
	switch {
	case len(g.details) > maxDetails:
		return fmt.Sprintf("%s (%s, …)", g.text, strings.Join(g.details[:maxDetails], "; "))
	case len(g.details) > 0:
		return fmt.Sprintf("%s (%s)", g.text, strings.Join(g.details, "; "))
	case g.most > 0 && g.least == g.most:
		return fmt.Sprintf("%s (short %s)", g.text, model.FormatAmount(g.resource, g.most))
	case g.most > 0:
		return fmt.Sprintf("%s (short %s to %s)", g.text, model.FormatAmount(g.resource, g.least), model.FormatAmount(g.resource, g.most))
	}
	return g.text
}
