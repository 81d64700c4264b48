package sched

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-dev/berth/docs"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// TestTheTableOfWhatTheSchedulerHolds: what docs/limits.md says that the scheduler holds is bounded as it says.
func TestTheTableOfWhatTheSchedulerHolds(t *testing.T) {
	docs.Hold(t, "../docs/limits.md", "## What the scheduler holds", map[string]func(*testing.T, docs.Row){
		// That they keep to it is TestBoardsHoldWhatTheySay.
		"what is remembered of classes on nodes, and of what evictions cost": func(t *testing.T, r docs.Row) {
			if said := r.Numbers(t, 1)[0]; said != maxBytes || newHarness().sched.limit != maxBytes {
				t.Errorf("the row says %d, and it is %d", said, maxBytes)
			}
		},
		"the diagnosis of a class that waits": func(t *testing.T, r docs.Row) {
			n := r.Numbers(t, 3)
			reasonsAreBounded(t, int(n[0]))
			textsAreBounded(t, int(n[1]))
			namesAreBounded(t, int(n[2]))
		},
	})
}

// long is a name as long as one may be.
func long(i int) string { return fmt.Sprintf("%0250d", i) }

func reasonsAreBounded(t *testing.T, bound int) {
	t.Helper()
	all := []fsm.ReasonCount{{Kind: model.ExistingAntiAffinity, Text: "kept away", Nodes: 1}}
	for i := range 1000 {
		all = append(all, fsm.ReasonCount{Kind: model.InsufficientResource, Resource: long(i), Text: long(i), Nodes: int32(i)})
	}
	left := bounded(all)
	held := 0
	for i := range left {
		held += (&fsm.Diagnosis{Reasons: left[i : i+1]}).Bytes()
	}
	last := (&fsm.Diagnosis{Reasons: all[1:2]}).Bytes()
	if held < bound || held > bound+last || left[0].Kind != model.ExistingAntiAffinity || left[len(left)-1].Nodes != 999 {
		t.Errorf("%d reasons of %d bytes are left, want about %d", len(left), held, bound)
	}
	if few := bounded(all[:5]); len(few) != 5 || &few[0] == &all[0] {
		t.Errorf("of 5 reasons %d are left", len(few))
	}
}

func textsAreBounded(t *testing.T, bound int) {
	t.Helper()
	byText := map[string]int32{"few": 1, "most": 5000}
	if got := unavailable(5001, byText); got != "0/5001 nodes are available: 1 few, 5000 most." {
		t.Error(got)
	}
	for i := range 1000 {
		byText[long(i)] = 2
	}
	got := unavailable(5001, byText)
	if len(got) > bound+100 || len(got) < bound/2 || !strings.Contains(got, "5000 most, and ") || !strings.HasSuffix(got, " reasons more.") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}

func namesAreBounded(t *testing.T, bound int) {
	t.Helper()
	var names []string
	for i := range 1000 {
		names = append(names, long(i))
	}
	if left := firstNames(names); len(left) != bound/len(names[0]) {
		t.Errorf("%d names are left", len(left))
	}
	if left := firstNames(names[:3]); len(left) != 3 {
		t.Errorf("of 3 names %d are left", len(left))
	}
}
