// Package owners keeps the index of owner references: who names whom as an
// owner, and how many pods a controller has, by their labels. What the
// references demand is worked out elsewhere; nothing here looks at a table.
//
// An owner is known by its namespace and UID. A reference reaches objects of
// its own namespace and of none, whatever UID it names, so nobody's pods count
// for, or are deleted with, the object of another namespace.
package owners

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// ID is an owner. One without a namespace owns in all of them.
type ID struct {
	Namespace string
	UID       types.UID
}

// IDOf is an object as an owner.
func IDOf(o metav1.Object) ID { return ID{o.GetNamespace(), o.GetUID()} }

// Key names an object that can have owners.
type Key struct{ Resource, Namespace, Name string }

// Pods is the resource of pods in a Key.
const Pods = "pods"

// Dependent is an owner reference as its owner sees it.
type Dependent struct {
	Controller bool // the owner is the controller
	Blocks     bool // the owner's deletion in the foreground waits for it
}

// Tally counts the pods of one controller that have the same labels.
type Tally struct {
	Labels map[string]string
	// Pods are all; of them Active ones have not ended and are not ending,
	// Ready ones are active and ready, Terminating ones are ending.
	Pods, Active, Ready, Terminating int32
}

// Index is the index. Its zero value is empty and ready. Fork copies it in
// constant time; one that is written to is for one goroutine.
type Index struct {
	dependents store.Tree[Dependent] // UID, rank, namespace, resource, name: who names the UID as an owner
	tallies    store.Tree[*Tally]    // the controller's UID, namespace, labels: how its pods are
	orphans    store.Tree[struct{}]  // namespace/name of pods that are active and have no controller
	there      store.Tree[struct{}]  // UID, namespace, resource, name of what was put
}

// Fork returns an index that starts as a copy. From then on the index itself
// must not be written to, only the fork.
func (x *Index) Fork() Index {
	return Index{dependents: x.dependents.Fork(), tallies: x.tallies.Fork(), orphans: x.orphans.Fork(), there: x.there.Fork()}
}

// Put takes in that an object of a resource other than pods came, changed or
// went: nil stands for one that is not there.
func (x *Index) Put(resource string, old, now metav1.Object) {
	var was, is belongings
	var oldUID, nowUID types.UID
	at := Key{Resource: resource}
	if old != nil {
		was, oldUID = belongingsOf(old), old.GetUID()
		at.Namespace, at.Name = old.GetNamespace(), old.GetName()
	}
	if now != nil {
		is, nowUID = belongingsOf(now), now.GetUID()
		at.Namespace, at.Name = now.GetNamespace(), now.GetName()
	}
	x.refer(at, was, is)
	if oldUID == nowUID {
		return
	}
	if oldUID != "" {
		x.there.Delete(keyOf(oldUID, at))
	}
	if nowUID != "" {
		x.there.Set(keyOf(nowUID, at), struct{}{})
	}
}

// Foreign says whether an object that was put has the UID and is in another
// namespace, and none is in this one.
func (x *Index) Foreign(id ID) bool {
	foreign := false
	x.there.Scan(ID{UID: id.UID}.prefix(), func(at string, _ struct{}) bool {
		foreign = split(at).Namespace != id.Namespace
		return foreign
	})
	return foreign
}

// PutPod is Put for a pod, whose key is namespace/name. Most changes of a pod are none
// of what is counted here, and cost next to nothing.
func (x *Index) PutPod(key string, old, now *corev1.Pod) {
	was, is := standingOf(old), standingOf(now)
	pod := now
	if pod == nil {
		pod = old
	}
	x.refer(Key{Pods, pod.Namespace, pod.Name}, was.belongings, is.belongings)
	if was.orphan() != is.orphan() {
		if is.orphan() {
			x.orphans.Set(key, struct{}{})
		} else {
			x.orphans.Delete(key)
		}
	}
	switch {
	case was.controller == "" && is.controller == "":
	case was.controller != is.controller || !maps.Equal(old.Labels, now.Labels):
		x.tally(was.controller, old, was.counts, none)
		x.tally(is.controller, now, none, is.counts)
	case was.counts != is.counts:
		x.tally(is.controller, now, was.counts, is.counts)
	}
}

// belongings are what an object says of its owners.
type belongings struct {
	owners []metav1.OwnerReference
	waits  bool // it is being deleted in the foreground itself
}

func belongingsOf(o metav1.Object) belongings {
	return belongings{o.GetOwnerReferences(), WaitsForDependents(o)}
}

// WaitsForDependents says whether an object is being deleted in the foreground.
func WaitsForDependents(o metav1.Object) bool {
	return o.GetDeletionTimestamp() != nil && slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents)
}

// Ranks sort the dependents of an owner by what its deletion in the foreground
// has to do with them, since it asks again and again whether one is left: those
// that it waits for and that wait for dependents of their own, the others that it
// waits for, and the rest.
const rankWaits, rankBlocks, rankRest = "0", "1", "2"

