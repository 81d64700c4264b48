package fsm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// What wakes a waiting pod (QU8, ours) follows from rows: when a command is
// done, its changes are walked once, and one function a table says what the old
// and the new row mean for those who wait (wake_rows.go). Nothing relies on a
// command's remembering somebody, on what a pod was told, or on a periodic
// flush (QU6).
//
// Waiting pods stand in indexes under what their class asks (package queue):
// amounts, and the places of pods that its rules are about. A node that got
// better, or on which room came free, is looked at once a command
// (wake_nodes.go); a pod that came, left, began to leave or changed looks up the
// groups whose rules it matches; what may help anybody of a kind is swept. As
// many pods of a group are woken as could find room, first ones first. Whenever
// a pod that was to be tried finds a place or goes away, the next of its group
// is woken; so a group goes on for as long as its pods find places.

// flushWakes walks the changes since the last time, and wakes those whom they
// can have helped. It ends every command.
func (tx *Tx) flushWakes() {
	tx.wakeByChanges()
	tx.goOnWaking()
	tx.walked = len(tx.Changes()) // who is woken helps nobody
}

// wakeAll wakes whom the changes of a command can have helped.
func (tx *Tx) wakeAll(c *queue.Changes) {
	for _, group := range c.Passed {
		tx.wakeNext(group)
	}
	slices.Sort(c.Placed)
	for _, group := range slices.Compact(c.Placed) {
		tx.wakeNominees(group)
	}
	tx.wakeSpread(c.Selectors)
	tx.wakeClaims(c)
	woken := tx.wakeBesides(c)
	for i := range c.Nodes {
		tx.lookAt(&c.Nodes[i], woken)
	}
	tx.sweep(&c.Scope)
}

// wake makes a waiting pod ready, or lets it finish its backoff first.
func (tx *Tx) wake(e *QueueEntry) {
	tx.work.Wake()
	if tx.guardsApart() {
		tx.part(apartPrefix+"wake "+e.Key(), func() { tx.wakeNow(e) })
	} else {
		tx.wakeNow(e)
	}
}

func (tx *Tx) wakeNow(e *QueueEntry) {
	put(tx, tx.view.Queue, e.Key(), e.Woken(tx.view.TimeUnixNano()))
}

// wakeNext wakes the first of a group that waits for a change.
func (tx *Tx) wakeNext(group string) {
	if e, ok := tx.view.queue.First(group); ok {
		tx.wake(e)
	}
}

// wakeNominees wakes those of a group that wait for their victims: each may
// find a place elsewhere for which nobody has to go (NM6).
func (tx *Tx) wakeNominees(group string) {
	for _, e := range tx.view.queue.Nominees(group) {
		tx.wake(e)
	}
}

// wakeWaiting wakes the first of a group that waits for a change, and those
// that wait for their victims: what happened has nothing to do with any one
// node, so that nobody can say which of them it helps.
func (tx *Tx) wakeWaiting(group string) {
	tx.wakeNext(group)
	tx.wakeNominees(group)
}

// wakeBesides wakes whom the changes of pods can have helped, one of each group,
// and remembers them for those who are being decided.
func (tx *Tx) wakeBesides(c *queue.Changes) (woken map[string]bool) {
	v := tx.view
	came := int64(0)
	marks := map[queue.PodChange]keyedMark{} // what is made of pods of one class, on whatever nodes
	for _, p := range c.Pods {
		of := queue.PodChange{How: p.How, Pod: p.Pod}
		m, known := marks[of]
		if !known {
			mark := queue.MarkOf(p)
			m = keyedMark{guard: mark.Guard, mark: mark.Bounded()}
			m.key = m.mark.Key()
			marks[of] = m
		}
		if m.guard || v.concernedWithOthers() {
			tx.putMarkAt(m.key, m.mark)
		}
		if p.How == model.PodCame {
			came++
		}
	}
	if len(c.Pods) == 0 || !v.queue.HasRuledGroups() {
		return nil
	}
	woken = map[string]bool{}
	for _, p := range c.Pods {
		if tx.work.Over() {
			c.Scope.Ruled = true
			return woken
		}
		for _, g := range v.queue.Concerned(&tx.work, p) {
			if tx.work.Over() { // each may cost much
				c.Scope.Ruled = true
				return woken
			}
			if !woken[g.Key] && v.queue.Helped(v, &tx.work, &g, p, came, v.Version() >= SinceNothingOlder) {
				woken[g.Key] = true
				tx.wakeWaiting(g.Key)
			}
		}
	}
	return woken
}

