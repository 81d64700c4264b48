package verb

import (
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/ledger"
)

// podNamed is a pod in a sentence. Who may not know its name gets its UID (PR20).
func podNamed(namespace, name string, uid types.UID) string {
	if name == "" {
		return "pod " + string(uid)
	}
	return qualified(namespace, name)
}

// decidedBy says what counted at an earlier revision.
func decidedBy(name string, x *Explanation) string {
	if len(x.Decisions) == 0 {
		return fmt.Sprintf("By revision %d nothing had been decided about %s.", x.At, name)
	}
	d := &x.Decisions[0]
	return fmt.Sprintf("At revision %d the last decision about %s was that of revision %d, entry %d, %s: %s.",
		x.At, name, d.Revision, d.RaftIndex, clock(d.Time.Time), decision(d))
}

// whyThere says of a bound pod what spoke for its node.
func whyThere(x *Explanation) []string {
	for i := range x.Decisions {
		d := &x.Decisions[i]
		if d.Kind != "Bound" || d.Refused != "" || d.Node != x.Node {
			continue
		}
		if d.Feasible == 0 {
			return nil
		}
		return []string{fmt.Sprintf("It was %s, decided at revision %d.", best(d), d.DecidedAtRevision)}
	}
	if x.ReachesBackTo > 0 {
		return []string{fmt.Sprintf("What led there is no longer known: the ledger reaches back to revision %d.", x.ReachesBackTo)}
	}
	return nil
}

// best is what set a node apart.
func best(d *ledger.Decision) string {
	switch {
	case d.Feasible <= 1:
		return "the only node that fit"
	case d.RunnerUp == "":
		return fmt.Sprintf("the node that was kept for it, one of %d nodes that fit", d.Feasible)
	}
	return fmt.Sprintf("the best of %d nodes that fit (score %d, before %s)", d.Feasible, d.Score, d.RunnerUp)
}

// decision is a decision in half a sentence.
func decision(d *ledger.Decision) string {
	var s string
	switch d.Kind {
	case "Bound":
		s = "bound to " + d.Node
		if d.Feasible > 0 {
			s += ", " + best(d)
		}
	case "Nominated":
		s = "nominated to " + d.Node + ", where others have to go first"
	case "Reserved":
		s = "what comes free on " + d.Node + " is kept for it"
		if d.Message != "" {
			s += ": " + strings.TrimSuffix(d.Message, ".")
		}
	default:
		s = "no place: " + strings.TrimSuffix(d.Message, ".")
	}
	if d.Refused != "" {
		s += "; refused, because " + d.Refused
	}
	return s
}

// tellNodes prints what the nodes say, those that say the same together.
func tellNodes(w io.Writer, n *ledger.Nodes) {
	if n == nil {
		return
	}
	fmt.Fprintf(w, "\nNow %d of %s would take it", n.Fit, plural(n.Total, "node"))
	if len(n.Refusals) == 0 {
		fmt.Fprintln(w, ".")
	} else {
		fmt.Fprintln(w, ":")
	}
	for _, r := range n.Refusals {
		names := strings.Join(r.Examples, ", ")
		if r.Nodes > len(r.Examples) {
			names += ", …"
		}
		row(w, "  "+plural(r.Nodes, "node"), strings.Join(r.Reasons, " + "), names)
	}
	if len(n.Each) == 0 {
		return
	}
	fmt.Fprintln(w)
	row(w, "NODE", "VERDICT", "PREEMPTION")
	for _, v := range n.Each {
		verdict := strings.Join(v.Reasons, " + ")
		if verdict == "" {
			verdict = "fits"
		}
		row(w, v.Node, verdict, preempting(&v))
	}
}

// preempting says what evictions on a node would do.
func preempting(v *ledger.NodeVerdict) string {
	s := v.Preemption
	if len(v.Victims) > 0 {
		s += " " + strings.Join(v.Victims, ", ")
	}
	if len(v.Ending) > 0 {
		s += "; ending: " + strings.Join(v.Ending, ", ")
	}
	return s
}

// shownDecisions is how many decisions the table has; -o json has more.
const shownDecisions = 10

// tellHistory prints the decisions about a pod, newest first, where there is more
// than what was said already.
func tellHistory(w io.Writer, x *Explanation) {
	if x.At > 0 || len(x.Decisions) == 0 || len(x.Decisions) == 1 && x.pod != nil {
		return
	}
	fmt.Fprintln(w)
	row(w, "REVISION", "ENTRY", "TIME", "DECISION")
	for i := range x.Decisions[:min(len(x.Decisions), shownDecisions)] {
		d := &x.Decisions[i]
		row(w, d.Revision, d.RaftIndex, clock(d.Time.Time), decision(d))
	}
	if more := len(x.Decisions) - shownDecisions; more > 0 {
		fmt.Fprintf(w, "and %d earlier\n", more)
	}
	if x.ReachesBackTo > 0 {
		fmt.Fprintf(w, "The ledger reaches back to revision %d.\n", x.ReachesBackTo)
	}
}
