package sched

import (
	"fmt"
	"runtime/debug"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// A row that the view cannot take in must not keep everybody from being scheduled. The view, which may be half changed, is
// built anew; a row over which that breaks again is let be for a while. Of a pod the room that it takes is counted even so, and
// nothing else: nobody is judged by its rules, and nobody can evict it. Where even that breaks its node is let be too. Of other
// rows the view knows nothing: a node gets no pods then, and what a budget or a nomination demands is asked in Apply.

const (
	// wholeTries is how often the view tries to take in a row, being built anew after each, before it lets it be.
	wholeTries = 2
	// faultyNanos is how long it does.
	faultyNanos = 60 * nanosPerSecond
	// maxRebuilds bounds how often the view is built anew because of rows within faultyNanos. Then it goes on as it is, maybe
	// wrong: Apply checks each decision, and it is built anew when the time is over.
	maxRebuilds = 64
)

// rowName names what a row is about: pods of one class are alike.
type rowName struct{ table, key string }

// faulty is a row that made the view panic.
type faulty struct {
	times         int // in a row
	untilUnixNano int64
}

// barePod is a pod of which the view knows nothing but the room that it takes.
type barePod struct {
	slot  int32
	class *model.Class
}

// nameOf names a row; without a table where the view takes in none of its kind.
func (s *Scheduler) nameOf(row any) rowName {
	switch row := row.(type) {
	case *corev1.Pod:
		if s.seen.state != nil {
			if c := s.seen.state.PlacedClass(row); c != nil {
				return rowName{"pods", c.Signature}
			}
		}
		return rowName{"pods", string(row.UID)}
	case *corev1.Node:
		return rowName{"nodes", row.Name}
	case *corev1.Namespace:
		return rowName{"namespaces", row.Name}
	case *policyv1.PodDisruptionBudget:
		return rowName{"budgets", fsm.PodKey(row.Namespace, row.Name)}
	case *fsm.Nomination:
		return rowName{"nominations", string(row.UID)}
	case *berthv1.SchedulerConfiguration:
		return rowName{"configurations", row.Name}
	}
	return rowName{}
}

// aboutRow is what is told of a row.
func aboutRow(row any) string {
	switch row := row.(type) {
	case *corev1.Pod:
		return "pod " + fsm.PodKey(row.Namespace, row.Name)
	case *corev1.Node:
		return "node " + row.Name
	case *corev1.Namespace:
		return "namespace " + row.Name
	case *policyv1.PodDisruptionBudget:
		return "budget " + fsm.PodKey(row.Namespace, row.Name)
	case *fsm.Nomination:
		return "nomination of " + row.Key()
	case *berthv1.SchedulerConfiguration:
		return "scheduler configuration"
	}
	return ""
}

// takeIn changes the view by a row, unless that is let be; nil is for what no row can be blamed for. If that panics the view is
// built anew.
func (s *Scheduler) takeIn(row any, take func()) {
	defer func() {
		if p := recover(); p != nil {
			s.blame(row, p)
		}
	}()
	if len(s.faulty) > 0 && row != nil && s.letBe(row) {
		return
	}
	if s.taking != nil {
		s.taking(row)
	}
	take()
}

// lacks says what the view lets be, if it does: whoever finds no place then is set aside, and does not wait for a change that may
// never come.
func (s *Scheduler) lacks() string {
	n := 0
	// order does not matter: they are counted.
	for _, f := range s.faulty {
		if f.times >= wholeTries {
			n++
		}
	}
	switch {
	case s.rebuilds >= maxRebuilds:
		return "the scheduler's view of the cluster may be wrong"
	case n > 0:
		return fmt.Sprintf("the scheduler's view lacks %d nodes, pods or others over which it broke", n)
	}
	return ""
}

// takeChange takes in a change of the state.
func (s *Scheduler) takeChange(c *store.Change) {
	old, had := c.Old.(*corev1.Pod)
	if now, has := c.New.(*corev1.Pod); had && has && old.UID != now.UID && len(s.faulty) > 0 {
		s.takeIn(nil, func() { s.dropPod(old) }) // its successor may be let be
	}
	s.takeIn(c.New, func() { s.take(c) })
}

// letBe says whether the view lets a row be, and takes in what it can of it.
func (s *Scheduler) letBe(row any) bool {
	pod, isPod := row.(*corev1.Pod)
	if isPod {
		s.view.dropBare(pod.UID)
	}
	f := s.faulty[s.nameOf(row)]
	switch {
	case !isPod || f.times < wholeTries:
	case f.times == wholeTries:
		s.putBare(pod)
	default:
		s.closeNode(pod.Spec.NodeName)
	}
	return f.times >= wholeTries
}

// closeNode lets a node be, on which it is not known what is free.
func (s *Scheduler) closeNode(name string) {
	row := rowName{"nodes", name}
	if name == "" || s.faulty[row].times >= wholeTries {
		return
	}
	s.faulty[row] = faulty{wholeTries, s.seen.nowNano + faultyNanos}
	if _, there := s.view.byName[name]; there {
		s.view.putNode(name, nil)
	}
}

// blame has the view built anew after a panic, and remembers the row that it came from.
func (s *Scheduler) blame(row, value any) {
	about := aboutRow(row)
	if len(s.panics) < maxPanics {
		said := fmt.Sprint(value)
		s.panics = append(s.panics, Panic{Row: about, Value: said[:min(len(said), maxPanicBytes)], Stack: string(debug.Stack())})
	}
	if s.rebuilds >= maxRebuilds {
		return
	}
	s.rebuilds++
	s.lost = true
	if s.faultyNext == 0 {
		s.faultyNext = s.seen.nowNano + faultyNanos
	}
	if about == "" {
		return
	}
	if s.faulty == nil {
		s.faulty = map[rowName]faulty{}
	}
	name := s.nameOf(row)
	s.faulty[name] = faulty{s.faulty[name].times + 1, s.seen.nowNano + faultyNanos}
}

// tryFaultyAgain has the view take in again what it has let be for long enough; once, before it lets it be again.
func (s *Scheduler) tryFaultyAgain() {
	now := s.seen.nowNano
	if s.faultyNext == 0 || now < s.faultyNext {
		return
	}
	if s.rebuilds >= maxRebuilds {
		s.lost = true // it may be wrong
	}
	s.rebuilds, s.faultyNext = 0, 0
	// order does not matter: each row by itself, and the least of the times.
	for name, f := range s.faulty {
		switch {
		case f.untilUnixNano > now:
		case f.times < wholeTries:
			delete(s.faulty, name)
			continue
		default:
			f = faulty{wholeTries - 1, now + faultyNanos}
			s.faulty[name], s.lost = f, true
		}
		if s.faultyNext == 0 || f.untilUnixNano < s.faultyNext {
			s.faultyNext = f.untilUnixNano
		}
	}
}

// configureAs goes by a configuration, or by the one before if it panics; at first by that of a cluster without one.
func (s *Scheduler) configureAs(c *berthv1.SchedulerConfiguration) {
	if s.config == c {
		return
	}
	before, profiles, done := s.config, s.profiles, false
	s.takeIn(c, func() {
		s.configure(c)
		done = true
	})
	switch {
	case done:
	case before != nil:
		s.config, s.profiles = before, profiles
	default:
		s.configure(berthv1.Default())
	}
}

// putBare takes in the room that a pod on a node takes.
func (s *Scheduler) putBare(obj *corev1.Pod) {
	s.dropPod(obj)
	if s.seen.state == nil {
		return
	}
	c := s.seen.state.PlacedClass(obj)
	if c == nil || obj.Spec.NodeName == "" || model.Terminal(obj) {
		return
	}
	if s.taking != nil {
		s.taking(c)
	}
	v := s.view
	slot := v.slot(obj.Spec.NodeName)
	n := &v.nodes[slot]
	n.usage = n.usage.With(c)
	if v.bare == nil {
		v.bare = map[types.UID]barePod{}
	}
	v.bare[obj.UID] = barePod{slot, c}
	v.touch(slot)
}

// dropBare takes back what putBare took in, if it did.
func (v *View) dropBare(uid types.UID) {
	b, ok := v.bare[uid]
	if !ok {
		return
	}
	delete(v.bare, uid)
	n := &v.nodes[b.slot]
	n.usage = n.usage.Without(b.class)
	v.touch(b.slot)
}

// bareUsage is what pods take on a node of which the view knows nothing else, beside something.
func (v *View) bareUsage(slot int32, beside model.Usage) model.Usage {
	// order does not matter: it is a sum.
	for _, b := range v.bare {
		if b.slot == slot {
			beside = beside.With(b.class)
		}
	}
	return beside
}
