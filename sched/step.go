package sched

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

const (
	// maxPassedOver bounds the queue entries that one Step passes over because they are being decided already or their
	// failure is held back.
	maxPassedOver = 1 << 14
	// maxHeld and maxHeldNanos bound how many failures are held back, and for how long, before no new plan is made
	// until the others are settled.
	maxHeld      = 512
	maxHeldNanos = 200_000_000
)

// most bounds a plan: how many pods it decides about, and what it weighs.
type most struct{ decisions, weight int }

// full says whether the plan under way has reached its bound.
func (p *pass) full() bool {
	return p.plan.Decisions >= p.most.decisions || p.plan.Weight >= p.most.weight
}

// pass is one Step under way.
type pass struct {
	state   *fsm.View
	plan    *Plan
	preempt bool // the configuration allows preemption
	most    most

	passedOver int
	held       int
	// lowest is the lowest priority that this plan preempts for; see closes.
	lowest    int32
	preempted bool
	closed    bool

	reserving     *assumption // of the reservation that the plan makes or renews
	reserveBehind bool        // the look for one was not finished

	// evicted are the classes of the pods that this plan evicts; see overtakes.
	evicted []*model.Class
	// preemptors are the boards of classes that this plan evicts for and that have rules about other pods; see spoils.
	preemptors []*board
	// helpless are the boards of classes that failed in this plan and have rules about other pods; see helps.
	helpless []*board
}

// Step takes the next pods of the queue until the plan weighs so much, decides about each on the state as it will be if
// everything decided before holds, and returns the plan; nil when there is nothing to decide now, or when the step's
// work did not suffice (Behind). It is to be called again when the state changed, a plan was settled, or a backoff ended
// (fsm.View.NextBackoffUnixNano).
func (s *Scheduler) Step(nowUnixNano int64, weight int) *Plan {
	return s.decideNext(nowUnixNano, most{weight, weight})
}

func (s *Scheduler) decideNext(nowUnixNano int64, bound most) *Plan {
	s.meter.left = s.stepWork
	s.behind = false
	if s.seen.state == nil {
		s.seen = glimpse{state: s.state.View(), nowNano: nowUnixNano}
	}
	if s.lookUp() {
		if s.draining && len(s.plans) > 0 {
			s.lookAway()
			return nil
		}
		s.broken = true
		plan := s.makePlan(s.seen.state, s.seen.nowNano, bound)
		s.broken, s.spoilt = s.spoilt, false
		if plan != nil || !s.behind {
			s.lookAway()
		}
		return plan
	}
	s.behind = true
	return nil
}

// lookUp makes the view ready for decisions on the state that is looked at; false if that takes more work than there is.
func (s *Scheduler) lookUp() bool {
	if !s.follow() {
		return false
	}
	if s.seen.at == "" && !s.settleDisputes(s.seen.state, s.seen.nowNano) {
		return false
	}
	return !s.meter.out()
}

// lookAway ends what the step looks at: the next one takes the newest state.
func (s *Scheduler) lookAway() {
	s.show()
	s.seen = glimpse{}
}

func (s *Scheduler) makePlan(state *fsm.View, nowUnixNano int64, bound most) *Plan {
	s.draining = false
	s.step++
	s.sweep()
	s.stepStart = s.view.log.head()
	config := state.SchedulerConfig()
	s.how = preemptingOf(config)
	p := &pass{
		state:   state,
		plan:    &Plan{Command: &fsm.ApplyPlan{Revision: s.revision}},
		preempt: *config.Spec.Preemption.Enabled, most: bound,
	}
	if s.seen.at == "" {
		s.reserve(p, nowUnixNano)
	}
	if f := p.reserving; f != nil {
		s.decided(p, f)
	}
	s.tryAll(p, nowUnixNano)
	s.behind = s.behind || p.reserveBehind
	s.hold(p, nowUnixNano)
	if p.plan.Decisions == 0 && (len(s.plans) > 0 || s.behind || s.spoilt || !state.WorkPending()) {
		s.behind = s.behind || s.spoilt
		return nil // else an empty plan lets the state machine go on with waking
	}
	for _, f := range p.plan.assumptions {
		if !s.spoilt { // or it is done when the view is built anew
			s.markUnsettled(f)
		}
	}
	s.number(p.plan.Command, nowUnixNano)
	s.plans = append(s.plans, p.plan)
	return p.plan
}

