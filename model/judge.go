package model

import (
	"encoding/binary"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Judge is what one class can see of the pods on the nodes: the verdicts of its own topology spread constraints and
// inter-pod terms and of the terms that placed pods carry against it, and the raw scores of kube-scheduler's
// PodTopologySpread and InterPodAffinity.
//
// Ask the Topology for the Judge again (Topology.Judge, a map look-up) before every decision: a Judge is right until the
// next change of the Topology, and one that was not asked for in a long time is forgotten.
//
// # Groups
//
// A scheduler with many nodes keeps them in groups that the class cannot tell apart: Group gives a node's group as a small
// number. Nodes of one group have the same verdict (FailsGroup) and raw scores (RawSpread, RawAffinity), so a decision
// costs O(groups) and not O(nodes). A group is made of, for every topology key that matters to the class, the node's
// *domain* if some domain of that key has several nodes (zones), and the node's own *counts* if each has one (host
// names). It follows that
//
//   - a node changes its group only when that node itself is touched: PutNode with other labels, taints or cordon, and
//     AddPod, RemovePod, Nominate, Unnominate on that very node. What happens elsewhere in its zone changes the verdict of
//     its group, never its group.
//   - verdicts and scores of all groups may change with every change of the Topology: ask for them in every decision.
//   - Layout says whether groups asked for before still mean anything. When it differs from what it was, the groups of
//     all nodes must be asked for anew. That is rare: the first pod with a term about the class appears, a second node
//     joins a domain that had one, a namespace's labels change, too many groups were seen.
//
// Group numbers are dense from 0 and say nothing of order.
type Judge struct {
	t     *Topology
	class *Class
	// newer and older are the judges that were asked for after and before it.
	newer, older *Judge

	own          []judged // the class's own terms
	terms        []judged // own ones, then those that placed pods carry about the class
	changedTerms uint64   // of the Topology when terms was made
	attracted    bool     // AF2: the class matches all of its own required affinity terms
	attracts     int      // required affinity terms of its own
	likeness     string

	keys   []*topoKey // of terms, each once
	layout uint64
	// relabelled is the Topology's when the groups were begun: a namespace's labels decide whose pods count on a node.
	relabelled uint64
	groups     map[string]int32
	seen       []group
	grouped    int64 // bytes of all groups
	buf        []byte

	at        uint64 // version for which the terms' layers are right
	nominated bool   // some term sees nominations
	here      sight
}

// judged is one term with its counter.
type judged struct {
	role    termRole
	counter *counter
	key     int    // in Judge.keys
	single  bool   // every domain of the key is one node
	with    *layer // the counts with nominations

	spread *spreadTerm // hardSpread, softSpread
	weight int64       // ownPreference
}

type termRole byte

const (
	hardSpread termRole = iota
	softSpread
	ownAffinity // one for each key of the required terms; counts pods that match all terms
	ownAntiAffinity
	ownPreference
	theirAntiAffinity
	theirAffinity
	theirPreference
)

// Judge returns what the class sees; the first time, its terms are counted, which costs the nodes and the distinct
// classes placed in the namespaces that the terms are about. See Judge for how long the result may be used.
func (t *Topology) Judge(c *Class) *Judge {
	j, ok := t.judges.use(c.Signature)
	if !ok {
		j = t.newJudge(c)
		t.keep(j)
	}
	if j.changedTerms != t.changedTerms {
		j.look()
		j.likeness = ""
	}
	if len(j.seen) > maxGroups || j.relabelled != t.relabelled || slices.ContainsFunc(j.terms, func(k judged) bool { return k.single != k.counter.key.single() }) {
		j.arrange()
	}
	return j
}

// single says whether every domain has one node.
func (k *topoKey) single() bool { return k.shared == 0 }

// newJudge finds or makes the counters of the class's own terms.
func (t *Topology) newJudge(c *Class) *Judge {
	p := t.begin(c)
	t.goOn(p, func() bool { return false })
	return p.judge
}

// preparation is a judge whose counters are being made, one after the other: each costs the nodes, which may have to be
// asked much, and then the classes placed.
type preparation struct {
	judge   *Judge
	left    []wanted
	filling *counter // nil: none
	kept    bool     // see PrepareKept
}

// wanted is a counter for one of the judge's terms.
type wanted struct {
	like    counter // without its key
	label   string
	perNode bool
	needs   []string // labels that nodes must have

	role   termRole
	spread *spreadTerm
	weight int64
}

// goOn makes counters until out says that this is enough for now, and says whether all are made.
func (t *Topology) goOn(p *preparation, out func() bool) bool {
	for {
		if p.filling != nil && !t.fill(p.filling, out) {
			return false
		}
		p.filling = nil
		if len(p.left) == 0 {
			return true
		}
		if out() {
			return false
		}
		next := p.left[0]
		if e := next.like.eligible; e != nil && !t.lookAtNodes(e, out) {
			return false
		}
		p.filling = p.judge.add(&next)
		p.left = p.left[1:]
		if p.kept {
			t.keepCounter(p.filling)
		}
	}
}

// Prepare makes what Judge will need for a class until out says that this is enough for now, and says whether all of it is
// there. It is called again to go on; what was made for a class that was not finished is forgotten when another is asked for.
func (t *Topology) Prepare(c *Class, out func() bool) bool {
	if _, ok := t.judges.by[c.Signature]; ok {
		return true
	}
	return t.prepare(c, false, out) != nil
}

// PrepareKept is Prepare for all classes of the class's Rules: the counters of these are kept, whatever they hold and however
// long nobody asks for them, until Release.
func (t *Topology) PrepareKept(c *Class, out func() bool) bool {
	rules := c.Rules()
	if _, ok := t.kept[rules]; ok || rules == "" {
		return true
	}
	j := t.prepare(c, true, out)
	if j == nil {
		return false
	}
	t.keepFor(rules, j)
	return true
}

// Keep is PrepareKept all at once. It leaves alone what is being prepared.
func (t *Topology) Keep(c *Class) {
	rules := c.Rules()
	if _, ok := t.kept[rules]; ok || rules == "" {
		return
	}
	j := t.Judge(c)
	for i := range j.own {
		t.keepCounter(j.own[i].counter)
	}
	t.keepFor(rules, j)
}

// keepFor has the counters of a judge, which are taken out of what the judges may hold, stay until Release.
func (t *Topology) keepFor(rules string, j *Judge) {
	counters := make([]*counter, len(j.own))
	for i := range j.own {
		counters[i] = j.own[i].counter
		counters[i].refs++
	}
	if t.kept == nil {
		t.kept = map[string][]*counter{}
	}
	t.kept[rules] = counters
}

// Release lets go of the counters that are kept for Rules.
func (t *Topology) Release(rules string) {
	for _, c := range t.kept[rules] {
		t.unkeep(c)
		t.letGoCounter(c)
	}
	delete(t.kept, rules)
}

// prepare returns the judge of a class once it is ready, which it may have been before.
func (t *Topology) prepare(c *Class, kept bool, out func() bool) *Judge {
	if p := t.preparing; p == nil || p.judge.class.Signature != c.Signature || p.kept != kept {
		t.abandon()
		t.preparing = t.begin(c)
		t.preparing.kept = kept
	}
	if !t.goOn(t.preparing, out) {
		return nil
	}
	j := t.preparing.judge
	t.preparing = nil
	if known, ok := t.judges.by[c.Signature]; ok { // it has the same counters
		t.letGo(j)
		return known
	}
	t.keep(j)
	return j
}

// abandon forgets a judge that was not finished.
func (t *Topology) abandon() {
	p := t.preparing
	if p == nil {
		return
	}
	t.preparing = nil
	for i := range p.left {
		t.releaseEligibility(p.left[i].like.eligible)
	}
	if p.kept {
		for i := range p.judge.own {
			t.unkeep(p.judge.own[i].counter)
		}
	}
	t.letGo(p.judge)
}

// begin returns the judge of a class, with what there is to do for it.
func (t *Topology) begin(c *Class) *preparation {
	p := &preparation{judge: &Judge{t: t, class: c, changedTerms: t.changedTerms - 1}}
	j, terms := p.judge, c.terms
	if terms == nil {
		return p
	}
	hard, soft := spreadKeys(terms.spread, true), spreadKeys(terms.spread, false)
	if terms.system {
		soft = nil // TS4: nodes without all of the keys count too
	}
	for i := range terms.spread {
		s := &terms.spread[i]
		role, keys := softSpread, soft
		if s.hard {
			role, keys = hardSpread, hard
		}
		w := wanted{role: role, spread: s, label: s.topologyKey, like: counter{match: []*podMatch{s.match}, skipLeaving: true}}
		// TS10: what runs on the node itself is scored, whether it is a domain or not.
		if w.perNode = !s.hard && s.topologyKey == corev1.LabelHostname; !w.perNode {
			w.like.ranked, w.like.eligible = s.hard, t.eligibilityOf(c, s, keys)
			if w.like.eligible == nil {
				w.needs = keys
			}
		}
		p.left = append(p.left, w)
	}
	j.attracts = len(terms.affinity)
	all, keys := attraction(terms.affinity)
	for _, label := range keys {
		p.left = append(p.left, wanted{role: ownAffinity, label: label, like: counter{match: all}})
	}
	about := func(role termRole, a *affinityTerm, weight int64) {
		p.left = append(p.left, wanted{role: role, weight: weight, label: a.topologyKey, like: counter{match: []*podMatch{a.match}}})
	}
	for i := range terms.antiAffinity {
		about(ownAntiAffinity, &terms.antiAffinity[i], 0)
	}
	for i := range terms.preferred {
		about(ownPreference, &terms.preferred[i], terms.preferred[i].weight)
	}
	return p
}

// add has the judge go by a counter, which takes its part of the eligibility.
func (j *Judge) add(w *wanted) *counter {
	w.like.key = j.t.keyOf(w.label, w.perNode)
	for _, label := range w.needs {
		if label != w.label {
			w.like.needs = append(w.like.needs, j.t.keyOf(label, false))
		}
	}
	c := j.t.counterOf(w.like)
	j.t.releaseEligibility(w.like.eligible)
	c.refs++
	j.own = append(j.own, judged{role: w.role, counter: c, spread: w.spread, weight: w.weight})
	return c
}

func spreadKeys(terms []spreadTerm, hard bool) []string {
	var keys []string
	for i := range terms {
		if terms[i].hard == hard {
			keys = append(keys, terms[i].topologyKey)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// counterOf returns the counter of matching pods that is like c. One that is new has to be filled.
func (t *Topology) counterOf(c counter) *counter {
	c.id = c.describe()
	if known, ok := t.matching.byID[c.id]; ok {
		return known
	}
	made := &c
	t.made++
	made.number, made.stamps = t.made, t.stamps
	if e := made.eligible; e != nil {
		e.refs++
	}
	for _, k := range made.needs {
		k.needed++
	}
	made.allJoined()
	made.key.counters = append(made.key.counters, made)
	t.matching.add(made)
	t.work += int64(made.key.nodes)
	made.filling = true
	first := made.match[0]
	if first.nsSelector != nil {
		t.work += int64(len(t.spaces))
	}
	t.spacesOf(first, func(sp *space) { made.unfilled = append(made.unfilled, t.kindsFor(sp, made.match)...) })
	return made
}

// fillAtOnce is how many kinds of pods a counter is filled with before it is asked whether that is enough for now.
const fillAtOnce = 1024

// fill counts the pods that were there when the counter was made, until out says that this is enough for now, and says
// whether all are counted. The kinds that it has reached, and those that are new, keep it in step meanwhile.
func (t *Topology) fill(c *counter, out func() bool) bool {
	for len(c.unfilled) > 0 {
		if out() {
			return false
		}
		now := c.unfilled[:min(t.fillStep, len(c.unfilled))]
		c.unfilled = c.unfilled[len(now):]
		t.work += int64(len(now))
		for _, k := range now {
			if !k.swept && c.about(k.class, k.space.labels) {
				t.link(k, c)
				t.countKind(k, sum{c, 1}, 1)
			}
		}
	}
	if c.filling {
		c.filling, c.unfilled = false, nil
		t.hold(c, countBytes+c.base.bytes()+int64(len(c.domains))*domainBytes)
	}
	return true
}

func (c *counter) describe() string {
	var b strings.Builder
	b.WriteString(c.key.id())
	b.WriteByte(0)
	if c.skipLeaving {
		b.WriteByte('s')
	}
	if c.ranked {
		b.WriteByte('r')
	}
	if c.eligible != nil {
		b.WriteByte('e')
		b.WriteString(c.eligible.id)
	}
	for _, k := range c.needs {
		b.WriteByte(1) // in no label
		b.WriteString(k.id())
	}
	for _, m := range c.match {
		b.WriteByte(0)
		b.WriteString(m.id)
	}
	return b.String()
}

// look finds the terms that placed pods carry about the class.
func (j *Judge) look() {
	t, c := j.t, j.class
	j.changedTerms = t.changedTerms
	nsLabels := t.namespaceLabels(c.Namespace)
	j.attracted = j.attracts > 0 && c.attractsSelf(nsLabels)
	var theirs []*counter
	t.work += t.carried.lookup(c, nsLabels, func(k *counter) { theirs = append(theirs, k) })
	slices.SortFunc(theirs, func(a, b *counter) int { return strings.Compare(a.id, b.id) })
	known := j.terms[min(len(j.own), len(j.terms)):]
	if j.layout != 0 && slices.EqualFunc(known, theirs, func(k judged, c *counter) bool { return k.counter == c }) {
		return
	}
	j.terms = slices.Clone(j.own)
	for _, k := range theirs {
		role := theirAntiAffinity
		switch k.role {
		case carriedAffinity:
			role = theirAffinity
		case carriedPreference:
			role = theirPreference
		}
		j.terms = append(j.terms, judged{role: role, counter: k})
	}
	j.arrange()
}

// Plain says that the class has no terms and no placed pod carries one about it: there is nothing to check or to score,
// and all nodes are in group 0.
func (j *Judge) Plain() bool { return len(j.terms) == 0 }

// Likeness is equal for two judges that find the same on every node, provided that their classes have one Shape: pods
// that differ in labels that nobody asks about are alike. It is "" for a plain one.
func (j *Judge) Likeness() string {
	if j.likeness == "" && len(j.terms) > 0 {
		// What is said of the class itself always takes a byte: otherwise one class's could read as another's terms.
		b := []byte{bit(j.attracted)}
		for i := range j.terms {
			k := &j.terms[i]
			b = binary.AppendUvarint(append(b, byte(k.role)), k.counter.number)
			b = append(b, bit(k.spread != nil && k.spread.matchesSelf))
		}
		j.likeness = string(b)
	}
	return j.likeness
}

func bit(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// Layout changes when the groups of nodes have to be asked for anew. No two Judges ever have the same Layout.
func (j *Judge) Layout() uint64 { return j.layout }

// fresh looks up which counts with nominations the terms see.
func (j *Judge) fresh() {
	if j.at == j.t.version+1 {
		return
	}
	j.at = j.t.version + 1
	j.nominated = false
	for i := range j.terms {
		k := &j.terms[i]
		k.with = k.counter.nominated(j.t, j.class.Priority)
		j.nominated = j.nominated || k.with != &k.counter.base
	}
}
