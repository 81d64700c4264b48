package fsm

import (
	"fmt"

	"github.com/berth-dev/berth/codec"
)

// maxDecisions is how many decisions the ledger holds, the oldest going first,
// and maxDecisionBytes what they may hold with their diagnoses.
// Plans go as a whole, so that one plan may stand above the bound.
const (
	maxDecisions     = 1 << 15
	maxDecisionBytes = 64 << 20
)

// PlanRecord is what the ledger keeps of one plan: what was decided about each
// pod, and what became of it. It must not be changed.
type PlanRecord struct {
	// Before is the number of decisions that were ever recorded before these;
	// the row's key.
	Before int64 `msgpack:"before"`
	// Index and Term are those of the plan's entry.
	Index uint64 `msgpack:"index"`
	Term  uint64 `msgpack:"term"`
	// DecidedAtRevision is the revision that the scheduler looked at.
	DecidedAtRevision int64 `msgpack:"decided_at_revision"`
	// StartRevision is the state's revision before the plan was applied.
	StartRevision int64 `msgpack:"start_revision"`
	// TimeUnixNano is the state's time when it was.
	TimeUnixNano int64      `msgpack:"time_unix_nano"`
	Decisions    []Decision `msgpack:"decisions"`
	// Diagnoses are what the decisions point at: a diagnosis stands here once,
	// however many pods it is about.
	Diagnoses []*Diagnosis `msgpack:"diagnoses,omitempty"`
}

// DecisionKind says what was decided about a pod.
type DecisionKind uint8

// The kinds are stored: their numbers must not change.
const (
	DecisionBound DecisionKind = iota + 1
	DecisionNominated
	DecisionUnschedulable
	DecisionReserved
)

// String is the kind in the words of the API.
func (k DecisionKind) String() string {
	switch k {
	case DecisionBound:
		return "Bound"
	case DecisionNominated:
		return "Nominated"
	case DecisionUnschedulable:
		return "Unschedulable"
	case DecisionReserved:
		return "Reserved"
	}
	return fmt.Sprintf("Unknown(%d)", uint8(k))
}

// Decision is one decision of a plan.
type Decision struct {
	Kind DecisionKind `msgpack:"kind"`
	Key  string       `msgpack:"key"`
	UID  string       `msgpack:"uid"`
	// Revision is the state's revision when the decision had been carried out,
	// or refused.
	Revision int64 `msgpack:"revision"`
	// Refused says why it was not carried out; "" if it was.
	Refused string `msgpack:"refused,omitempty"`
	Node    string `msgpack:"node,omitempty"`
	// Feasible, Score and RunnerUp tell of a binding what BindDecision says.
	Feasible int32  `msgpack:"feasible,omitempty"`
	Score    int64  `msgpack:"score,omitempty"`
	RunnerUp string `msgpack:"runner_up,omitempty"`
	// Preemption is the key of the record of a preemption.
	Preemption string `msgpack:"preemption,omitempty"`
	// Diagnosis is the place in the plan's Diagnoses, counted from 1; 0: none.
	Diagnosis int32 `msgpack:"diagnosis,omitempty"`
	// Error: the attempt itself failed.
	Error bool `msgpack:"error,omitempty"`
}

// Why is the diagnosis of one of the plan's decisions, or nil.
func (r *PlanRecord) Why(d *Decision) *Diagnosis {
	if d.Diagnosis < 1 || int(d.Diagnosis) > len(r.Diagnoses) {
		return nil
	}
	return r.Diagnoses[d.Diagnosis-1]
}

// after is the number of decisions that were ever recorded up to these.
func (r *PlanRecord) after() int64 { return r.Before + int64(len(r.Decisions)) }

func decisionsKey(before int64) string { return fmt.Sprintf("%016x", before) }

// The ledger is bookkeeping: nobody watches it, and a decision has made its
// revisions already.
var decisionTable = &tableDef[*PlanRecord]{
	Name:      "decisions",
	Canonical: codec.Canonical[*PlanRecord](codec.Msgpack),
	Marshal:   packRow[PlanRecord],
	Unmarshal: unpackRow[PlanRecord],
	Index: func(v *live, _ string, old, now *PlanRecord, hadOld, hasNow bool) {
		if hadOld {
			v.remembered.decisions -= old.bytes()
		}
		if hasNow {
			v.remembered.decisions += now.bytes()
		}
	},
	Complete: func(v *live, _ string, r *PlanRecord) error {
		for i, d := range r.Diagnoses {
			r.Diagnoses[i] = v.cache.diagnosis(d)
		}
		return nil
	},
}
