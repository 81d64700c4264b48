package fsm

import (
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// Pods that a rule between pods keeps off every node are woken by what happens
// to other pods (QU8). An index says where the pods are that such a rule is
// about: by namespace, and by a label that they must have. So a pod that
// comes, leaves, begins to leave or changes its labels looks up the groups
// whose rules it matches and no others, and wakes one pod of each that the
// change can have helped; the chain of the group does the rest. Changes of the
// domains themselves, by nodes and their labels, wake one of every group.

// betweenPods says whether the kind of reason is a rule between pods that
// changes of pods can end.
func betweenPods(kind model.ReasonKind) bool {
	switch kind {
	case model.TopologySpread, model.PodAffinity, model.PodAntiAffinity, model.ExistingAntiAffinity:
		return true
	}
	return false
}

// namesOthers says whether a rule between pods is among the reasons.
func (d *Diagnosis) namesOthers() bool {
	return d != nil && slices.ContainsFunc(d.Reasons, func(r ReasonCount) bool { return betweenPods(r.Kind) })
}

// keptAway says whether other pods' rules are among the reasons.
func (d *Diagnosis) keptAway() bool {
	return d != nil && d.names(model.ExistingAntiAffinity, "", len(d.Reasons))
}

// otherKeys are the entry's keys in the index of rules between pods, each once.
func otherKeys(e *QueueEntry) []string {
	byDefault := e.Diagnosis.spreadByDefault(e.class)
	if !byDefault && !e.Diagnosis.namesOthers() {
		return nil
	}
	group := groupOf(e.class, e.Diagnosis, e.SpreadOwner)
	var keys []string
	if byDefault {
		keys = append(keys, defaultsPrefix(e.class.Namespace)+group)
	}
	for i := range e.Diagnosis.Reasons {
		kind := e.Diagnosis.Reasons[i].Kind
		if !betweenPods(kind) || e.Diagnosis.names(kind, "", i) {
			continue
		}
		places := e.class.TermPlaces(kind)
		if len(places) == 0 {
			// Who stands in the way has the rule, or the cluster's default
			// constraints are it: the namespace is all that is known.
			places = []model.TermPlace{{Namespace: e.class.Namespace}}
		}
		for _, p := range places {
			keys = append(keys, placePrefix(kind, p)+group)
		}
	}
	return keys
}

func placePrefix(kind model.ReasonKind, p model.TermPlace) string {
	return string(rune(kind)) + p.Namespace + "\x00" + p.Label + "\x00" + p.Value + "\x00"
}

// change is what happened to a pod on a node, or to a nomination to it. pod is
// what it asks for, as it was when it left or as it is now.
type change struct {
	how  model.PodChange
	pod  *model.Class
	node string
}

// otherChanged follows a change of a pod: it wakes whom it can help, and is
// remembered for those who are being decided.
func (tx *Tx) otherChanged(c change) {
	v := tx.view
	tx.markChange(c)
	if v.otherWakeups.Len() == 0 {
		return
	}
	for _, w := range v.concernedBy(c) {
		rules := v.judgedBy(w.wakeup)
		if w.kind == model.TopologySpread && len(rules.TermPlaces(w.kind)) == 0 || v.helped(&w.wakeup, rules, c) {
			tx.wakeNext(w.group)
		}
	}
}

// helped says whether a change of a pod, which is counted already, can have
// helped a group, whose pods are judged by the rules.
func (v *live) helped(w *wakeup, rules *model.Class, c change) bool {
	return rules.HelpedBy(c.how) &&
		v.topology().Judge(rules).Helped(c.node, c.pod, c.how, v.mayEvict(w.class), !w.alike())
}

// concerned is a group that waits for a change of other pods.
type concerned struct {
	wakeup
	kind model.ReasonKind
}

// concernedBy are the groups whose rules are about the pod, and those that it
// kept away.
func (v *live) concernedBy(c change) []concerned {
	var out []concerned
	seen := map[string]bool{}
	look := func(kind model.ReasonKind, p model.TermPlace) {
		prefix := placePrefix(kind, p)
		v.otherWakeups.ScanFrom(prefix, prefix, func(_ string, w wakeup) bool {
			if !seen[w.group] {
				seen[w.group] = true
				out = append(out, concerned{w, kind})
			}
			return true
		})
	}
	places := c.pod.PlacesOf()
	for _, kind := range []model.ReasonKind{model.TopologySpread, model.PodAffinity, model.PodAntiAffinity} {
		for _, p := range places {
			look(kind, p)
		}
	}
	if c.how == model.PodCame || c.how == model.PodLeaving {
		return out
	}
	for _, ns := range c.pod.GuardedNamespaces() {
		if ns != model.AnyNamespace {
			look(model.ExistingAntiAffinity, model.TermPlace{Namespace: ns})
			continue
		}
		prefix := string(rune(model.ExistingAntiAffinity))
		v.otherWakeups.ScanFrom(prefix, prefix, func(_ string, w wakeup) bool {
			out = append(out, concerned{w, model.ExistingAntiAffinity})
			return true
		})
	}
	return out
}

// mayEvict says whether there may be pods that a pod of the class could evict.
func (v *live) mayEvict(c *model.Class) bool {
	return !c.NeverPreempts && *v.SchedulerConfig().Spec.Preemption.Enabled && v.topology().LowestPriority() < c.Priority
}

// domainsChanged wakes one of every group that waits for a rule between pods:
// what the domains are has changed. With taintsOnly it wakes only those for
// whom taints decide that.
func (tx *Tx) domainsChanged(taintsOnly bool) {
	if tx.view.concernedWithOthers() {
		tx.putMark(domainsKey, &podMark{Domains: true})
	}
	var groups []string
	seen := map[string]bool{}
	tx.view.otherWakeups.Scan("", func(key string, w wakeup) bool {
		_, byDefaults := w.byDefaults()
		if betweenPods(model.ReasonKind(key[0])) && (!taintsOnly || w.class.HonorsTaints() || !w.class.HasHardTopology() || byDefaults) && !seen[w.group] {
			seen[w.group] = true
			groups = append(groups, w.group)
		}
		return true
	})
	for _, g := range groups {
		tx.wakeNext(g)
	}
}

// nodeRemoved wakes those whom the pods or the place of a node kept away.
func (tx *Tx) nodeRemoved() { tx.domainsChanged(false) }

// namespaceChanged follows a change of a namespace's labels, which terms may
// choose namespaces by.
func (tx *Tx) namespaceChanged() { tx.domainsChanged(false) }

// podRelabelled follows a change of what a pod on a node is.
func (tx *Tx) podRelabelled(node string, was, is *model.Class) {
	tx.otherChanged(change{model.PodLeft, was, node})
	tx.otherChanged(change{model.PodCame, is, node})
}

// --- what happened while a decision was on its way

// podMark remembers the last change of pods with the same labels, so that a
// decision made before it is not believed (QU8: events in flight).
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
	// Defaults: not a pod but by what default constraints select pods of the
	// namespace changed.
	Defaults bool `msgpack:"defaults,omitempty"`
}

