package fsm

// planApplied is a plan that is being carried out, and what has become of it so far.
type planApplied struct {
	tx     *Tx
	plan   *ApplyPlan
	book   *book
	undone *undone
	out    PlanResult
}

func (a *planApplied) reservations() {
	for i := range a.plan.Reservations {
		d := &a.plan.Reservations[i]
		before, _ := a.tx.view.Nominations.Get(d.Key)
		why := a.decide(d.Key, 1, func() string { return a.tx.applyReservation(d) })
		if why != "" {
			a.undone.reservation(a.tx, d)
		}
		a.settle(d.Key, d.UID, why)
		a.book.reservation(d, before, why)
	}
}

func (a *planApplied) bindings() {
	for i := range a.plan.Bindings {
		d := &a.plan.Bindings[i]
		why := a.decide(d.Key, 1, func() string { return a.tx.applyBinding(d) })
		if why != "" {
			a.undone.binding(a.tx, d)
		}
		a.settle(d.Key, d.UID, why)
		a.book.binding(d, why)
	}
}

func (a *planApplied) preemptions() {
	for i := range a.plan.Preemptions {
		d := &a.plan.Preemptions[i]
		evicted := 0
		why := a.decide(d.Key, 1+len(d.Victims), func() (why string) {
			if a.undone.spares(a.tx, d) {
				return countedOnRefused
			}
			evicted, why = a.tx.applyPreemption(d, a.plan.Revision)
			return why
		})
		if why != "" {
			a.undone.preemption(a.tx, d)
		} else {
			a.out.Evicted = append(a.out.Evicted, evicted)
		}
		a.settle(d.Key, d.UID, why)
		a.book.preemption(d, why)
	}
}

func (a *planApplied) failures() {
	for i := range a.plan.Failures {
		judge := failureJudge{decidedAt: a.plan.Revision, d: &a.plan.Failures[i], undone: a.undone}
		for _, ref := range a.plan.Failures[i].Pods {
			why := a.decide(ref.Key, 1, func() string { return judge.apply(a.tx, ref) })
			a.settle(ref.Key, ref.UID, why)
			if why == "" {
				a.book.failure(judge.d, ref)
			}
		}
	}
}

// decide carries out a decision that is about so many things, or says why not.
func (a *planApplied) decide(key string, weight int, f func() string) (why string) {
	tx := a.tx
	if a.out.Work > MaxPlanWork || tx.claimsWait(key, a.out.Work) {
		return deferred
	}
	before := tx.billed()
	tx.view.billUnits(costDecision)
	tx.view.cache.work += costDecision
	why = tx.decision(key, f)
	a.out.Weight, a.out.Work = a.out.Weight+weight, a.out.Work+int64(tx.billed()-before)
	return why
}

// settle counts a refusal against its pod, unless that has nothing to do with it, and tells of it.
func (a *planApplied) settle(key, uid, why string) {
	switch why {
	case "":
		return
	case deferred, countedOnRefused:
	case stillCounting:
		a.tx.awaitCount(PodRef{key, uid})
	default:
		a.tx.setBack(PodRef{key, uid}, why)
	}
	again := why == deferred || why == stillCounting || why == countedOnRefused
	a.out.Refused = append(a.out.Refused, PlanRefusal{Key: key, UID: uid, Reason: why, Deferred: again})
}

// deferred is why a decision was not looked at.
const deferred = "the decisions before it in the plan cost as much as one plan may; it is made again"

// countedOnRefused is why a preemption or a failure was not believed.
const countedOnRefused = "an earlier decision of the plan was refused"

// decision carries out one decision of a plan, or says why not. One that
// panics takes none of the others with it.
func (tx *Tx) decision(key string, f func() string) string {
	var why string
	if !tx.part(key, func() { why = f() }) {
		why = failedPart
	}
	return why
}
