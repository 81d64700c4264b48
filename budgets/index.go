// Package budgets keeps what disruption budgets cover and what their pods add up
// to, and says what a budget allows: its status is exact after every command.
//
// The index knows budgets and pods by Put, at a cost that depends only on the
// budgets that cover a pod. The pods of a new budget are counted in parts, since
// they may be many, and until all are it allows nothing. What it must know of the
// rest of a state it asks State. Nothing here writes to a table: who carries out a
// command writes the statuses of the budgets that were Touched.
package budgets

import (
	"encoding/binary"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// State is what has to be known of the rest of a state.
type State interface {
	// Budget and Pod are the rows under namespace/name.
	Budget(key string) (*policyv1.PodDisruptionBudget, bool)
	Pod(key string) (*corev1.Pod, bool)
	// Scale is how many pods a controller wants, if it is known.
	Scale(o Owner) (int32, bool)
	// TimeUnixNano is the state's time.
	TimeUnixNano() int64
}

// Index is the index. Its zero value is empty and ready. Fork copies it in
// constant time; one that is written to is for one goroutine.
type Index struct {
	rules     store.Tree[*rule]     // rule.keys: which budgets a label leads to
	coverages store.Tree[*Coverage] // key of a budget: what the pods add up to
	scaledBy  store.Tree[int32]     // key of a budget, Owner.key: its pods of that controller
	scales    store.Tree[string]    // Owner.key, key of a budget -> key of the budget
	times     store.Tree[string]    // timeKey -> key of a budget: when the status changes by itself
	// touched are the budgets whose status may have changed, with what their pods
	// added up to before.
	touched store.Tree[*Coverage]
	work    int64
}

// Fork returns an index that starts as a copy. From then on the index itself
// must not be written to, only the fork.
func (x *Index) Fork() Index {
	return Index{
		rules: x.rules.Fork(), coverages: x.coverages.Fork(), scaledBy: x.scaledBy.Fork(), scales: x.scales.Fork(),
		times: x.times.Fork(), touched: x.touched.Fork(), work: x.work,
	}
}

// workCoverage is the work of changing what a budget's pods add up to.
const workCoverage = 6

// Work grows with what was done here, in units of work (fsm/work.go), and depends
// on nothing but what was put.
func (x *Index) Work() int64 { return x.work }

// Coverage is what a budget's pods add up to. It is immutable; it is replaced as
// pods change.
type Coverage struct {
	rule      *rule
	pods      int64
	healthy   int64 // PD3
	unmanaged int64 // pods without a controller
	// scale is how many pods the controllers want in all (PD2); strays are
	// controllers that nobody knows. Both only for rules that count scales.
	scale  int64
	strays int64
	// counting: only the pods with keys up to upTo are counted; see Count.
	counting bool
	upTo     string
}

// missing says whether a pod is not counted yet.
func (c *Coverage) missing(pod *corev1.Pod) bool {
	return c.counting && pod.Namespace+"/"+pod.Name > c.upTo
}

// Put takes in that a budget came, changed or went: nil stands for one that is
// not there. Whose rule is new has its pods counted by Count.
func (x *Index) Put(old, now *policyv1.PodDisruptionBudget) {
	if old != nil {
		if at, ok := firstRunsOut(old); ok {
			x.times.Delete(timeKey(at, keyOf(old)))
		}
	}
	if now == nil {
		x.drop(keyOf(old))
		return
	}
	key := keyOf(now)
	if at, ok := firstRunsOut(now); ok {
		x.times.Set(timeKey(at, key), key)
	}
	x.touch(key)
	x.Cover(now)
}

func keyOf(b *policyv1.PodDisruptionBudget) string { return b.Namespace + "/" + b.Name }

// Cover sees to it that a budget's pods are counted by its rule as it is now: of
// a new rule none is yet.
func (x *Index) Cover(b *policyv1.PodDisruptionBudget) {
	key := keyOf(b)
	c, ok := x.coverages.Get(key)
	if ok && c.rule.isOf(&b.Spec) {
		return
	}
	x.drop(key)
	r := compile(key, &b.Spec)
	for _, k := range r.keys() {
		x.rules.Set(k, r)
	}
	x.coverages.Set(key, &Coverage{rule: r, counting: r.selects()})
}

// drop forgets a budget that goes, or whose rule changes.
func (x *Index) drop(key string) {
	x.touch(key)
	c, ok := x.coverages.Get(key)
	if !ok {
		return
	}
	for _, k := range c.rule.keys() {
		x.rules.Delete(k)
	}
	x.coverages.Delete(key)
	var owners []string
	x.scaledBy.Scan(key+"\x00", func(k string, _ int32) bool {
		owners = append(owners, k[len(key)+1:])
		return true
	})
	for _, owner := range owners {
		x.scaledBy.Delete(key + "\x00" + owner)
		x.scales.Delete(owner + "\x00" + key)
	}
}

// PutPod takes in that a pod came, changed or went. Most changes of a pod mean
// nothing to its budgets, and cost next to nothing.
func (x *Index) PutPod(s State, old, now *corev1.Pod) {
	if x.rules.Len() == 0 {
		return
	}
	if old != nil && now != nil && sameController(old, now) && maps.Equal(old.Labels, now.Labels) {
		was, is := model.Healthy(old), model.Healthy(now)
		if was == is && now.DeletionTimestamp.Equal(old.DeletionTimestamp) {
			return
		}
		for _, r := range x.charged(now.Namespace, now.Labels) {
			c, _ := x.coverages.Get(r.key)
			if c.missing(now) {
				continue
			}
			next := *c
			next.healthy += one(is) - one(was)
			x.set(&next)
		}
		return
	}
	if old != nil {
		for _, r := range x.charged(old.Namespace, old.Labels) {
			x.count(s, r, old, -1)
		}
	}
	if now != nil {
		for _, r := range x.charged(now.Namespace, now.Labels) {
			x.count(s, r, now, 1)
		}
	}
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// count adds a pod to what a rule covers, or takes it away.
func (x *Index) count(s State, r *rule, pod *corev1.Pod, by int64) {
	c, _ := x.coverages.Get(r.key)
	if c.missing(pod) {
		return
	}
	next := *c
	next.pods += by
	next.healthy += by * one(model.Healthy(pod))
	if r.scaled {
		owner, managed := controllerOf(pod)
		if !managed {
			next.unmanaged += by
		} else if x.countOwner(r.key, owner.key(), int32(by)) {
			if scale, known := s.Scale(owner); known {
				next.scale += by * int64(scale)
			} else {
				next.strays += by
			}
		}
	}
	x.set(&next)
}

func (x *Index) set(c *Coverage) {
	x.work += workCoverage
	x.touch(c.rule.key)
	x.coverages.Set(c.rule.key, c)
}

// touch notes that a budget's status has to be looked at, and what its pods
// added up to before.
func (x *Index) touch(key string) {
	if _, touched := x.touched.Get(key); !touched {
		before, _ := x.coverages.Get(key)
		x.touched.Set(key, before)
	}
}

// Touched gives the budgets whose status may have changed since the last time,
// by key and in that order, with what their pods added up to then (nil: they
// were not there), and forgets them. So does time: what was announced by the
// state's time and did not come about.
func (x *Index) Touched(nowUnixNano int64, f func(key string, before *Coverage)) {
	for {
		k, key, ok := x.times.Min()
		if !ok || k >= timeKey(nowUnixNano, "") {
			break
		}
		x.times.Delete(k)
		x.touch(key)
	}
	if x.touched.Len() == 0 {
		return
	}
	touched := x.touched
	x.touched.Clear()
	touched.Scan("", func(key string, before *Coverage) bool {
		f(key, before)
		return true
	})
	x.touched.Clear() // statuses were written, and nothing else has changed
}

// Untouch forgets which budgets were touched: their statuses are as they are.
func (x *Index) Untouch() { x.touched.Clear() }

// announcedFor is how long a disruption that somebody announced in a budget's
// status counts without the pod's end having begun (PD3).
const announcedFor = 2 * time.Minute

func runsOut(announced metav1.Time) int64 { return announced.Add(announcedFor).UnixNano() }

func firstRunsOut(b *policyv1.PodDisruptionBudget) (at int64, ok bool) {
	// order does not matter: it is the least.
	for _, announced := range b.Status.DisruptedPods {
		if t := runsOut(announced); !ok || t < at {
			at, ok = t, true
		}
	}
	return at, ok
}

func timeKey(at int64, key string) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(at))) + key
}