// tryAll tries the pods of the queue, from where the step before left off.
func (s *Scheduler) tryAll(p *pass, now int64) {
	from := s.seen.at
	p.passedOver, p.held = s.seen.passedOver, s.seen.held
	if p.closed {
		return
	}
	p.state.Ready(now, func(e *fsm.QueueEntry) bool {
		if from != "" && e.UID != from {
			return true
		}
		from = ""
		if p.full() || p.passedOver+p.held >= maxPassedOver {
			return false
		}
		if s.meter.out() {
			s.behind = true
			s.stopAt(p, e)
			return false
		}
		if _, assumed := s.assumptions[e.UID]; assumed {
			p.passedOver++
		} else {
			s.try(p, e, now)
		}
		s.meter.take(workNode)
		if s.behind {
			s.stopAt(p, e)
		}
		return !p.closed && !s.behind
	})
}

// stopAt has the next step go on with an entry of the queue.
func (s *Scheduler) stopAt(p *pass, e *fsm.QueueEntry) {
	if s.seen.at != e.UID {
		s.seen.steps = 0
	}
	s.seen.at, s.seen.passedOver, s.seen.held = e.UID, p.passedOver, p.held
	s.seen.steps++
}

// number notes in a plan what it depends on beside the state, so that it can be decided again from the log (DecideAgain).
func (s *Scheduler) number(c *fsm.ApplyPlan, nowUnixNano int64) {
	s.made++
	c.Number, c.StepUnixNano = s.made, nowUnixNano
	for _, p := range s.plans {
		c.Over = append(c.Over, p.Command.Number)
	}
}

// hold decides whether failures have been held back for long enough that no more plans may be laid over the state until
// those under way are settled.
func (s *Scheduler) hold(p *pass, now int64) {
	if p.held == 0 {
		s.heldSince = 0
		return
	}
	if s.heldSince == 0 {
		s.heldSince = now
	}
	s.draining = p.held >= maxHeld || now-s.heldSince >= maxHeldNanos
}

// try decides about one pod, or sets it aside.
func (s *Scheduler) try(p *pass, e *fsm.QueueEntry, now int64) {
	said, is := s.isAside(e, now)
	if _, given := s.given[e.UID]; given {
		is = true
	} else if !is && s.seen.at == e.UID && s.seen.steps >= decisionSteps {
		said, is = fmt.Sprintf("the decision was not made in %d steps", s.seen.steps), true
		s.keepAside(e, now, said)
	} else if !is {
		said, is = s.attempt(p, e, now, func() { s.decide(p, e) })
	}
	if is {
		s.setAside(p, e, said)
	}
}

// maxLists is how many lists of volumes it is remembered of that they were charged.
const maxLists = 1 << 14

// chargeClaims charges what it takes to find out what a waiting pod's claims ask, each list of volumes once.
func (s *Scheduler) chargeClaims(pod *corev1.Pod, state *fsm.View) (units int) {
	if len(pod.Spec.Volumes) == 0 {
		return 0
	}
	if s.lists == nil || len(s.lists) > maxLists {
		s.lists = map[fsm.VolumeList]bool{}
	}
	units = state.ClaimsWork(pod, s.lists)
	s.meter.Spend(units * workClaims)
	return units
}

