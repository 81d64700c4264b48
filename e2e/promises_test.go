package e2e

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fact is what one revision made of a pod, or of an object that keeps pods.
type fact struct {
	revision int64
	at       time.Time // when it was seen
	kind     string    // "Pod", "Deployment", "ReplicaSet", "StatefulSet", "Job"
	uid      types.UID
	name     string
	owner    types.UID // its controller
	gone     bool

	pod podFact
	set setFact
}

// podFact is what of a pod matters.
type podFact struct {
	ready, ending bool
	disrupted     bool // its end is nobody's will who keeps it: its node is lost, or it is evicted
	phase         corev1.PodPhase
	index         string // of a Job's piece
}

// setFact is what an object asks for, and of a Job what it says is done.
type setFact struct {
	replicas int // of a Job: pieces at a time
	// unavailable and surge are what a Deployment's rollout may lack and have too many.
	unavailable, surge int

	completions, succeeded int
	indexes                string // that are done
	complete               bool
}

// staleness is how long ago a pod may have been lost at the latest for a controller not to know it yet. What is seen comes late,
// too, on a busy machine.
const staleness = 10 * time.Second

// promises replays facts in the order of their revisions, and says where one breaks what its kind promises.
type promises struct {
	pods   map[types.UID]*keptPod
	sets   map[types.UID]*keptSet
	broken []string
	// What was looked at.
	made, ended, rollouts, completed int
}

type keptPod struct {
	fact
	everReady bool
	badSince  time.Time // ready once, and not any more
}

type keptSet struct {
	fact
	pods map[types.UID]*keptPod // that are not gone
	// Of a Deployment: whether it had all its pods since it was asked for as many, what was lost since it had all of them the last
	// time, and the most that it was asked for lately.
	full   bool
	losses int
	asked  []askedFor
	low    bool
	// Of a Job: pieces of which a pod succeeded, and whether it did without having been told to end. Who is told to end is replaced,
	// and may succeed nevertheless, also while the Job's controller makes the other pod.
	done   map[string]bool
	absent map[int]time.Time
}

type askedFor struct {
	until time.Time
	n     int
}

func newPromises() *promises {
	return &promises{pods: map[types.UID]*keptPod{}, sets: map[types.UID]*keptSet{}}
}

// judge gives what was broken by facts that may come in any order.
func judge(facts []fact) *promises {
	p := newPromises()
	sorted := slices.SortedFunc(slices.Values(facts), func(a, b fact) int { return cmp.Compare(a.revision, b.revision) })
	for i := range sorted {
		p.see(sorted[i])
	}
	return p
}

func (p *promises) violated(f *fact, format string, args ...any) {
	p.broken = append(p.broken, fmt.Sprintf("revision %d, %s: %s %s: %s", f.revision, f.at.Format("15:04:05.000"), f.kind, f.name, fmt.Sprintf(format, args...)))
}

func (p *promises) see(f fact) {
	if f.kind != "Pod" {
		p.seeSet(f)
		return
	}
	was := p.pods[f.uid]
	set := p.sets[f.owner]
	switch {
	case was == nil && f.gone:
		return // it was there before anybody looked
	case was == nil:
		was = &keptPod{}
		p.pods[f.uid] = was
		p.made++
		if set != nil {
			p.newPod(set, &f)
			set.pods[f.uid] = was
			delete(set.absent, ordinalOf(f.name))
		}
	case was.gone:
		p.violated(&f, "it was gone, and is there again")
	}
	before := was.fact
	was.fact = f
	was.everReady = was.everReady || f.pod.ready
	bad := !f.pod.ready || f.pod.ending || f.gone
	switch {
	case !bad:
		was.badSince = time.Time{}
	case was.badSince.IsZero() && before.pod.ready:
		was.badSince = f.at
	}
	if set == nil {
		return
	}
	begins := f.pod.ending && !before.pod.ending
	lost := before.pod.ready && !before.pod.ending && (begins && f.pod.disrupted || !begins && !f.pod.ready && !f.pod.ending)
	if begins {
		p.ended++
		if set.kind == "StatefulSet" && !f.pod.disrupted && !over(f.pod.phase) {
			p.inOrder(set, &f, "is told to end")
		}
	}
	if f.pod.phase == corev1.PodSucceeded && before.pod.phase != corev1.PodSucceeded && set.kind == "Job" {
		set.done[f.pod.index] = set.done[f.pod.index] || !f.pod.ending
	}
	if f.gone {
		delete(set.pods, f.uid)
		if set.kind == "StatefulSet" {
			set.absent[ordinalOf(f.name)] = cmp.Or(was.badSince, f.at)
		}
	}
	if d := p.sets[set.owner]; set.kind == "ReplicaSet" && d != nil {
		if lost {
			d.losses++
		}
		p.enough(d, &f)
	}
}