// keyedMark is a mark and where it is kept; guard as before it was bounded.
type keyedMark struct {
	guard bool
	key   string
	mark  *queue.PodMark
}

// wakeSpread wakes one of each group that default constraints spread, and whose
// constraints the changes of selectors can have changed.
func (tx *Tx) wakeSpread(changes []queue.SelectorChange) {
	if len(changes) == 0 {
		return
	}
	tx.putMark(&queue.PodMark{Defaults: true})
	for _, c := range changes {
		for _, group := range tx.view.queue.Spread(&tx.work, c) {
			tx.wakeWaiting(group)
		}
	}
}

// ownerChanged follows a change of the workload that a waiting pod is of.
func (tx *Tx) ownerChanged(pod *corev1.Pod) {
	key := PodKey(pod.Namespace, pod.Name)
	e, ok := tx.view.Queue.Get(key)
	if !ok || len(e.Class().Spread) > 0 || !tx.view.hardDefaults() {
		return
	}
	tx.lookAgain(e, e.State == berthv1.QueueUnschedulable || e.State == berthv1.QueueNominated && tx.view.Version() >= SinceNothingOlder)
}

// lookAgain follows a change of what a pod that is no other by its class is judged by: if it waits it is woken, and a decision that is
// under way is about what it was.
func (tx *Tx) lookAgain(e *QueueEntry, waits bool) {
	if waits {
		tx.wake(e)
		return
	}
	again := *e
	put(tx, tx.view.Queue, e.Key(), &again)
}

// sweep wakes one of each group that is meant, or as many as the entry has time
// for.
func (tx *Tx) sweep(s *queue.Scope) {
	if s.None() {
		return
	}
	v := tx.view
	if s.Domains() && v.concernedWithOthers() {
		tx.putMark(&queue.PodMark{Domains: true})
	}
	if s.Budgets {
		tx.putMark(queue.MarkOfBudgets(s))
	}
	if !v.queue.HasGroups() {
		return
	}
	from := ""
	if p, ok := v.pending.Get(queue.PendingSweep); ok && p.Scope != nil {
		s.Add(p.Scope)
		from = tx.goesOn(p)
	}
	tx.sweepFrom(s, from, from != "")
}

// SinceRounds is the LogVersion from which on what is pending keeps its place when something new is meant, and begins once
// more at its end; before, it began anew at once, and where something was new in every entry the last ones' turn never came.
const SinceRounds = 26

// goesOn is where something that is pending goes on when more is meant.
func (tx *Tx) goesOn(p *queue.Pending) (from string) {
	if tx.view.Version() < SinceRounds {
		return ""
	}
	return p.From
}

func (tx *Tx) sweepFrom(s *queue.Scope, from string, again bool) {
	gains := tx.gainsBy(s.Victims)
	tx.round(queue.PendingSweep, s, from, again, func(from string) (next string) {
		meant, next := tx.view.queue.Sweep(tx.view, &tx.work, s, from, gains)
		for _, m := range meant {
			tx.wakeNext(m.Group)
			if m.Nominees {
				tx.wakeNominees(m.Group)
			}
		}
		return next
	})
}

// round does what is pending from a key on, and once more from the beginning if that is asked for. It notes where later
// entries go on.
func (tx *Tx) round(key string, s *queue.Scope, from string, again bool, do func(from string) (next string)) {
	next := do(from)
	if next == "" && again {
		again = false
		next = do("")
	}
	tx.remember(key, s, next, again)
}

// remember notes where to go on with what is pending, or that nothing is left
// to do.
func (tx *Tx) remember(key string, s *queue.Scope, next string, again bool) {
	switch pending := tx.view.pending; {
	case next != "":
		put(tx, pending, key, &queue.Pending{Scope: s, From: next, Again: again})
	case pending.Len() > 0:
		remove(tx, pending, key)
	}
}

// goOnWaking does what earlier entries had no time for, for as long as this one
// has.
func (tx *Tx) goOnWaking() {
	v := tx.view
	if v.pending.Len() == 0 {
		return
	}
	if v.Version() >= SinceRounds {
		tx.work.Grant()
	}
	if tx.work.Over() {
		return
	}
	if p, ok := v.pending.Get(queue.PendingSweep); ok {
		tx.apart(queue.PendingSweep, func() { tx.sweepFrom(p.Scope, p.From, p.Again) })
	}
	var nodes []string
	v.pending.Scan(queue.PendingNodes, func(key string, _ *queue.Pending) bool {
		nodes = append(nodes, key)
		return len(nodes) < queue.MaxPending
	})
	for _, key := range nodes {
		if tx.work.Over() {
			return
		}
		tx.work.Look()
		p, ok := v.pending.Get(key)
		if !ok {
			continue
		}
		if n, ok := v.Nodes.Get(key[len(queue.PendingNodes):]); ok {
			tx.apart(key, func() { newHelp(v, n).look(tx, p.From, p.Again) })
		} else {
			tx.remember(key, nil, "", false)
		}
	}
}

