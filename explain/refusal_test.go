package explain

import (
	"testing"

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
