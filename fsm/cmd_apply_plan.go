package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
)

// ApplyPlan carries out what the scheduler decided on the state at Revision.
// Every decision is checked again on the state as it is now and done whole or
// refused whole, each on its own (see PlanResult): so no mistake of a
// scheduler and no change of leader can overcommit a node, bind or evict a pod
// twice, or evict one for a pod that is not nominated.
//
// Reservations come first, then bindings, then preemptions, then failures. A
// failure counts on all of the others: if one of them was refused, and that
// could help the pod that failed, the failure is not recorded, and the pod is
// tried again. So is one for which others were to go, if nobody may have to now.
//
// A plan may cost so much (MaxPlanWork); decisions beyond that are deferred.
//
// A refusal costs its pod something: from the second in a row on the pod backs
// off, so whatever is wrong, there is an entry a second about it at most.
//
// What was decided, and what became of it, goes into the ledger (PlanRecord).
//
// Refuses nothing as a whole.
type ApplyPlan struct {
	Revision int64 `msgpack:"revision"`
	// Number counts the plans of one leadership from 1. Over are the numbers of
	// those that this one was laid over, their outcome not being known yet, and
	// StepUnixNano is the time of the step that made it. With Revision they are
	// all that a plan depends on: a replay of the log can decide it again. They
	// change nothing here.
	Number       int64   `msgpack:"number,omitempty"`
	Over         []int64 `msgpack:"over,omitempty"`
	StepUnixNano int64   `msgpack:"step_unix_nano,omitempty"`

	Reservations []ReserveDecision `msgpack:"reservations,omitempty"`

	Bindings    []BindDecision    `msgpack:"bindings,omitempty"`
	Preemptions []PreemptDecision `msgpack:"preemptions,omitempty"`
	Failures    []FailDecision    `msgpack:"failures,omitempty"`
}

// Decisions is how many pods a plan decides about.
func (c *ApplyPlan) Decisions() int {
	n := len(c.Reservations) + len(c.Bindings) + len(c.Preemptions)
	for i := range c.Failures {
		n += len(c.Failures[i].Pods)
	}
	return n
}

// BindDecision gives a pod a node.
type BindDecision struct {
	Key  string `msgpack:"key"`
	UID  string `msgpack:"uid"`
	Node string `msgpack:"node"`
	// Feasible is how many nodes could have taken the pod, Score what the
	// chosen one got, and RunnerUp the node that came next in the same order. It
	// is "" where there was no other, and for a pod that takes the node it is
	// nominated to: that one is compared with no other (NM5). They are for the
	// ledger only.
	Feasible int32  `msgpack:"feasible,omitempty"`
	Score    int64  `msgpack:"score,omitempty"`
	RunnerUp string `msgpack:"runner_up,omitempty"`
}

// PreemptDecision nominates a pod to a node and evicts the victims there.
type PreemptDecision struct {
	Key     string          `msgpack:"key"`
	UID     string          `msgpack:"uid"`
	Node    string          `msgpack:"node"`
	Victims []PlannedVictim `msgpack:"victims"`
	// Diagnosis is why no node had room as things are.
	Diagnosis    *Diagnosis                      `msgpack:"diagnosis,omitempty"`
	Alternatives *berthv1.PreemptionAlternatives `msgpack:"alternatives,omitempty"`
	// Minimal: it was proven that no other victims, on any node, cost less.
	// SearchLimit is the limit that the search for such a proof reached.
	Minimal     bool  `msgpack:"minimal,omitempty"`
	SearchLimit int32 `msgpack:"search_limit,omitempty"`
}

// PlannedVictim is a pod to be evicted.
type PlannedVictim struct {
	Key            string `msgpack:"key"`
	UID            string `msgpack:"uid"`
	ViolatesBudget bool   `msgpack:"violates_budget,omitempty"`
}

