package model

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// judges are those that were asked for of late. What they cost is bounded in bytes: those whose terms are about few pods are
// cheap, and there may be ten thousands of them; one whose terms are about everybody costs every kind of pods that there is.
type judges struct {
	by             map[string]*Judge // by signature
	newest, oldest *Judge
	bytes          int64 // of the judges with their groups, of counters of matching pods, and of what leads to these
}

// maxJudgeBytes bounds what judges hold, and maxLinks the work of counting a pod: one for each counter that is about it.
const (
	maxJudgeBytes = 64 << 20
	maxLinks      = 1024
)

// keptJudges are kept whatever they hold: somebody may be asking them.
const keptJudges = 4

// About what things take, in bytes.
const (
	judgeBytes  = 1 << 10
	termBytes   = 128
	countBytes  = 512 // a counter, without what it has by domain
	domainBytes = 4
	linkBytes   = 16
)

func newJudges() judges { return judges{by: map[string]*Judge{}} }

// hold takes note of what a counter of matching pods holds; those of carried terms are the pods' own.
func (t *Topology) hold(c *counter, bytes int64) {
	if c.role != notCarried {
		return
	}
	c.held += bytes
	if c.keepers == 0 {
		t.judges.bytes += bytes
	}
}

// bytes is what the counts hold.
func (l *layer) bytes() int64 {
	return int64(2*len(l.count.few)+len(l.count.all)+2*len(l.rank.levels)) * domainBytes
}

func (j *Judge) bytes() int64 {
	return judgeBytes + int64(len(j.own))*termBytes + int64(j.class.VolumesBytes())
}

// groupBytes is what one group holds.
func (j *Judge) groupBytes() int64 {
	return 128 + int64(len(j.keys))*2*domainBytes + int64(len(j.terms))*2*domainBytes
}

// Judged says whether what Judge needs for a class is there.
func (t *Topology) Judged(c *Class) bool { return t.judges.by[c.Signature] != nil }

// use finds a judge, and remembers that it was asked for.
func (s *judges) use(signature string) (*Judge, bool) {
	j, ok := s.by[signature]
	if ok && s.newest != j {
		s.unchain(j)
		s.chain(j)
	}
	return j, ok
}

// keep remembers a judge, for which others may have to go.
func (t *Topology) keep(j *Judge) {
	s := &t.judges
	s.by[j.class.Signature] = j
	s.bytes += j.bytes()
	s.chain(j)
	t.dismissSurplus()
}

func (s *judges) chain(j *Judge) {
	j.older, j.newer = s.newest, nil
	if s.newest != nil {
		s.newest.newer = j
	} else {
		s.oldest = j
	}
	s.newest = j
}

func (s *judges) unchain(j *Judge) {
	if j.newer != nil {
		j.newer.older = j.older
	} else {
		s.newest = j.older
	}
	if j.older != nil {
		j.older.newer = j.newer
	} else {
		s.oldest = j.newer
	}
}

// dismissSurplus forgets the judges that were not asked for for the longest time while all of them hold too much.
func (t *Topology) dismissSurplus() {
	for t.judges.bytes > maxJudgeBytes && len(t.judges.by) > keptJudges {
		t.dismiss(t.judges.oldest)
	}
	for k := t.crowded; k != nil; k = t.crowded {
		k.sums = slices.DeleteFunc(k.sums, func(s sum) bool { return s.counter.dead })
		if len(k.sums) <= maxLinks || len(t.judges.by) <= keptJudges {
			t.crowded = nil
			return
		}
		for range min(1+len(t.judges.by)/8, len(t.judges.by)-keptJudges) {
			t.dismiss(t.judges.oldest)
		}
	}
}

func (t *Topology) dismiss(j *Judge) {
	s := &t.judges
	s.unchain(j)
	delete(s.by, j.class.Signature)
	s.bytes -= j.bytes() + j.grouped
	t.letGo(j)
}

// letGo forgets a judge's counters that no other one has.
func (t *Topology) letGo(j *Judge) {
	for i := range j.own {
		t.letGoCounter(j.own[i].counter)
	}
}

func (t *Topology) letGoCounter(c *counter) {
	t.work++
	if c.refs--; c.refs == 0 {
		t.matching.remove(c)
		t.forget(c)
	}
}

// keepCounter takes a counter out of what the judges may hold; unkeep is the inverse.
func (t *Topology) keepCounter(c *counter) {
	if c.keepers++; c.keepers > 1 {
		return
	}
	t.judges.bytes -= c.held
	if e := c.eligible; e != nil {
		if e.keepers++; e.keepers == 1 {
			t.judges.bytes -= e.held
		}
	}
}

func (t *Topology) unkeep(c *counter) {
	if c.keepers--; c.keepers > 0 {
		return
	}
	t.judges.bytes += c.held
	if e := c.eligible; e != nil {
		if e.keepers--; e.keepers == 0 {
			t.judges.bytes += e.held
		}
	}
}

// dismissSelecting forgets the judges of whose terms one chooses namespaces by labels that a namespace has now, or had: its
// pods are counted anew when they are asked for again.
func (t *Topology) dismissSelecting(before, now map[string]string) {
	otherwise := func(c *counter) bool { return c.choosesOtherwise(before, now) }
	// order does not matter: each by itself.
	for rules, counters := range t.kept {
		if slices.ContainsFunc(counters, otherwise) {
			t.Release(rules)
		}
	}
	if p := t.preparing; p != nil && slices.ContainsFunc(p.judge.own, func(k judged) bool { return otherwise(k.counter) }) {
		t.abandon()
	}
	for j := t.judges.newest; j != nil; {
		older := j.older
		t.work += int64(len(j.own))
		if slices.ContainsFunc(j.own, func(k judged) bool { return otherwise(k.counter) }) {
			t.dismiss(j)
		}
		j = older
	}
}

// choosesOtherwise says whether one of the counter's terms chooses a namespace by only one of two sets of labels.
func (c *counter) choosesOtherwise(before, now map[string]string) bool {
	return slices.ContainsFunc(c.match, func(m *podMatch) bool { return m.choosesOtherwise(before, now) })
}

func (m *podMatch) choosesOtherwise(before, now map[string]string) bool {
	return m.nsSelector != nil && m.nsSelector.Matches(labels.Set(before)) != m.nsSelector.Matches(labels.Set(now))
}