// decide finds a place for one pod.
func (s *Scheduler) decide(p *pass, e *fsm.QueueEntry) {
	c := e.Class()
	if pod, ok := p.state.Pods.Get(e.Key()); ok {
		if s.chargeClaims(pod, p.state) > 0 && s.meter.out() && s.seen.at != e.UID {
			s.behind = true // the next step begins with it
			return
		}
		c = p.state.EffectiveClass(c, pod) // TS12
	}
	start := hash64(string(e.UID))
	if c.ChoosesVolumes() && s.choosing() {
		p.held++ // what is left for it is known when the choice before is settled
		return
	}
	if !s.prepare(c) {
		return
	}
	own := s.hideOwn(e, c)
	var f *assumption
	if b := s.boardOf(c); !s.behind {
		s.meter.Spend(workDecided + b.openCost())
		var to place
		var ok bool
		if own != nil && b.fits(own.slot) {
			to, ok = place{own.slot, -1}, true // NM5: it is compared with none
			b.open(s.view)                     // counts the nodes that fit
		} else {
			to, ok = b.best(s.view, s.view.ring.start(start))
		}
		if ok {
			f = s.bind(p, e, b, to)
		} else {
			f = s.preemptOrFail(p, e, b, own)
		}
	}
	s.chargeView(0)
	if s.behind {
		return // what is hidden stays so until this is gone on with, or nothing would be as it was found
	}
	s.show()
	if own != nil && f != nil && f.kind == assumeBind {
		f.ends = append(f.ends, e.UID)
	}
	if f == nil {
		return
	}
	s.decided(p, f)
}

// decided counts a decision that the plan holds, and lays it over the view.
func (s *Scheduler) decided(p *pass, f *assumption) {
	f.step = s.step
	s.assume(f)
	p.plan.assumptions = append(p.plan.assumptions, f)
	p.plan.Decisions++
	p.plan.Weight += 1 + len(f.victims)
}

func (s *Scheduler) bind(p *pass, e *fsm.QueueEntry, b *board, to place) *assumption {
	if p.preempted && e.Priority > p.lowest {
		// A plan's bindings are applied before its preemptions. This pod may take the room of one of them (NM4 lets
		// it), so it has to come in a later plan.
		p.closed = true
		return nil
	}
	s.meter.Spend((len(p.helpless) + len(p.preemptors) + len(p.evicted)) * workTerm)
	if p.helps(e.Class()) || p.spoils(e.Class()) || p.overtakes(b) {
		p.closed = true
		return nil
	}
	d := fsm.BindDecision{Key: e.Key(), UID: string(e.UID), Node: s.view.nodes[to.slot].name, Feasible: b.fit,
		Score: b.scoreOf(to.slot)}
	if to.runnerUp >= 0 {
		d.RunnerUp = s.view.nodes[to.runnerUp].name
	}
	p.plan.Command.Bindings = append(p.plan.Command.Bindings, d)
	f := newAssumption(e, assumeBind, d.Node)
	f.chooses = b.class.ChoosesVolumes()
	return f
}

// overtakes says whether a rule of the class is about a pod that this plan evicts. Bindings are applied before
// preemptions: the pod was placed as if the victim were ending already (TS7), so it has to come in a later plan.
func (p *pass) overtakes(b *board) bool {
	return b.topo != nil && slices.ContainsFunc(p.evicted, b.topo.judge.Minds)
}

// spoils says whether a pod that comes to a node could break a rule of one that this plan evicts for: it would be there
// before the eviction is carried out, which then would be in vain.
func (p *pass) spoils(c *model.Class) bool {
	return slices.ContainsFunc(p.preemptors, func(b *board) bool { return b.topo.judge.Minds(c) })
}

// helps says whether a pod that comes to a node could help one that failed before it in this plan. A plan's bindings
// are applied before its failures: it has to come in a later plan, so that the failure is known by then, and its end
// noticed.
func (p *pass) helps(c *model.Class) bool {
	return slices.ContainsFunc(p.helpless, func(b *board) bool { return b.topo.judge.Welcomes(c) })
}

