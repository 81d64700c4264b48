package worker

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// past is what the servers go back to.
type past struct {
	saved map[string]*corev1.Pod
	back  bool // they have gone back, and the agent has not been told
}

// goBack: snapshot, late: the servers go back to it and pass over what they are told next, and back: the agent is told that they did
func (p *past) goBack(b *bench, cmd string) {
	if cmd == "snapshot" {
		p.saved = maps.Clone(b.pods)
		return
	}
	b.pods, b.holding = maps.Clone(p.saved), false
	if p.back = cmd == "late"; p.back {
		return
	}
	pods := slices.SortedFunc(maps.Values(b.pods), func(x, y *corev1.Pod) int { return cmp.Compare(x.Name, y.Name) })
	b.core.Assign(Assignment{Full: true, Pods: pods, Node: b.node}, b.clock.Now())
}

// take commits a report.
func (b *bench) take(r PodReport) Taken {
	if b.past.back {
		b.holding = true // nobody says it again at once
		b.trace("late %s", summary(r.Name, &r.Status, r.Removed))
	} else {
		b.commit(r)
	}
	return Taken{UID: r.UID, Number: r.Number, Late: b.past.back}
}
