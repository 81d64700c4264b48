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
// missing on one of them, and what else they tell.
type gathered struct {
	text, resource string
	least, most    int64
	details        []string
}

// maxDetails is how many different details are told of one reason.
const maxDetails = 3

func newRefusal(v *sched.NodeVerdict) *refusal {
	out := &refusal{}
	for _, r := range v.Reasons {
		out.reasons = append(out.reasons, gathered{text: r.Text(), resource: r.Resource, least: r.ShortBy, most: r.ShortBy})
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
	}
}

func (f *refusal) shown() ledger.Refusal {
	out := ledger.Refusal{Nodes: f.nodes, Examples: f.examples}
	for _, g := range f.reasons {
		out.Reasons = append(out.Reasons, g.shown())
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