// troubles is helps for a pod that is to leave: an eviction, too, is applied before the plan's failures.
func (p *pass) troubles(c *model.Class) bool {
	return slices.ContainsFunc(p.helpless, func(b *board) bool { return b.topo.judge.Minds(c) })
}

// robs says whether a preemption ends the nomination of a pod that failed before it in this plan: in queue order a pod of lower priority
// may come first. A preemption is applied before the plan's failures, and who loses its nomination is tried again: the preemption has
// to come in a later plan, so that the failure is known by then.
func (s *Scheduler) robs(n *node, e *fsm.QueueEntry) bool {
	return slices.ContainsFunc(n.noms, func(nom *nomination) bool {
		f, decided := s.assumptions[nom.UID]
		return nom.Priority < e.Priority && decided && f.kind == assumeFail && f.step == s.step
	})
}

func newAssumption(e *fsm.QueueEntry, kind assumptionKind, node string) *assumption {
	return &assumption{uid: e.UID, key: e.Key(), class: e.Class(), priority: e.Priority, kind: kind, node: node,
		classes: []*model.Class{e.Class()}}
}

// preemptOrFail is what happens to a pod for which no node has room (PR1).
func (s *Scheduler) preemptOrFail(p *pass, e *fsm.QueueEntry, b *board, own *nomination) *assumption {
	c := b.class
	switch {
	case !p.preempt: // PC11
		return s.fail(p, e, b, attemptNoPreemption)
	case c.NeverPreempts: // PC12
		return s.fail(p, e, b, attemptNever)
	case own != nil && s.waitsForVictims(p.state, e, b, own): // PR3, T5
		return s.fail(p, e, b, attemptWaiting)
	}
	costs := s.costsOf(b)
	if s.behind {
		return nil
	}
	start := s.view.ring.start(hash64(string(e.UID)))
	slot, ok := costs.best(s.view, s.budgetsNow(), start)
	if s.behind = costs.behind; s.behind {
		return nil
	}
	if !ok {
		return s.fail(p, e, b, attemptHelpless)
	}
	if s.preemptionHangs(b) {
		p.held++ // nobody is evicted for room that may come back by itself
		return nil
	}
	alternatives := s.alternatives(costs, slot, start)
	if s.behind = costs.behind; s.behind {
		return nil
	}
	n := &s.view.nodes[slot]
	set := costs.problem.chooseVictims(n, s.budgetsNow())
	if slices.ContainsFunc(set.victims, func(v *pod) bool { return p.troubles(v.class) }) || s.robs(n, e) {
		p.closed = true
		return nil
	}
	f := newAssumption(e, assumePreempt, n.name)
	d := fsm.PreemptDecision{
		Key: e.Key(), UID: string(e.UID), Node: n.name,
		Diagnosis: s.diagnose(b, attemptPreempted), Alternatives: alternatives,
		Minimal: set.minimal && costs.minimal(slot),
	}
	if !d.Minimal {
		d.SearchLimit = s.how.searchLimit
	}
	for _, v := range slices.Concat(set.victims, set.waits) {
		planned := fsm.PlannedVictim{Key: v.key, UID: string(v.UID), ViolatesBudget: slices.Contains(set.violating, v)}
		d.Victims = append(d.Victims, planned)
		f.victims = append(f.victims, v.UID)
		f.classes = append(f.classes, v.class)
		if !slices.Contains(p.evicted, v.class) {
			p.evicted = append(p.evicted, v.class)
		}
	}
	p.plan.Command.Preemptions = append(p.plan.Command.Preemptions, d)
	if b.topo != nil && !slices.Contains(p.preemptors, b) {
		p.preemptors = append(p.preemptors, b)
	}
	if !p.preempted || e.Priority < p.lowest {
		p.preempted, p.lowest = true, e.Priority
	}
	for _, nom := range n.noms {
		if nom.Priority < e.Priority { // NM3
			f.ends = append(f.ends, nom.UID)
		}
	}
	// What ends a nomination makes room, and a plan's bindings are applied before it does: nothing later in this plan
	// may count on it.
	p.closed = p.closed || own != nil || len(f.ends) > 0
	return f
}

