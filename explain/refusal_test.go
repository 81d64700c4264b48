package explain

import (
	"testing"

	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched"
)

// TestRefusalTellsClausesOnce: what several nodes tell alike is told once, one node's own clauses are all told, and of many
// nodes' not more than a few.
func TestRefusalTellsClausesOnce(t *testing.T) {
	for _, c := range []struct {
		name    string
		details []string
		want    string
	}{
		{"one node", []string{"a; b; c; d"}, "(a; b; c; d)"},
		{"shared", []string{"zone=a has 3; node=n1 has 2", "zone=a has 3", "zone=a has 3; node=n3 has 2"}, "(zone=a has 3; node=n1 has 2; node=n3 has 2)"},
		{"three", []string{"a", "b", "c", "a"}, "(a; b; c)"},
		{"many", []string{"a", "b", "c", "d", "e"}, "(a; b; c; …)"},
		{"many after long", []string{"a; b; c; d", "e"}, "(a; b; c; d; …)"},
	} {
		var f *refusal
		for _, d := range c.details {
			v := &sched.NodeVerdict{Reasons: []sched.Reason{{Reason: model.Reason{Kind: model.TopologySpread, Detail: d}}}}
			if f == nil {
				f = newRefusal(v)
			}
			f.add(v)
		}
		want := f.reasons[0].text + " " + c.want
		if got := f.reasons[0].shown(); got != want {
			t.Errorf("%s: %s, not %s", c.name, got, want)
		}
	}
}

// Which budgets are in the way is told to who may read them.
func TestBudgetsAreToldToWhoMayReadThem(t *testing.T) {
	v := &sched.NodeVerdict{Node: "n1", Preemption: budgets.Barred("team/web", 3, 2)}
	mine := func(ns string) bool { return ns == "mine" }
	all := func(string) bool { return true }
	for name, c := range map[string]struct {
		q    question
		want string
	}{
		"all":            {question{mayRead: all}, v.Preemption},
		"no pods":        {question{mayRead: mine}, "node(s) blocked by a PodDisruptionBudget"},
		"pods, and none": {question{mayRead: all, Question: Question{MayReadBudgets: mine}}, "node(s) blocked by a PodDisruptionBudget"},
		"budgets":        {question{mayRead: mine, Question: Question{MayReadBudgets: all}}, v.Preemption},
	} {
		if got := c.q.nodeVerdict(v, newNaming(&c.q)).Preemption; got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
