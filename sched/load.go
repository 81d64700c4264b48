package sched

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// loading is a view that is being built from a state: table after table, and then the unsettled decisions over it, as
// much in a step as its work allows.
type loading struct {
	state *fsm.View
	part  int    // of those below
	next  string // the key of the part's table to go on from
	laid  int    // unsettled decisions that lie over it
}

const (
	loadNamespaces = iota
	loadNodes
	loadBudgets
	loadPods
	loadNominations
	loadUnsettled
)

// beginLoad begins to build the view from a state.
func (s *Scheduler) beginLoad(state *fsm.View) {
	v := newView()
	if s.view != nil {
		// Ranks and log positions of the old view mean nothing in the new one.
		v.ring.epoch = s.view.ring.epoch + 1
		v.log.first = s.view.log.head()
	}
	s.lost = false
	s.view, s.revision, s.loading = v, state.Revision(), &loading{state: state}
	s.seen.at, s.seen.passedOver, s.seen.held, s.seen.hiding = "", 0, 0, nil
	s.dropAll()
	clear(s.unsettledSlots)
	clear(s.unsettledClasses)
	clear(s.evicting)
	s.book = newBudgetBook()
	s.book.meter = &s.meter
	clear(s.assumptions)
	for _, f := range s.unsettledAssumptions() {
		f.pod, f.nomination, f.marked = nil, nil, false
		pod, there := state.Pods.Get(f.key)
		f.over = !there || pod.UID != f.uid || pod.Spec.NodeName != ""
	}
}

// load goes on with building the view. It returns false if there is more to do than the step's work allows.
func (s *Scheduler) load() bool {
	l := s.loading
	for ; l.part <= loadUnsettled; l.part, l.next = l.part+1, "" {
		through := false
		switch l.part {
		case loadNamespaces:
			through = loadFrom(s, l.state.Namespaces.ScanFrom, func(n *corev1.Namespace) { s.view.topo.PutNamespace(n.Name, n.Labels) })
		case loadNodes:
			through = loadFrom(s, l.state.Nodes.ScanFrom, func(n *corev1.Node) { s.view.putNode(n.Name, n) })
		case loadBudgets:
			through = loadFrom(s, l.state.Budgets.ScanFrom, s.book.put)
		case loadPods:
			through = s.loadPods(l.state)
		case loadNominations:
			through = loadFrom(s, l.state.Nominations.ScanFrom, s.putNomination)
		case loadUnsettled:
			through = s.layUnsettled()
		}
		if !through {
			return false
		}
	}
	s.loading = nil
	return true
}

// loadPods takes in a state's pods on nodes, as loadFrom does a table.
func (s *Scheduler) loadPods(state *fsm.View) (through bool) {
	var is *model.Class
	placed := func(_, from string, f func(at string, pod *corev1.Pod) bool) {
		state.PlacedFrom(from, func(at string, pod *corev1.Pod, c *model.Class) bool {
			is = c
			return f(at, pod)
		})
	}
	return loadFrom(s, placed, func(pod *corev1.Pod) { s.putPod(pod, is) })
}

// loadFrom takes in the rows of a table from where it was left.
func loadFrom[V any](
	s *Scheduler, scan func(prefix, from string, f func(key string, row V) bool), take func(row V),
) (through bool) {
	through = true
	scan("", s.loading.next, func(key string, row V) bool {
		if s.meter.out() {
			s.loading.next, through = key, false
			return false
		}
		if s.takeIn(row, func() { take(row) }); s.lost {
			through = false
			return false
		}
		s.chargeView(workChange)
		return true
	})
	return through
}

// layUnsettled lays the unsettled decisions over the view.
func (s *Scheduler) layUnsettled() bool {
	for all := s.unsettledAssumptions(); s.loading.laid < len(all); s.loading.laid++ {
		if s.meter.out() {
			return false
		}
		f := all[s.loading.laid]
		if s.takeIn(nil, func() { s.assume(f); s.markUnsettled(f) }); s.lost {
			s.leaveOut(f)
			return false
		}
		s.chargeView(workChange)
	}
	return true
}

// leaveOut leaves a decision out of the view: its pod may be decided again, and Apply does one of the two.
func (s *Scheduler) leaveOut(f *assumption) {
	for _, p := range s.plans {
		p.assumptions = slices.DeleteFunc(p.assumptions, func(other *assumption) bool { return other == f })
	}
}

// unsettledAssumptions are the decisions of all plans under way.
func (s *Scheduler) unsettledAssumptions() []*assumption {
	var out []*assumption
	for _, p := range s.plans {
		out = append(out, p.assumptions...)
	}
	return out
}