// waitsForVictims says whether the pod has to wait for pods that end because of a preemption on its nominated node
// (T5), or that its nomination waits for wherever and for whatever reason they end: it may not preempt again, unless
// the node can no longer take it at all. One for which room is only kept has not preempted yet.
func (s *Scheduler) waitsForVictims(state *fsm.View, e *fsm.QueueEntry, b *board, own *nomination) bool {
	n, c := &s.view.nodes[own.slot], b.class
	if own.Reserved || n.obj == nil || !b.failsOn(own.slot).Resolvable() {
		return false
	}
	if nom, ok := state.Nominations.Get(e.Key()); ok && nom.UID == e.UID && nom.Node == own.Node &&
		nom.Waits() {
		return true
	}
	for _, p := range n.pods {
		if p.Priority < c.Priority && (p.evicting > 0 || p.obj != nil && model.PreemptionVictim(p.obj)) {
			return true
		}
	}
	return false
}

// alternatives sums up the search for the record.
func (s *Scheduler) alternatives(e *evictions, chosen, start int32) *berthv1.PreemptionAlternatives {
	a := &berthv1.PreemptionAlternatives{Candidates: e.candidates, NodesConsidered: int32(s.view.live)}
	if next, ok := e.runnerUp(s.view, s.budgetsNow(), chosen, start); ok {
		a.RunnerUp = s.view.nodes[next].name
		a.DecidedBy = e.entries[chosen].cost.DecidedBy(&e.entries[next].cost)
	}
	return a
}

// fail parks the pod, unless the failure hangs on decisions of earlier plans that may yet be refused: then the pod
// stays where it is in the queue and is looked at again when they are settled. So no pod is ever parked for a reason
// that never came true, and nothing has to wake it.
func (s *Scheduler) fail(p *pass, e *fsm.QueueEntry, b *board, how attempt) *assumption {
	if s.failureHangs(b, p.preempt) || how == attemptHelpless && s.spendingUnsettled(s.costs[b.key]) {
		p.held++
		return nil
	}
	if lacks := s.lacks(); lacks != "" && how != attemptWaiting {
		return s.failAside(p, e, lacks)
	}
	d := s.diagnose(b, how)
	f := newAssumption(e, assumeFail, "")
	if b.topo != nil && !slices.Contains(p.helpless, b) {
		p.helpless = append(p.helpless, b)
	}
	// PR11: a pod that not even preemption can help loses its nomination. So does one that may not preempt.
	// What is kept for one goes on being kept.
	ends := how != attemptWaiting && !s.reservedFor(e)
	if ends && s.ownBase(e) {
		f.ends = append(f.ends, e.UID)
		p.closed = true
	}
	fails := p.plan.Command.Failures
	ref := fsm.PodRef{Key: e.Key(), UID: string(e.UID)}
	if n := len(fails); n > 0 && fails[n-1].Diagnosis == d && fails[n-1].SetAside == nil &&
		fails[n-1].ClearNomination == ends {
		fails[n-1].Pods = append(fails[n-1].Pods, ref)
	} else {
		p.plan.Command.Failures = append(fails, fsm.FailDecision{Pods: []fsm.PodRef{ref}, Diagnosis: d,
			ClearNomination: ends})
	}
	return f
}

// reservedFor says whether the state keeps room for the pod.
func (s *Scheduler) reservedFor(e *fsm.QueueEntry) bool {
	h, ok := s.view.noms[e.UID]
	return ok && h.base != nil && h.base.Reserved
}

// ownBase says whether the state holds a nomination of the pod.
func (s *Scheduler) ownBase(e *fsm.QueueEntry) bool {
	h, ok := s.view.noms[e.UID]
	return ok && h.base != nil
}