// Describe calls f for everything that the index holds, in a fixed order, as
// text: two indexes of one state describe themselves alike.
func (x *Index) Describe(f func(line string)) {
	x.rules.Scan("", func(at string, r *rule) bool {
		f(fmt.Sprintf("rule %q: %s", at, r))
		return true
	})
	x.coverages.Scan("", func(at string, c *Coverage) bool {
		f(fmt.Sprintf("coverage %q: %s pods %d healthy %d unmanaged %d scale %d strays %d, counting %t up to %q", at, c.rule,
			c.pods, c.healthy, c.unmanaged, c.scale, c.strays, c.counting, c.upTo))
		return true
	})
	x.scaledBy.Scan("", func(at string, n int32) bool {
		f(fmt.Sprintf("scaled by %q: %d", at, n))
		return true
	})
	x.scales.Scan("", func(at, budget string) bool {
		f(fmt.Sprintf("scales %q: %q", at, budget))
		return true
	})
	x.times.Scan("", func(at, budget string) bool {
		f(fmt.Sprintf("time %q: %q", at, budget))
		return true
	})
	x.touched.Scan("", func(at string, _ *Coverage) bool {
		f(fmt.Sprintf("touched %q", at))
		return true
	})
}

// Any says whether there is any budget that covers pods.
func (x *Index) Any() bool { return x.rules.Len() > 0 }

// Of calls f for every budget that covers a pod of these labels, by name, until
// f returns false (PD1).
func (x *Index) Of(s State, namespace string, podLabels map[string]string, f func(b *policyv1.PodDisruptionBudget) bool) {
	rules, _ := x.covering(namespace, podLabels)
	for _, r := range rules {
		if b, ok := s.Budget(r.key); ok && !f(b) {
			return
		}
	}
}

// charged is covering, and counts what it costs as work. It is for whoever writes
// to the index.
func (x *Index) charged(namespace string, podLabels map[string]string) []*rule {
	rules, cost := x.covering(namespace, podLabels)
	x.work += cost
	return rules
}

// covering gives the rules that cover a pod of these labels, in the order of
// the budgets' names, and what it costs to find them.
func (x *Index) covering(namespace string, podLabels map[string]string) (rules []*rule, cost int64) {
	if k, _, ok := x.rules.First(namespace + "/"); !ok || !strings.HasPrefix(k, namespace+"/") {
		return nil, 0 // most namespaces have no budgets
	}
	return x.rulesFor(namespace, podLabels)
}
