package fsm

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// Pods with rules about others wait under the places of the pods that the rules
// are about: a namespace, and a label that they must have. So a pod that comes,
// leaves, begins to leave or changes its labels looks up the groups whose rules
// it matches and no others, and wakes one pod of each that the change can have
// helped; the chain of the group does the rest.

// hardKinds are the rules of a class between pods, of which pods are helped by
// what other pods do.
var hardKinds = [...]model.ReasonKind{model.TopologySpread, model.PodAffinity, model.PodAntiAffinity}

// otherKeys are the keys of an entry of a group in the index of rules between
// pods, each once.
func otherKeys(e *QueueEntry, group string) []string {
	var keys []string
	if e.ByDefaults {
		keys = append(keys, placePrefix(model.TopologySpread, model.TermPlace{Namespace: e.class.Namespace})+group)
	}
	if e.KeptAway {
		// Who stands in the way has the rule: the namespace is all that is known.
		keys = append(keys, placePrefix(model.ExistingAntiAffinity, model.TermPlace{Namespace: e.class.Namespace})+group)
	}
	if e.class.HasHardTopology() {
		for _, kind := range hardKinds {
			for _, p := range e.class.TermPlaces(kind) {
				keys = append(keys, placePrefix(kind, p)+group)
			}
		}
	}
	return keys
}

func placePrefix(kind model.ReasonKind, p model.TermPlace) string {
	return string(rune(kind)) + p.Namespace + "\x00" + p.Label + "\x00" + p.Value + "\x00"
}

// defaultsGroup is the group of those who are spread by default constraints:
// they have one class and one workload, and so their constraints, in common.
func defaultsGroup(c *model.Class, owner string) string { return c.Signature + "\x00" + owner + "\x00" }

// byDefaults says whether a group is one of those, and whose pods they are.
func (w wakeup) byDefaults() (owner string, ok bool) {
	rest, ok := strings.CutPrefix(w.group, w.class.Signature)
	if !ok || rest == "" {
		return "", false
	}
	return strings.Trim(rest, "\x00"), true
}

// judgedBy is the class by which the pods of a group are kept off nodes.
func (v *live) judgedBy(w wakeup) *model.Class {
	if w.rules != nil {
		return w.rules
	}
	if _, ok := w.byDefaults(); !ok {
		return w.class
	}
	for _, state := range []berthv1.QueueState{berthv1.QueueUnschedulable, berthv1.QueueNominated} {
		prefix := waitPrefix(w.group, state)
		if k, e, ok := v.waiting.First(prefix); ok && strings.HasPrefix(k, prefix) {
			return v.ruledClassOf(e.Key(), w.class)
		}
	}
	return w.class
}

// change is what happened to a pod on a node, or to a nomination to it. pod is
// what it asks for, as it was when it left or as it is now.
type change struct {
	how  model.PodChange
	pod  *model.Class
	node string
}

// otherPods wakes whom the changes of pods can have helped, and remembers them
// for those who are being decided.
func (w *wakes) otherPods() {
	tx := w.tx
	came := int64(0)
	for _, c := range w.pods {
		tx.markChange(c)
		if c.how == model.PodCame {
			came++
		}
	}
	if tx.view.otherWakeups.Len() == 0 {
		return
	}
	for _, c := range w.pods {
		if tx.wakeWork >= maxWakeWork {
			w.scope.Ruled = true
			return
		}
		for _, at := range tx.concernedBy(c) {
			if !w.woken[at.group] && tx.helped(&at, c, came) {
				if w.woken == nil {
					w.woken = map[string]bool{}
				}
				w.woken[at.group] = true
				tx.wakeWaiting(at.group)
			}
		}
	}
}

// helped says whether a change of a pod, which is counted already, can have
// helped a group. came is how many pods came with it.
func (tx *Tx) helped(w *wakeup, c change, came int64) bool {
	v := tx.view
	tx.wakeWork += costAsk
	rules := v.judgedBy(*w)
	if !rules.HelpedBy(c.how) {
		return false
	}
	if !tx.mayJudge(w.group) {
		return true
	}
	return v.topology().Judge(rules).Helped(model.Event{
		Node: c.node, Pod: c.pod, How: c.how, Came: came, Evicting: v.mayEvict(w.class), ByItself: !w.alike(),
	})
}