func ranks() [3]string { return [...]string{rankWaits, rankBlocks, rankRest} }

func (b *belongings) rank(r *metav1.OwnerReference) string {
	switch {
	case r.BlockOwnerDeletion == nil || !*r.BlockOwnerDeletion:
		return rankRest
	case b.waits:
		return rankWaits
	}
	return rankBlocks
}

// each calls f for every owner that is named, once: the last reference to it
// counts.
func (b *belongings) each(f func(r *metav1.OwnerReference)) {
	for i := range b.owners {
		r := &b.owners[i]
		if !slices.ContainsFunc(b.owners[i+1:], func(o metav1.OwnerReference) bool { return o.UID == r.UID }) {
			f(r)
		}
	}
}

// refer takes in an object's owner references. They are immutable and shared
// by the states of an object, so one slice means that nothing has changed.
func (x *Index) refer(at Key, was, is belongings) {
	if len(was.owners) == len(is.owners) && was.waits == is.waits && (len(was.owners) == 0 || &was.owners[0] == &is.owners[0]) {
		return
	}
	was.each(func(r *metav1.OwnerReference) { x.dependents.Delete(keyOfDependent(r.UID, was.rank(r), at)) })
	is.each(func(r *metav1.OwnerReference) {
		x.dependents.Set(keyOfDependent(r.UID, is.rank(r), at), Dependent{
			Controller: r.Controller != nil && *r.Controller,
			Blocks:     r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion,
		})
	})
}

func keyOfDependent(uid types.UID, rank string, at Key) string {
	b := append(ID{UID: uid}.appendPrefix(make([]byte, 0, keyRoom)), rank...)
	b = append(append(b, at.Namespace...), 0)
	return string(append(append(append(b, at.Resource...), '/'), at.Name...))
}

// prefixOf begins the keys of an owner's dependents of a rank.
func (id ID) prefixOf(rank string) string {
	prefix := ID{UID: id.UID}.prefix() + rank
	if id.Namespace == "" {
		return prefix
	}
	return prefix + id.Namespace + "\x00"
}

// keyRoom is enough for most keys, which are put together in memory of a fixed size,
// so that nothing but themselves is allocated.
const keyRoom = 192

// prefix begins the keys of what belongs to an owner.
func (id ID) prefix() string { return string(id.appendPrefix(make([]byte, 0, keyRoom))) }

// appendPrefix: a UID in a reference is whatever its author wrote, and must not be
// taken for parts of a key.
func (id ID) appendPrefix(b []byte) []byte {
	for _, c := range []byte(id.UID) {
		switch c {
		case 0:
			b = append(b, 1, 1)
		case 1:
			b = append(b, 1, 2)
		default:
			b = append(b, c)
		}
	}
	b = append(b, 0)
	if id.Namespace == "" {
		return b
	}
	return append(append(b, id.Namespace...), 0)
}

func keyOf(uid types.UID, at Key) string {
	return ID{UID: uid}.prefix() + at.Namespace + "\x00" + at.Resource + "/" + at.Name
}

// split is the inverse of what keyOf appends.
func split(at string) Key {
	i := strings.LastIndexByte(at, 0)
	namespace := at[:i]
	namespace = namespace[strings.LastIndexByte(namespace, 0)+1:]
	resource, name, _ := strings.Cut(at[i+1:], "/")
	return Key{resource, namespace, name}
}

// splitDependent is the inverse of what keyOfDependent appends.
func splitDependent(at string) Key {
	k := split(at)
	k.Namespace = k.Namespace[1:] // the rank
	return k
}

// Dependents calls f for every object that names an owner, from the one after
// `after` on ("" for the first), in a fixed order, until f returns false. at is
// what to go on after.
func (x *Index) Dependents(owner ID, after string, f func(at string, k Key, d Dependent) bool) {
	goOn := true
	for _, rank := range ranks() {
		prefix := owner.prefixOf(rank)
		x.dependents.ScanFrom(prefix, max(prefix, next(after)), func(at string, d Dependent) bool {
			goOn = f(at, splitDependent(at), d)
			return goOn
		})
		if !goOn {
			return
		}
	}
}

// Waiting calls f for those of an owner's dependents that its deletion in the
// foreground waits for and that are being deleted in the foreground themselves,
// until f returns false.
func (x *Index) Waiting(owner ID, f func(k Key) bool) {
	x.dependents.Scan(owner.prefixOf(rankWaits), func(at string, _ Dependent) bool { return f(splitDependent(at)) })
}

// Blocked says whether an owner's deletion in the foreground has to wait: for
// dependents that wait themselves, and for others.
func (x *Index) Blocked(owner ID) (byWaiting, byOthers bool) {
	return x.anyOf(owner, rankWaits), x.anyOf(owner, rankBlocks)
}

