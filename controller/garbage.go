package controller

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/owners"
	"github.com/berth-dev/berth/store"
)

const (
	// collectedPerCommand bounds the objects that one command looks at.
	collectedPerCommand = 500
	// judgedAtOnce bounds the objects that one call of Step looks at, which is cheaper than to collect them: the other
	// controllers of the loop wait meanwhile.
	judgedAtOnce = 2_000
)

// Garbage finds the objects that their owner references demand something of:
// dependents whose owner is gone or is being deleted, and owners that wait for
// their dependents. It follows the state's changes; what a change can concern is
// found by index, and judged again in Apply before anything is done.
type Garbage struct {
	queue  []fsm.ObjectRef
	queued map[fsm.ObjectRef]bool
	sweeps []sweep
}

// sweep is how far one scan has come.
type sweep struct {
	scan  scan
	after string
}

// scan calls f for objects in a fixed order, from the one after `after` on;
// without their ref for those that need nothing for sure.
type scan func(v *fsm.View, after string, f func(at string, ref fsm.ObjectRef) bool)

// dependents of one owner.
func dependents(owner owners.ID) scan {
	return func(v *fsm.View, after string, f func(at string, ref fsm.ObjectRef) bool) {
		v.Dependents(owner, after, func(at string, ref fsm.ObjectRef, _ owners.Dependent) bool { return f(at, ref) })
	}
}

// ending are the rows of a table that are being deleted: they may be owners that
// wait.
func ending[T any](table func(v *fsm.View) fsm.Table[T]) scan {
	return func(v *fsm.View, after string, f func(at string, ref fsm.ObjectRef) bool) {
		t := table(v)
		t.ScanFrom("", after+"\x00", func(key string, row T) bool {
			o, resource := ownable(t.Name(), row)
			if o.GetDeletionTimestamp() == nil {
				return f(key, fsm.ObjectRef{})
			}
			return f(key, refOf(resource, o))
		})
	}
}

// Reset forgets everything and looks at everything once: at all that has owners,
// and at all that is an owner that waits.
func (g *Garbage) Reset(*fsm.View) {
	*g = Garbage{queued: map[fsm.ObjectRef]bool{}, sweeps: []sweep{
		{scan: (*fsm.View).ScanDependents},
		{scan: ending(func(v *fsm.View) fsm.Table[*fsm.Object] { return v.Objects })},
		{scan: ending(func(v *fsm.View) fsm.Table[*corev1.Pod] { return v.Pods })},
		{scan: ending(func(v *fsm.View) fsm.Table[*policyv1.PodDisruptionBudget] { return v.Budgets })},
	}}
}

// Observe takes note of changes. The view has them.
func (g *Garbage) Observe(v *fsm.View, changes []store.Change) {
	for i := range changes {
		c := &changes[i]
		old, resource := ownable(c.Table, c.Old)
		now, named := ownable(c.Table, c.New)
		if old == nil && now == nil {
			continue
		}
		if resource == "" {
			resource = named
		}
		g.observe(v, resource, old, now)
	}
}

// ownable is a row as an object that can own or be owned, and its resource.
func ownable(table string, row any) (metav1.Object, string) {
	switch r := row.(type) {
	case *corev1.Pod:
		return r, owners.Pods
	case *fsm.Object:
		return r.Value, r.Resource
	case *policyv1.PodDisruptionBudget:
		return r, fsm.DisruptionBudgets
	case *corev1.Node:
		return r, table
	case *corev1.Namespace:
		return r, table
	case *schedulingv1.PriorityClass:
		return r, table
	}
	return nil, ""
}

func refOf(resource string, o metav1.Object) fsm.ObjectRef {
	return fsm.ObjectRef{Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID())}
}

