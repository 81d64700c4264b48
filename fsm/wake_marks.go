package fsm

import (
	"slices"
	"strings"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// While a decision is on its way, things happen that nobody is woken by who is
// being decided. They are remembered as marks, so that a failure decided before
// them is not believed (QU8: events in flight).

// podMark remembers the last change of pods with the same labels, or of what
// all pods are judged by.
type podMark struct {
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
	// Budgets: a budget allows more; Below is as in a sweepScope.
	Budgets bool  `msgpack:"budgets,omitempty"`
	Below   int64 `msgpack:"below,omitempty"`
}

// maxPodMarks and maxMarkBytes bound the marks; what is forgotten counts as
// having happened, and so does what is too long to be kept.
const (
	maxPodMarks  = 1024
	maxMarkBytes = 1 << 10
)

// Keys of the marks that are of no pod.
const domainsKey, forgottenKey, budgetsKey, defaultsKey = "domains", "forgotten", "budgets", "defaults"

var podMarkTable = &tableDef[*podMark]{
	Name:    "podmarks",
	Marshal: func(m *podMark) ([]byte, error) { return store.Marshal(m) },
	Unmarshal: func(b []byte) (*podMark, error) {
		m := new(podMark)
		return m, store.Unmarshal(b, m)
	},
	Index: func(v *live, key string, old, new *podMark, hadOld, hasNew bool) {
		if hadOld {
			v.podMarksByRevision.Delete(markKey(old.Revision, key))
		}
		if hasNew {
			v.podMarksByRevision.Set(markKey(new.Revision, key), key)
		}
	},
}

// mark remembers that something happened on the node that could help: a plan
// made on an older state does not know of it.
func (tx *Tx) mark(node string) {
	v := tx.view
	if old, ok := v.marks.Get(node); ok && old.Revision == v.Revision() {
		return
	}
	put(tx, v.marks, node, &nodeMark{Revision: v.Revision()})
}

// concernedWithOthers says whether any pod, waiting or placed, has a hard rule
// about others: without one nobody can be refused by such a rule.
func (v *View) concernedWithOthers() bool {
	return v.guards > 0 || v.ruled > 0 || v.hardDefaults()
}

// countRuled counts the entries whose pods have hard rules about others.
func (v *live) countRuled(old, new *QueueEntry) {
	if old != nil && old.class.HasHardTopology() {
		v.ruled--
	}
	if new != nil && new.class.HasHardTopology() {
		v.ruled++
	}
}

func (tx *Tx) markChange(c change) {
	m := markOf(c)
	if !m.Guard && !tx.view.concernedWithOthers() {
		return
	}
	labels := pairsText(c.pod.Labels)
	if len(labels) > maxMarkBytes {
		tx.putMark(domainsKey, &podMark{Domains: true})
		return
	}
	key := string(rune('0'+c.how)) + c.pod.Namespace + "\x00" + labels
	if m.Guard {
		key = "g" + key
	}
	tx.putMark(key, m)
}

// markOf is what a mark remembers of a change.
func markOf(c change) *podMark {
	m := &podMark{Namespace: c.pod.Namespace, How: c.how}
	m.Guard = c.pod.KeepsAway() && c.how != model.PodCame
	if labels := pairsText(c.pod.Labels); labels != "" {
		m.Labels = strings.Split(strings.TrimSuffix(labels, "\x00"), "\x00")
	}
	return m
}

func (tx *Tx) putMark(key string, m *podMark) {
	v := tx.view
	m.Revision = v.Revision()
	if old, ok := v.podMarks.Get(key); ok && old.Revision == m.Revision && old.Below >= m.Below {
		return
	}
	put(tx, v.podMarks, key, m)
	for v.podMarks.Len() > maxPodMarks {
		oldest := ""
		v.podMarksByRevision.Scan("", func(_, key string) bool {
			oldest = key
			return key == forgottenKey
		})
		gone, _ := v.podMarks.Get(oldest)
		remove(tx, v.podMarks, oldest)
		put(tx, v.podMarks, forgottenKey, &podMark{Revision: gone.Revision, Domains: true, Defaults: true, Budgets: true, Below: 1 << 40})
	}
}

// missed reports whether something happened after a revision that could help a
// pod for which no place was found at that revision, and that is to wait in
// this group. Where so much happened that it would take long to find out, it
// says yes.
func (tx *Tx) missed(revision int64, w wakeup, d *Diagnosis) bool {
	v := tx.view
	missed := false
	v.podMarksByRevision.ScanFrom("", markKey(revision+1, ""), func(_ string, key string) bool {
		tx.wakeWork += costAsk
		m, _ := v.podMarks.Get(key)
		missed = tx.wakeWork > maxMissedWork || v.concerns(m, w, d)
		return !missed
	})
	if missed {
		return true
	}
	v.marksByRevision.ScanFrom("", markKey(revision+1, ""), func(_ string, node string) bool {
		tx.wakeWork += costAsk
		if n, ok := v.Nodes.Get(node); ok {
			missed = tx.wakeWork > maxMissedWork || newHelp(v, n).room(tx, w, true) > 0
		}
		return !missed
	})
	return missed
}

// maxMissedWork bounds what an entry looks for that its decisions missed.
const maxMissedWork = 2 * maxWakeWork

// concerns says whether what a mark remembers could help the pods of a group.
// Who was kept away when it was decided need not be so any more, but was told
// (d).
func (v *live) concerns(m *podMark, w wakeup, d *Diagnosis) bool {
	if m.Budgets && v.mindsBudgets(w.class, m.Below) {
		return true
	}
	rules := v.judgedBy(w)
	ruled := rules.HasHardTopology()
	switch {
	case m.Domains && !m.Defaults:
		return ruled || w.alike() || d.keptAway()
	case m.Defaults:
		return len(w.class.Spread) == 0 // it may have been spread when it was decided
	case m.Budgets:
		return false
	case m.Guard && (w.alike() || d.keptAway()):
		return true
	case !ruled:
		return false
	}
	var nsLabels map[string]string
	if ns, ok := v.Namespaces.Get(m.Namespace); ok {
		nsLabels = ns.Labels
	}
	podLabels := make(map[string]string, len(m.Labels)/2)
	for i := 0; i+1 < len(m.Labels); i += 2 {
		podLabels[m.Labels[i]] = m.Labels[i+1]
	}
	return slices.ContainsFunc(hardKinds[:], func(kind model.ReasonKind) bool {
		return rules.MayConcern(kind, m.How, m.Namespace, podLabels, nsLabels)
	})
}