// putMark remembers a change for those who are being decided.
func (tx *Tx) putMark(m *queue.PodMark) { tx.putMarkAt(m.Key(), m) }

// putMarkAt is putMark where the mark's key is known. The mark stays as it is.
func (tx *Tx) putMarkAt(key string, m *queue.PodMark) {
	v := tx.view
	if old, ok := v.podMarks.Get(key); ok && old.Revision == v.Revision() && old.Below >= m.Below {
		return
	}
	row := *m
	row.Revision = v.Revision()
	put(tx, v.podMarks, key, &row)
	for v.podMarks.Len() > queue.MaxPodMarks {
		oldest := v.queue.OldestPodMark()
		gone, _ := v.podMarks.Get(oldest)
		remove(tx, v.podMarks, oldest)
		forgotten := queue.Forgotten(gone.Revision)
		put(tx, v.podMarks, forgotten.Key(), forgotten)
	}
}

// mark remembers that something happened on the node that could help: a plan
// made on an older state does not know of it.
func (tx *Tx) mark(node string) {
	v := tx.view
	if old, ok := v.marks.Get(node); ok && old.Revision == v.Revision() {
		return
	}
	put(tx, v.marks, node, &queue.NodeMark{Revision: v.Revision()})
}

// markAll remembers that anything may have happened, on every node: what was
// decided before is not believed.
func (tx *Tx) markAll() {
	v := tx.view
	var nodes []string
	v.Nodes.Scan("", func(name string, _ *corev1.Node) bool {
		nodes = append(nodes, name)
		return true
	})
	for _, name := range nodes {
		tx.mark(name)
	}
	forgotten := queue.Forgotten(v.Revision())
	put(tx, v.podMarks, forgotten.Key(), forgotten)
}

// missed reports whether something happened after a revision that could help a
// pod for which no place was found at that revision, and that is to wait in
// this group. Where so much happened that it would take long to find out, it
// says yes.
func (tx *Tx) missed(revision int64, g queue.Group, d *Diagnosis) (missed bool) {
	v := tx.view
	if tx.missedPods(revision, &g, d, true) {
		return true
	}
	v.queue.NodeMarksAfter(revision, func(node string) bool {
		tooMany := tx.work.Missed()
		if n, ok := v.Nodes.Get(node); ok {
			missed = tooMany || newHelp(v, n).room(tx, g, true) > 0
		}
		return !missed
	})
	return missed
}

// missedPods reports whether something happened to pods after a revision that could
// help those of a group; to budgets, if they count.
func (tx *Tx) missedPods(revision int64, g *queue.Group, d *Diagnosis, budgets bool) (missed bool) {
	v := tx.view
	v.queue.PodMarksAfter(revision, func(key string) bool {
		m, _ := v.podMarks.Get(key)
		missed = tx.work.Missed() || (budgets || !m.Budgets) && v.queue.Concerns(v, m, g, d) && tx.gainsBy(m.Victims)(g)
		return !missed
	})
	return missed
}

// missedRoom reports whether something happened after a revision that could let
// a pod that was nominated at that revision find room for which nobody has to
// go: nodes changed, or pods that its rules are about.
func (tx *Tx) missedRoom(revision int64, e *QueueEntry, g queue.Group, d *Diagnosis) (missed bool) {
	v := tx.view
	if tx.missedPods(revision, &g, d, false) {
		return true
	}
	rules := v.ruledClassOf(e.Key(), e.Class())
	v.queue.NodeMarksAfter(revision, func(node string) bool {
		missed = tx.work.Missed() || tx.hasRoom(node, e, rules)
		return !missed
	})
	return missed
}

// hasRoom says whether a node has room for a waiting pod for which nobody has to go.
func (tx *Tx) hasRoom(node string, e *QueueEntry, rules ruled) (has bool) {
	v := tx.view
	n, ok := v.Nodes.Get(node)
	if !ok {
		return false
	}
	h := newHelp(v, n)
	tx.work.Charge(v.askCost(rules, n))
	has = rules.fits(n, h.offer, h.usage(e.Class(), false))
	tx.waking(func() { has = has && len(v.barredFrom(rules, node, e.Key(), nil)) == 0 })
	return has
}