func over(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// active: it counts as one of its controller's.
func (k *keptPod) active() bool { return !k.gone && !k.pod.ending && !over(k.pod.phase) }

// active is how many pods a Deployment has that count, by its name.
func (p *promises) active(deployment string) (n int) {
	for _, k := range p.pods {
		if set := p.sets[k.owner]; k.active() && set != nil && p.sets[set.owner] != nil && p.sets[set.owner].name == deployment {
			n++
		}
	}
	return n
}

// newPod looks at one that its controller has just made.
func (p *promises) newPod(set *keptSet, f *fact) {
	active := 1
	for _, other := range set.pods {
		if other.active() {
			active++
		}
	}
	switch set.kind {
	case "ReplicaSet", "Job":
		if active > set.set.replicas {
			p.violated(f, "it is the %dth active pod of %s, which asks for %d", active, set.name, set.set.replicas)
		}
	case "StatefulSet":
		p.inOrder(set, f, "is made")
	}
	if set.kind != "Job" {
		return
	}
	if set.done[f.pod.index] {
		p.violated(f, "piece %s has succeeded already", f.pod.index)
	}
	for _, other := range set.pods {
		if other.active() && other.pod.index == f.pod.index {
			p.violated(f, "piece %s has the pod %s", f.pod.index, other.name)
		}
	}
}

// inOrder: a StatefulSet makes a pod when those before it are ready, and ends one when all others are, but for those
// that were lost just now. There are no two pods of a name.
func (p *promises) inOrder(set *keptSet, f *fact, what string) {
	mine, last := ordinalOf(f.name), set.set.replicas
	if what == "is made" {
		last = mine
	}
	for ordinal := range last {
		if ordinal == mine {
			continue
		}
		var other *keptPod
		for _, k := range set.pods {
			if ordinalOf(k.name) == ordinal {
				other = k
			}
		}
		switch {
		case other == nil && mine > ordinal && set.absent[ordinal].IsZero():
			p.violated(f, "it %s before there was a pod %d", what, ordinal)
		case other == nil && !set.absent[ordinal].IsZero() && f.at.Sub(set.absent[ordinal]) > staleness:
			p.violated(f, "it %s, and pod %d is not there since %s", what, ordinal, set.absent[ordinal].Format("15:04:05.000"))
		case other == nil:
		case !other.everReady:
			p.violated(f, "it %s, and pod %d was never ready", what, ordinal)
		case !other.badSince.IsZero() && f.at.Sub(other.badSince) > staleness:
			p.violated(f, "it %s, and pod %d is not ready since %s", what, ordinal, other.badSince.Format("15:04:05.000"))
		}
	}
	for _, k := range set.pods {
		if k.name == f.name && k.uid != f.uid {
			p.violated(f, "it %s, and another of its name is there", what)
		}
	}
}

// enough: of a Deployment's pods so many are ready as a rollout has to leave, but for those that were lost.
func (p *promises) enough(d *keptSet, f *fact) {
	ready := 0
	for _, set := range p.sets {
		if set.owner != d.uid || set.kind != "ReplicaSet" {
			continue
		}
		for _, k := range set.pods {
			if k.pod.ready && !k.pod.ending {
				ready++
			}
		}
	}
	switch least := d.set.replicas - d.set.unavailable - d.losses; {
	case ready >= d.set.replicas:
		d.full, d.low, d.losses = true, false, 0
	case d.full && ready < least && !d.low:
		d.low = true
		p.violated(f, "%s has %d ready pods of %d; %d may be missing, and %d were lost", d.name, ready, d.set.replicas, d.set.unavailable, d.losses)
	}
}

func (p *promises) seeSet(f fact) {
	was := p.sets[f.uid]
	if was == nil {
		was = &keptSet{pods: map[types.UID]*keptPod{}, done: map[string]bool{}, absent: map[int]time.Time{}}
		p.sets[f.uid] = was
	}
	before := was.fact
	was.fact = f
	switch f.kind {
	case "Deployment":
		if f.set.replicas != before.set.replicas {
			was.asked = append(was.asked, askedFor{f.at.Add(staleness), before.set.replicas})
			was.full = was.full && f.set.replicas < before.set.replicas
		}
	case "ReplicaSet":
		if before.uid == "" {
			p.rollouts++
		}
		if d := p.sets[f.owner]; d != nil && f.set.replicas > before.set.replicas {
			p.surge(d, &f)
		}
	case "Job":
		p.progress(was, &before, &f)
	}
	if f.gone {
		was.owner = "" // it counts no more
	}
}

// surge: the ReplicaSets of a Deployment do not ask for more than a rollout may have, and the Deployment asked for lately.
func (p *promises) surge(d *keptSet, f *fact) {
	sum, most := 0, d.set.replicas
	for _, set := range p.sets {
		if set.kind == "ReplicaSet" && set.owner == d.uid && !set.gone {
			sum += set.set.replicas
		}
	}
	for _, a := range d.asked {
		if f.at.Before(a.until) {
			most = max(most, a.n)
		}
	}
	if sum > most+d.set.surge {
		p.violated(f, "the ReplicaSets of %s ask for %d pods; it asks for %d, and %d more while it is rolled out", d.name, sum, most, d.set.surge)
	}
}

// progress: what a Job has done is counted once and never taken back.
func (p *promises) progress(j *keptSet, before, f *fact) {
	s := f.set
	switch {
	case s.succeeded < before.set.succeeded:
		p.violated(f, "%d pieces were done, and now %d", before.set.succeeded, s.succeeded)
	case s.succeeded > s.completions:
		p.violated(f, "%d pieces of %d are done", s.succeeded, s.completions)
	case s.succeeded != countIndexes(s.indexes):
		p.violated(f, "%d pieces are done, and these: %q", s.succeeded, s.indexes)
	case s.succeeded > len(j.done):
		p.violated(f, "%d pieces are done, and pods of %d succeeded", s.succeeded, len(j.done))
	case s.complete && s.succeeded != s.completions:
		p.violated(f, "it is complete with %d pieces of %d", s.succeeded, s.completions)
	case before.set.complete && !s.complete:
		p.violated(f, "it was complete, and is not any more")
	}
	if s.complete && !before.set.complete {
		p.completed++
	}
}

// countIndexes counts those of a text like "0-3,5".
func countIndexes(text string) (n int) {
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			last, _ = strconv.Atoi(to)
		}
		n += last - first + 1
	}
	return n
}

// ordinalOf is the number at the end of the name of a StatefulSet's pod; -1: it has none.
func ordinalOf(name string) int {
	n, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	if err != nil {
		return -1
	}
	return n
}

// factOfPod is what there is to say of a pod.
func factOfPod(pod *corev1.Pod) podFact {
	f := podFact{phase: pod.Status.Phase, ending: pod.DeletionTimestamp != nil, index: pod.Annotations[batchv1.JobCompletionIndexAnnotation]}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady:
			f.ready = c.Status == corev1.ConditionTrue
		case c.Type == corev1.DisruptionTarget:
			f.disrupted = c.Status == corev1.ConditionTrue
		}
	}
	return f
}