func (x *Index) anyOf(owner ID, rank string) bool {
	prefix := owner.prefixOf(rank)
	at, _, ok := x.dependents.First(prefix)
	return ok && strings.HasPrefix(at, prefix)
}

// Scan calls f for every object that has owners, once for each of them, from
// the one after `after` on.
func (x *Index) Scan(after string, f func(at string, k Key) bool) {
	x.dependents.ScanFrom("", next(after), func(at string, _ Dependent) bool { return f(at, splitDependent(at)) })
}

func next(after string) string {
	if after == "" {
		return ""
	}
	return after + "\x00"
}

// Tallies calls f for the counts of a controller's pods, one for each set of
// labels that they have.
func (x *Index) Tallies(controller ID, f func(t *Tally) bool) {
	x.tallies.Scan(controller.prefix(), func(_ string, t *Tally) bool { return f(t) })
}

// Orphans calls f for the names of a namespace's pods that are active and have
// no controller, in order.
func (x *Index) Orphans(namespace string, f func(name string) bool) {
	prefix := namespace + "/"
	x.orphans.Scan(prefix, func(key string, _ struct{}) bool { return f(key[len(prefix):]) })
}

// Orphan says whether the pod under namespace/name is active and has no
// controller.
func (x *Index) Orphan(key string) bool {
	_, ok := x.orphans.Get(key)
	return ok
}

// standing is what the index knows of a pod.
type standing struct {
	belongings
	controller types.UID
	counts     counts
}

// counts says as what a pod counts: is there, active, ready, terminating.
type counts [4]bool

// none is as what a pod counts that is not there.
var none counts

func (s *standing) orphan() bool { return s.counts[1] && s.controller == "" }

func standingOf(pod *corev1.Pod) standing {
	if pod == nil {
		return standing{}
	}
	s := standing{belongings: belongingsOf(pod)}
	if c := ControllerOf(pod); c != nil {
		s.controller = c.UID
	}
	active := Active(pod)
	s.counts = counts{true, active, active && model.Ready(pod), model.Terminating(pod) && !model.Terminal(pod)}
	return s
}

// Active says whether a pod counts for its controller: it has not ended and is
// not ending (WC4).
func Active(pod *corev1.Pod) bool { return !model.Terminal(pod) && !model.Terminating(pod) }

// ControllerOf is the reference to an object's controller, or nil. It must not
// be changed.
func ControllerOf(o metav1.Object) *metav1.OwnerReference {
	refs := o.GetOwnerReferences()
	for i := range refs {
		if refs[i].Controller != nil && *refs[i].Controller {
			return &refs[i]
		}
	}
	return nil
}

// appendLabels writes labels down in one way, as labels.Set does.
func appendLabels(b []byte, labels map[string]string) []byte {
	keys := make([]string, 0, 16)
	// order does not matter: they are sorted.
	for key := range labels {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for i, key := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, key...), '='), labels[key]...)
	}
	return b
}

// tally takes in as what a pod of a controller counted, and counts now.
func (x *Index) tally(controller types.UID, pod *corev1.Pod, was, is counts) {
	if controller == "" {
		return
	}
	key := string(appendLabels(ID{pod.Namespace, controller}.appendPrefix(make([]byte, 0, keyRoom)), pod.Labels))
	sum := Tally{Labels: pod.Labels}
	if t, ok := x.tallies.Get(key); ok {
		sum = *t
	}
	for i, n := range []*int32{&sum.Pods, &sum.Active, &sum.Ready, &sum.Terminating} {
		if was[i] {
			*n--
		}
		if is[i] {
			*n++
		}
	}
	if sum.Pods == 0 {
		x.tallies.Delete(key)
		return
	}
	x.tallies.Set(key, &sum)
}

// Add adds another tally.
func (t *Tally) Add(o *Tally) {
	t.Pods += o.Pods
	t.Active += o.Active
	t.Ready += o.Ready
	t.Terminating += o.Terminating
}

// Describe calls f for every entry, in a fixed order, as text: two indexes of
// one state describe themselves alike.
func (x *Index) Describe(f func(line string)) {
	x.dependents.Scan("", func(at string, d Dependent) bool {
		f("dependent " + at + flags(d.Controller, d.Blocks))
		return true
	})
	x.tallies.Scan("", func(at string, t *Tally) bool {
		f("tally " + at + " " + t.String())
		return true
	})
	x.orphans.Scan("", func(key string, _ struct{}) bool {
		f("orphan " + key)
		return true
	})
	x.there.Scan("", func(at string, _ struct{}) bool {
		f("there " + at)
		return true
	})
}

func flags(controller, blocks bool) string {
	out := ""
	if controller {
		out += " controller"
	}
	if blocks {
		out += " blocks"
	}
	return out
}

// String gives the counts alone.
func (t *Tally) String() string {
	return fmt.Sprintf("pods=%d active=%d ready=%d terminating=%d", t.Pods, t.Active, t.Ready, t.Terminating)
}
