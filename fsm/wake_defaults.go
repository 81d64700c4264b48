package fsm

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// Pods that the cluster's default spread constraints keep off (TS12, TS14) are
// spread by what the services select that they belong to, and their workload.
// They wait in groups of one class and one workload, for those have their
// constraints in common. A service or a workload that comes, goes or selects
// otherwise wakes the groups that it concerns (QU8): with it gone the rule may
// be lifted, and with it there fewer pods may count.

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

// spreadByDefault says whether default constraints are among what keeps a class
// off: by the number of pods, or because a node is in no domain.
func (d *Diagnosis) spreadByDefault(c *model.Class) bool {
	return d != nil && len(c.Spread) == 0 &&
		(d.names(model.TopologySpread, "", len(d.Reasons)) || d.names(model.TopologyMissing, "", len(d.Reasons)))
}

// defaultsPrefix is where the index of rules between pods has a namespace's
// groups that default constraints keep off. The kind stands for them: of
// itself, what pods do never ends it.
func defaultsPrefix(namespace string) string {
	return placePrefix(model.TopologyMissing, model.TermPlace{Namespace: namespace})
}

// defaultsGroup is the group of those who are kept off by default constraints.
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

// putObject stores a plain object, and follows what that means for waiting
// pods.
func (tx *Tx) putObject(key string, o *Object) {
	old, _ := tx.view.Objects.Get(key)
	put(tx, tx.view.Objects, key, o)
	tx.selectorsChanged(key, old, o)
}

func (tx *Tx) removeObject(key string) {
	old, _ := tx.view.Objects.Get(key)
	remove(tx, tx.view.Objects, key)
	tx.selectorsChanged(key, old, nil)
}

// selectorsChanged wakes those whom a service or workload that came, went or
// selects other pods now can have kept off.
func (tx *Tx) selectorsChanged(key string, old, new *Object) {
	if !tx.view.hardDefaults() {
		return
	}
	is := new
	if new == nil {
		is = old
	}
	namespace := is.Value.GetNamespace()
	if objectKinds[is.Resource].Workload != nil {
		if !equality.Semantic.DeepEqual(workloadSelector(old), workloadSelector(new)) {
			tx.defaultsChanged(namespace, func(w wakeup) bool {
				owner, _ := w.byDefaults()
				return owner == key
			})
		}
		return
	}
	_, before, _ := servicePlace(old)
	_, after, _ := servicePlace(new)
	if !maps.Equal(before, after) {
		has := func(selector map[string]string, c *model.Class) bool {
			return len(selector) > 0 && labels.SelectorFromSet(selector).Matches(labels.Set(c.Labels))
		}
		tx.defaultsChanged(namespace, func(w wakeup) bool { return has(before, w.class) || has(after, w.class) })
	}
}

// defaultsChanged wakes one of each group of a namespace that default
// constraints keep off and that a change concerns.
func (tx *Tx) defaultsChanged(namespace string, concerns func(w wakeup) bool) {
	tx.putMark("d"+namespace, &podMark{Namespace: namespace, Defaults: true})
	var groups []string
	prefix := defaultsPrefix(namespace)
	tx.view.otherWakeups.ScanFrom(prefix, prefix, func(_ string, w wakeup) bool {
		if concerns(w) {
			groups = append(groups, w.group)
		}
		return true
	})
	for _, g := range groups {
		tx.wakeNext(g)
	}
}

// ownerChanged follows a change of the workload that a waiting pod is of.
func (tx *Tx) ownerChanged(key string, old, pod *corev1.Pod) {
	e, ok := tx.view.Queue.Get(key)
	if !ok || spreadOwner(old) == spreadOwner(pod) || len(e.class.Spread) > 0 || !tx.view.hardDefaults() {
		return
	}
	if e.State == berthv1.QueueUnschedulable && e.Diagnosis.spreadByDefault(e.class) {
		tx.wake(e)
		return
	}
	again := *e // a decision under way is about what the pod was
	put(tx, tx.view.Queue, key, &again)
}