// FailDecision parks pods for which no place was found, all for the same
// reasons.
type FailDecision struct {
	Pods      []PodRef   `msgpack:"pods"`
	Diagnosis *Diagnosis `msgpack:"diagnosis"`
	// Error: the attempt itself failed; the pods are tried again after their
	// backoff, whatever happens.
	Error bool `msgpack:"error,omitempty"`
	// SetAside: deciding about the pods went wrong in the scheduler itself. They
	// are left alone for a backoff of their own (see Tx.setAside), whatever
	// happens; Diagnosis may be nil, and says nothing.
	SetAside *SetAside `msgpack:"set_aside,omitempty"`
	// ClearNomination: not even preemption would help, so a pod that is still
	// nominated loses its nomination (PR11).
	ClearNomination bool `msgpack:"clear_nomination,omitempty"`
}

// PlanResult tells which decisions of a plan were refused, and of each preemption
// that was carried out how many pods it evicted, those not counted that were
// ending already.
type PlanResult struct {
	Refused []PlanRefusal `msgpack:"refused,omitempty"`
	Evicted []int         `msgpack:"evicted,omitempty"`
	// Weight is how many things those decisions were about that were looked at
	// (Weight), Work what that has cost as every server counts it, the waking of
	// others left out. The server that applied the plan knows them, nobody else.
	Weight int   `msgpack:"-"`
	Work   int64 `msgpack:"-"`
}

// PlanRefusal is a decision that was not carried out, and why. What it was
// about is as it was.
type PlanRefusal struct {
	Key    string `msgpack:"key"`
	UID    string `msgpack:"uid"`
	Reason string `msgpack:"reason"`
	// Deferred: nothing is wrong with the decision, but those before it cost as
	// much as one plan may, or one of them was refused, or it has to be counted first
	// whom the pod's rules are about. It is to be made again.
	Deferred bool `msgpack:"deferred,omitempty"`
}

// Apply implements Command.
func (c *ApplyPlan) Apply(tx *Tx) Result {
	tx.bill.claimsWait = false
	a := &planApplied{tx: tx, plan: c, book: tx.openBook(c), undone: new(undone)}
	a.reservations()
	a.bindings()
	a.preemptions()
	tx.flushWakes() // what the plan did so far, its failures know of
	a.failures()
	a.book.close()
	return Result{Plan: &a.out}
}

// schedulable returns the pod and its queue entry if a decision about it can
// still be carried out, or says why not.
func (tx *Tx) schedulable(ref PodRef) (*corev1.Pod, *QueueEntry, string) {
	pod, ok := tx.findPod(ref)
	switch {
	case !ok:
		return nil, nil, "the pod is gone"
	case pod.Spec.NodeName != "":
		return nil, nil, "the pod is bound to " + pod.Spec.NodeName
	}
	e, ok := tx.view.Queue.Get(ref.Key)
	switch {
	case !ok:
		return nil, nil, "the pod is not waiting"
	case e.State == berthv1.QueueGated:
		return nil, nil, "the pod is gated"
	case tx.view.leaving() && tx.view.profileFor(pod.Spec.SchedulerName) == nil:
		return nil, nil, noProfile(pod.Spec.SchedulerName)
	}
	return pod, e, ""
}

func (tx *Tx) applyBinding(d *BindDecision) string {
	pod, e, why := tx.schedulable(PodRef{d.Key, d.UID})
	if why != "" {
		return why
	}
	node, ok := tx.view.Nodes.Get(d.Node)
	if !ok {
		return "node " + d.Node + " is gone"
	}
	tx.view.billNominees(d.Node)
	u := tx.view.usage.Taken(d.Node, e.Priority, e.Class().RunsAtMostSeconds, d.Key)
	offer := tx.view.usage.Offer(d.Node)
	rules := tx.view.ruledClass(e.Class(), pod)
	tx.view.billVolumes(rules)
	tx.view.billUnits(tx.view.askCost(rules, node))
	if !rules.fits(node, offer, &u) {
		return explain(d.Node, rules.check(node, offer, &u))
	}
	if !tx.countFor(rules, pod) {
		return stillCounting
	}
	if reasons := tx.view.barredFrom(rules, d.Node, d.Key, nil); len(reasons) > 0 {
		return explain(d.Node, reasons)
	}
	if why := tx.bindClaims(pod, node, rules.class); why != "" {
		return why
	}
	tx.bind(d.Key, pod, d.Node)
	return ""
}
