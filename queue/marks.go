package queue

import (
	"maps"
	"slices"
	"strconv"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// While a decision is on its way, things happen that nobody is woken by who is
// being decided. They are remembered as marks, so that a failure decided before
// them is not believed (QU8: events in flight).

// NodeMark remembers the last revision at which something happened on a node
// that could help a waiting pod: a decision "no node fits" made on an older
// state is not believed for this node.
type NodeMark struct {
	Revision int64 `msgpack:"revision"`
}

// PodMark remembers the last change of pods with the same labels, or of what
// all pods are judged by.
type PodMark struct {
	Revision  int64           `msgpack:"revision"`
	Namespace string          `msgpack:"namespace,omitempty"`
	Labels    []string        `msgpack:"labels,omitempty"` // keys and values in turn, sorted
	How       model.PodChange `msgpack:"how,omitempty"`
	// Guard: the pod kept others away.
	Guard bool `msgpack:"guard,omitempty"`
	// Domains: not a pod but the domains changed, or marks up to Revision are
	// forgotten.
	Domains bool `msgpack:"domains,omitempty"`
	// Defaults: not a pod but by what default constraints select pods changed.
	Defaults bool `msgpack:"defaults,omitempty"`
	// Budgets: a budget allows more; Below and Victims are as in a Scope.
	Budgets bool     `msgpack:"budgets,omitempty"`
	Below   int64    `msgpack:"below,omitempty"`
	Victims *Victims `msgpack:"victims,omitempty"`
	// Volumes: claims of volumes, volumes or their classes changed.
	Volumes bool `msgpack:"volumes,omitempty"`
}

// MaxPodMarks bounds the marks of pods, and maxMarkBytes what one holds; what is
// forgotten counts as having happened, and so does what is too long to be kept.
const (
	MaxPodMarks  = 1024
	maxMarkBytes = 1 << 10
)

// forgottenKey is the key of the mark that stands for those that are forgotten.
const forgottenKey = "forgotten"

// AnyPriority is above every priority, for what is Below.
const AnyPriority = 1 << 40

// MarkOf is what a mark remembers of a change.
func MarkOf(c PodChange) *PodMark {
	m := &PodMark{Namespace: c.Pod.Namespace, How: c.How, Guard: c.Pod.KeepsAway() && c.How != model.PodCame}
	if n := len(c.Pod.Labels); n > 0 {
		m.Labels = make([]string, 0, 2*n)
		for _, key := range slices.Sorted(maps.Keys(c.Pod.Labels)) {
			m.Labels = append(m.Labels, key, c.Pod.Labels[key])
		}
	}
	return m
}

// MarkOfBudgets is what a mark remembers of the budgets of a scope.
func MarkOfBudgets(s *Scope) *PodMark {
	m := &PodMark{Budgets: true, Below: s.Below}
	if s.Victims != nil {
		m.Victims = s.Victims.bounded()
	}
	return m
}

// Bounded is the mark of a change as it may be kept.
func (m *PodMark) Bounded() *PodMark {
	n := 0
	for _, s := range m.Labels {
		n += len(s) + 1
	}
	if n > maxMarkBytes {
		return &PodMark{Domains: true}
	}
	return m
}

// Key is that under which a mark is kept: there is one for all that it would
// say the same of.
func (m *PodMark) Key() string {
	switch {
	case m.Domains && m.Budgets:
		return forgottenKey
	case m.Domains:
		return "domains"
	case m.Defaults:
		return "defaults"
	case m.Budgets && m.Victims != nil:
		return "budgets\x00" + strconv.FormatInt(m.Below, 10) + "\x00" + m.Victims.key()
	case m.Budgets:
		return "budgets"
	case m.Volumes:
		return "volumes"
	}
	key := string(rune('0'+m.How)) + m.Namespace + "\x00"
	for _, s := range m.Labels {
		key += s + "\x00"
	}
	if m.Guard {
		key = "g" + key
	}
	return key
}

// Forgotten is the mark that stands for one, of a revision, that is forgotten.
func Forgotten(revision int64) *PodMark {
	return &PodMark{Revision: revision, Domains: true, Defaults: true, Budgets: true, Below: AnyPriority}
}

// PutPodMark and PutNodeMark take in that a mark came, changed or went.
func (x *Index) PutPodMark(key string, old, now *PodMark) {
	if old != nil {
		x.podMarks.Delete(markKey(old.Revision, key))
	}
	if now != nil {
		x.podMarks.Set(markKey(now.Revision, key), key)
	}
}

// PutNodeMark is PutPodMark for the mark of a node.
func (x *Index) PutNodeMark(node string, old, now *NodeMark) {
	if old != nil {
		x.nodeMarks.Delete(markKey(old.Revision, node))
	}
	if now != nil {
		x.nodeMarks.Set(markKey(now.Revision, node), node)
	}
}

// markKey sorts by revision.
func markKey(revision int64, key string) string { return store.RevisionKey(revision) + key }

// PodMarksAfter calls f for the keys of the marks of pods above a revision, the
// oldest first, until f returns false.
func (x *Index) PodMarksAfter(revision int64, f func(key string) bool) {
	x.podMarks.ScanFrom("", markKey(revision+1, ""), func(_ string, key string) bool { return f(key) })
}

// NodeMarksAfter is PodMarksAfter for the nodes that have marks.
func (x *Index) NodeMarksAfter(revision int64, f func(node string) bool) {
	x.nodeMarks.ScanFrom("", markKey(revision+1, ""), func(_ string, node string) bool { return f(node) })
}

// NewestMark is another text whenever a mark was put.
func (x *Index) NewestMark() string {
	node, _, _ := x.nodeMarks.Max()
	pod, _, _ := x.podMarks.Max()
	return node + pod
}

// OldestPodMark is the key of the mark of pods to forget first.
func (x *Index) OldestPodMark() (oldest string) {
	x.podMarks.Scan("", func(_, key string) bool {
		oldest = key
		return key == forgottenKey
	})
	return oldest
}

// Missed charges that a mark is looked at, and says whether so many were that it
// would take too long to go on.
func (w *Work) Missed() bool {
	w.Charge(costAsk)
	return w.spent > maxMissedWork
}

// Concerns says whether what a mark remembers could help the pods of a group.
// Who was kept away when it was decided need not be so any more: that is the one
// thing that is taken from what was told (d), of which no kind is left out. Whether it helps to evict a mark's victims is not asked here.
func (x *Index) Concerns(s State, m *PodMark, g *Group, d *Diagnosis) bool {
	if m.Budgets && s.MindsBudgets(g.Class, m.Below) {
		return true
	}
	if forgotten := m.Domains && m.Budgets; m.Volumes || forgotten && g.OfClaims() {
		return g.OfClaims()
	}
	rules := x.RulesOf(s, g)
	ruled := rules.HasHardTopology()
	switch {
	case m.Domains && (ruled || g.Alike() || d.keptAway()):
		return true
	case m.Defaults:
		return len(g.Class.Spread) == 0 // it may have been spread when it was decided
	case m.Domains, m.Budgets:
		return false
	case m.Guard && (g.Alike() || d.keptAway()):
		return true
	case !ruled:
		return false
	}
	podLabels := make(map[string]string, len(m.Labels)/2)
	for i := 0; i+1 < len(m.Labels); i += 2 {
		podLabels[m.Labels[i]] = m.Labels[i+1]
	}
	return mayConcern(rules, m.How, m.Namespace, podLabels, s.NamespaceLabels(m.Namespace))
}
