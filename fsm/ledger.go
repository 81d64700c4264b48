package fsm

import (
	"math"

	"k8s.io/apimachinery/pkg/types"
)

// book takes down what becomes of a plan's decisions while they are applied.
//
// A failure that was refused is left out: it changed nothing, and its pod is
// tried again at once.
type book struct {
	tx     *Tx
	record PlanRecord
}

func (tx *Tx) openBook(c *ApplyPlan) *book {
	v := tx.view
	return &book{tx: tx, record: PlanRecord{
		Index: v.Index(), Term: v.Term(), DecidedAtRevision: c.Revision, StartRevision: v.Revision(),
		TimeUnixNano: v.TimeUnixNano(), Decisions: make([]Decision, 0, c.Decisions()),
	}}
}

func (b *book) write(d Decision) {
	d.Revision = b.tx.view.Revision()
	b.record.Decisions = append(b.record.Decisions, d)
}

// reservation takes down one that was made, moved to another node or refused,
// with what the pod was waiting for. before is the nomination that the pod had:
// to go on keeping the same node decides nothing new.
func (b *book) reservation(d *ReserveDecision, before *Nomination, refused string) {
	if refused == "" && before != nil && before.Node == d.Node {
		return
	}
	out := Decision{Kind: DecisionReserved, Key: d.Key, UID: d.UID, Node: d.Node, Refused: refused}
	if e, ok := b.tx.view.Queue.Get(d.Key); ok && string(e.UID) == d.UID {
		out.Diagnosis = b.diagnosis(e.Diagnosis)
	}
	b.write(out)
}

func (b *book) binding(d *BindDecision, refused string) {
	b.write(Decision{
		Kind: DecisionBound, Key: d.Key, UID: d.UID, Node: d.Node, Refused: refused,
		Feasible: d.Feasible, Score: d.Score, RunnerUp: d.RunnerUp,
	})
}

func (b *book) preemption(d *PreemptDecision, refused string) {
	out := Decision{
		Kind: DecisionNominated, Key: d.Key, UID: d.UID, Node: d.Node, Refused: refused,
		Diagnosis: b.diagnosis(d.Diagnosis),
	}
	if n, ok := b.tx.view.Nominations.Get(d.Key); ok && refused == "" {
		out.Preemption = n.Preemption
	}
	b.write(out)
}

func (b *book) failure(d *FailDecision, ref PodRef) {
	out := Decision{Kind: DecisionUnschedulable, Key: ref.Key, UID: ref.UID, Error: d.Error || d.SetAside != nil}
	if d.SetAside != nil {
		out.Diagnosis = b.diagnosis(&Diagnosis{Message: d.SetAside.Told()})
	} else {
		out.Diagnosis = b.diagnosis(d.Diagnosis)
	}
	b.write(out)
}

// diagnosis gives a diagnosis its place in the record. Those who share one
// follow each other. Whether two are the same is told by what they say: which
// of them are one in memory is not the same on every server.
func (b *book) diagnosis(d *Diagnosis) int32 {
	all := b.record.Diagnoses
	switch {
	case d == nil:
		return 0
	case len(all) == 0 || !all[len(all)-1].Equal(d):
		b.record.Diagnoses = append(all, d)
	}
	return int32(len(b.record.Diagnoses))
}

// close puts the plan into the ledger and lets the oldest go that are too many.
func (b *book) close() {
	v := b.tx.view
	r := &b.record
	if len(r.Decisions) == 0 {
		return
	}
	if _, last, ok := v.Decisions.Max(); ok {
		r.Before = last.after()
	}
	put(b.tx, v.Decisions, decisionsKey(r.Before), r)
	for n := 0; n < maxTrimmed; n++ {
		key, oldest, _ := v.Decisions.Min()
		tooMuch := v.Version() >= SinceRememberedBytes && v.remembered.decisions > maxDecisionBytes
		if oldest == r || r.after()-oldest.Before <= maxDecisions && !tooMuch {
			return
		}
		remove(b.tx, v.Decisions, key)
	}
}

// LedgerReach is the revision from which on the ledger tells of every
// decision; 0 if nothing was ever forgotten.
func (v *View) LedgerReach() int64 {
	if _, oldest, ok := v.Decisions.Min(); ok && oldest.Before > 0 {
		return oldest.StartRevision + 1
	}
	return 0
}

// DecisionsAbout calls f for what the ledger holds about a pod, newest first,
// up to the plans applied at a revision (0: all), until f returns false. An
// empty UID means every pod that had the key. It walks the ledger.
func (v *View) DecisionsAbout(key string, uid types.UID, at int64, f func(r *PlanRecord, d *Decision) bool) {
	if at == 0 {
		at = math.MaxInt64
	}
	v.Decisions.Reverse(func(_ string, r *PlanRecord) bool {
		if r.StartRevision >= at {
			return true
		}
		for i := len(r.Decisions) - 1; i >= 0; i-- {
			d := &r.Decisions[i]
			if d.Key == key && (uid == "" || d.UID == string(uid)) && d.Revision <= at && !f(r, d) {
				return false
			}
		}
		return true
	})
}