// concernedBy are the groups whose rules are about the pod, and those that it
// kept away, each once.
func (tx *Tx) concernedBy(c change) []wakeup {
	v := tx.view
	var out []wakeup
	seen := map[string]bool{}
	look := func(prefix string) {
		tx.wakeWork += costLook
		v.otherWakeups.ScanFrom(prefix, prefix, func(_ string, w wakeup) bool {
			tx.wakeWork++
			if !seen[w.group] {
				seen[w.group] = true
				out = append(out, w)
			}
			return true
		})
	}
	places := c.pod.PlacesOf()
	for _, kind := range hardKinds {
		for _, p := range places {
			look(placePrefix(kind, p))
		}
	}
	if c.how == model.PodCame {
		return out
	}
	for _, ns := range c.pod.GuardedNamespaces() {
		if ns == model.AnyNamespace {
			look(string(rune(model.ExistingAntiAffinity)))
		} else {
			look(placePrefix(model.ExistingAntiAffinity, model.TermPlace{Namespace: ns}))
		}
	}
	return out
}

// mayEvict says whether there may be pods that a pod of the class could evict.
func (v *live) mayEvict(c *model.Class) bool {
	return !c.NeverPreempts && *v.SchedulerConfig().Spec.Preemption.Enabled && v.topology().LowestPriority() < c.Priority
}

// maxJudged bounds the groups for whose rules the counters are asked in one
// entry: to count for the first time whom a rule is about costs as much as there
// are pods. Others count as helped.
const maxJudged = 64

// mayJudge says whether the counters may be asked about a group.
func (tx *Tx) mayJudge(group string) bool {
	if tx.judged[group] {
		return true
	}
	if len(tx.judged) >= maxJudged {
		return false
	}
	if tx.judged == nil {
		tx.judged = map[string]bool{}
	}
	tx.judged[group] = true
	return true
}

// selectorEvent is a service or a workload (owner is its key) that came, went,
// or selects other pods now.
type selectorEvent struct {
	namespace, owner string
	before, after    map[string]string // of a service
}

// wakeDefaults wakes one of each group that default constraints spread, and
// whose constraints such events can have changed.
func (tx *Tx) wakeDefaults(events []selectorEvent) {
	if len(events) == 0 {
		return
	}
	tx.putMark(defaultsKey, &podMark{Defaults: true})
	for _, e := range events {
		selects := func(selector map[string]string, c *model.Class) bool {
			return len(selector) > 0 && labels.SelectorFromSet(selector).Matches(labels.Set(c.Labels))
		}
		var groups []string
		prefix := placePrefix(model.TopologySpread, model.TermPlace{Namespace: e.namespace})
		tx.view.otherWakeups.Scan(prefix, func(_ string, w wakeup) bool {
			tx.wakeWork += costAsk
			owner, ok := w.byDefaults()
			if ok && (e.owner != "" && owner == e.owner || selects(e.before, w.class) || selects(e.after, w.class)) {
				groups = append(groups, w.group)
			}
			return true
		})
		for _, g := range groups {
			tx.wakeWaiting(g)
		}
	}
}

// hardDefaults says whether the cluster's default constraints can keep a pod
// off a node; the built-in ones cannot (TS13).
func (v *View) hardDefaults() bool {
	constraints, system := v.spreadDefaults()
	if system {
		return false
	}
	for i := range constraints {
		if constraints[i].WhenUnsatisfiable == corev1.DoNotSchedule {
			return true
		}
	}
	return false
}

// ownerChanged follows a change of the workload that a waiting pod is of.
func (tx *Tx) ownerChanged(pod *corev1.Pod) {
	key := PodKey(pod.Namespace, pod.Name)
	e, ok := tx.view.Queue.Get(key)
	if !ok || len(e.class.Spread) > 0 || !tx.view.hardDefaults() {
		return
	}
	if e.State == berthv1.QueueUnschedulable {
		tx.wake(e)
		return
	}
	again := *e // a decision under way is about what the pod was
	put(tx, tx.view.Queue, key, &again)
}