func (g *Garbage) observe(v *fsm.View, resource string, old, now metav1.Object) {
	if now == nil {
		g.sweep(v, owners.IDOf(old))
		g.release(v, old, nil)
		return
	}
	ref := refOf(resource, now)
	before := []metav1.OwnerReference(nil)
	if old != nil {
		before = old.GetOwnerReferences()
	}
	if after := now.GetOwnerReferences(); !sameOwners(before, after) {
		if len(after) > 0 && needed(v, ref) {
			g.add(ref)
		}
		if old != nil {
			g.release(v, old, after)
		}
	}
	if now.GetDeletionTimestamp() == nil {
		return
	}
	if old == nil || old.GetDeletionTimestamp() == nil || !slices.Equal(old.GetFinalizers(), now.GetFinalizers()) {
		g.sweep(v, owners.IDOf(now))
		if needed(v, ref) {
			g.add(ref)
		}
	}
}

// release has owners looked at that may have waited for a dependent which is
// gone, or names them no longer, or does not hold them up any more.
func (g *Garbage) release(v *fsm.View, old metav1.Object, now []metav1.OwnerReference) {
	refs := old.GetOwnerReferences()
	for i := range refs {
		if slices.ContainsFunc(now, func(r metav1.OwnerReference) bool { return r.UID == refs[i].UID && blocks(&r) == blocks(&refs[i]) }) {
			continue
		}
		if ref, ok := v.OwnerRef(&refs[i], old.GetNamespace()); ok && needed(v, ref) {
			g.add(ref)
		}
	}
}

func blocks(r *metav1.OwnerReference) bool {
	return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// needed: there is something to be done about the object, or to be said.
func needed(v *fsm.View, ref fsm.ObjectRef) bool {
	if v.Judge(ref) != fsm.Keep {
		return true
	}
	_, foreign := v.Foreign(ref)
	return foreign
}

func (g *Garbage) add(ref fsm.ObjectRef) {
	if !g.queued[ref] {
		g.queued[ref] = true
		g.queue = append(g.queue, ref)
	}
}

// sweep has the dependents of an owner looked at, if it has any.
func (g *Garbage) sweep(v *fsm.View, owner owners.ID) {
	all := dependents(owner)
	all(v, "", func(string, fsm.ObjectRef) bool {
		g.sweeps = append(g.sweeps, sweep{scan: all})
		return false
	})
}

// NextUnixNano is never: nothing here depends on time.
func (g *Garbage) NextUnixNano() (int64, bool) { return 0, false }

// Step returns what has to be collected, in at most so many commands that are
// under way at a time.
func (g *Garbage) Step(v *fsm.View, _ int64, most int) []Work {
	var out []Work
	for len(out) < most {
		refs := g.next(v)
		if len(refs) == 0 {
			break
		}
		out = append(out, Work{Commands: []fsm.Command{&fsm.CollectGarbage{Objects: refs}}})
	}
	return out
}

// next are the next objects that something has to be done about.
func (g *Garbage) next(v *fsm.View) []fsm.ObjectRef {
	g.fill(v)
	var refs []fsm.ObjectRef
	for len(g.queue) > 0 && len(refs) < collectedPerCommand {
		ref := g.queue[0]
		g.queue = g.queue[1:]
		delete(g.queued, ref)
		if needed(v, ref) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// fill goes on with the sweeps while the queue is short.
func (g *Garbage) fill(v *fsm.View) {
	left := judgedAtOnce
	goOn := func() bool { return left > 0 && len(g.queue) < collectedPerCommand }
	for goOn() && len(g.sweeps) > 0 {
		w, done := &g.sweeps[0], true
		w.scan(v, w.after, func(at string, ref fsm.ObjectRef) bool {
			if done = goOn(); !done {
				return false
			}
			left--
			w.after = at
			if ref.UID != "" && needed(v, ref) {
				g.add(ref)
			}
			return true
		})
		if done {
			g.sweeps = g.sweeps[1:]
		}
	}
}

// Pending says whether there is more to look at than the last Step did.
func (g *Garbage) Pending() bool { return len(g.queue)+len(g.sweeps) > 0 }

// Settle takes note of what became of a Work: what may not have been done is
// looked at again, and so is an owner that has more dependents than one command
// releases.
func (g *Garbage) Settle(v *fsm.View, o Outcome, _ int64) {
	for _, c := range o.Work.Commands {
		for _, ref := range c.(*fsm.CollectGarbage).Objects {
			if o.Err != nil || v.Judge(ref) != fsm.Keep {
				g.add(ref)
			}
		}
	}
}