// maxPodMarks bounds the marks; what is forgotten counts as having happened.
const maxPodMarks = 1024

// Keys of the marks that are of no pod.
const domainsKey, forgottenKey = "domains", "forgotten"

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

// concernedWithOthers says whether any pod, waiting or placed, has a hard rule
// about others: without one nobody can be refused by such a rule.
func (v *View) concernedWithOthers() bool {
	if v.guards > 0 || v.ruled > 0 {
		return true
	}
	return v.hardDefaults()
}

func (tx *Tx) markChange(c change) {
	guard := c.pod.KeepsAway() && (c.how == model.PodLeft || c.how == model.PodGone)
	if !guard && !tx.view.concernedWithOthers() {
		return
	}
	key := string(rune('0'+c.how)) + c.pod.Namespace + "\x00" + pairsText(c.pod.Labels)
	if guard {
		key = "g" + key
	}
	tx.putMark(key, markOf(c))
}

// markOf is what a mark remembers of a change.
func markOf(c change) *podMark {
	m := &podMark{Namespace: c.pod.Namespace, How: c.how}
	m.Guard = c.pod.KeepsAway() && (c.how == model.PodLeft || c.how == model.PodGone)
	if labels := pairsText(c.pod.Labels); labels != "" {
		m.Labels = strings.Split(strings.TrimSuffix(labels, "\x00"), "\x00")
	}
	return m
}

func (tx *Tx) putMark(key string, m *podMark) {
	v := tx.view
	m.Revision = v.Revision()
	if old, ok := v.podMarks.Get(key); ok && old.Revision == m.Revision {
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
		put(tx, v.podMarks, forgottenKey, &podMark{Revision: gone.Revision, Domains: true})
	}
}

// missedOthers reports whether a pod changed after a revision in a way that
// could help a class refused for the reasons that the diagnosis names.
func (v *live) missedOthers(revision int64, c *model.Class, d *Diagnosis) bool {
	if !d.namesOthers() && !d.spreadByDefault(c) {
		return false
	}
	missed := false
	v.podMarksByRevision.ScanFrom("", markKey(revision+1, ""), func(_ string, key string) bool {
		m, _ := v.podMarks.Get(key)
		missed = v.concerns(m, c, d)
		return !missed
	})
	return missed
}

func (v *live) concerns(m *podMark, c *model.Class, d *Diagnosis) bool {
	switch {
	case m.Domains:
		return true
	case m.Defaults:
		return m.Namespace == c.Namespace && d.spreadByDefault(c)
	}
	var nsLabels map[string]string
	if ns, ok := v.Namespaces.Get(m.Namespace); ok {
		nsLabels = ns.Labels
	}
	podLabels := make(map[string]string, len(m.Labels)/2)
	for i := 0; i+1 < len(m.Labels); i += 2 {
		podLabels[m.Labels[i]] = m.Labels[i+1]
	}
	return slices.ContainsFunc(d.Reasons, func(r ReasonCount) bool {
		if r.Kind == model.ExistingAntiAffinity {
			return m.Guard
		}
		return betweenPods(r.Kind) && c.MayConcern(r.Kind, m.How, m.Namespace, podLabels, nsLabels)
	})
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

// wakeNext wakes the first waiting pod of a group.
func (tx *Tx) wakeNext(group string) {
	prefix := waitPrefix(group, berthv1.QueueUnschedulable)
	if k, e, ok := tx.view.waiting.First(prefix); ok && strings.HasPrefix(k, prefix) {
		tx.wake(e)
	}
}
