// Package quotas keeps what the objects of each namespace use, and says what resource
// quotas allow: a quota's usage is exact after every change.
//
// The index knows pods, items, numbers of objects and quotas by Put. What pods and items use is summed
// up by namespace, class and what else scopes ask for, whether there is a quota or
// not, so a quota that is new needs no walk over the pods. Nothing here looks at a table
// or writes to one: who carries out a command asks Refuse before a change that could
// make more be used, and writes the statuses of the quotas that were Touched.
package quotas

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/store"
)

// Index is the index. Its zero value is empty and ready. Fork copies it in constant
// time; one that is written to is for one goroutine.
type Index struct {
	quotas  store.Tree[*quota]   // namespace/name
	sums    store.Tree[amounts]  // sumKey, classKey: what the pods use
	items   store.Tree[amounts]  // Item.key: what those that are not pods use
	numbers store.Tree[int64]    // namespace/what is counted
	touched store.Tree[struct{}] // keys of quotas whose status may have changed
	work    int64
}

// Fork returns an index that starts as a copy. From then on the index itself must not
// be written to, only the fork.
func (x *Index) Fork() Index {
	return Index{quotas: x.quotas.Fork(), sums: x.sums.Fork(), items: x.items.Fork(), numbers: x.numbers.Fork(), touched: x.touched.Fork(), work: x.work}
}

// What is done for quotas, in units of work (fsm/work.go).
const (
	workQuota = 10 // to change or ask one
	workSum   = 3  // to read one sum for a new one
)

// Work grows with what was done here for quotas, and depends on nothing but what was
// put and asked.
func (x *Index) Work() int64 { return x.work }

func sumKey(namespace string, k kind) string {
	return namespace + "/" + string([]byte{'0' + byte(k)})
}

func classKey(namespace string, k kind, class string) string {
	return sumKey(namespace, k) + "/" + class
}

// PutPod takes in that a pod of a namespace came, changed or went: nil stands for one
// that is not there.
func (x *Index) PutPod(namespace string, was, is *Pod) {
	for _, p := range [...]struct {
		pod *Pod
		f   func(a, b amounts) amounts
	}{{was, amounts.minus}, {is, amounts.plus}} {
		if p.pod == nil {
			continue
		}
		k := p.pod.kind()
		sum(&x.sums, sumKey(namespace, k), p.pod.uses(), p.f)
		if p.pod.class != "" { // those without are what is left
			sum(&x.sums, classKey(namespace, k, p.pod.class), p.pod.uses(), p.f)
		}
	}
	x.recount(namespace, func(q *quota) (less, more amounts) {
		if was != nil && q.scopes.has(was) {
			less = was.uses()
		}
		if is != nil && q.scopes.has(is) {
			more = is.uses()
		}
		return less, more
	})
}

// recount takes off what the quotas of a namespace have used, and adds, what change says of each.
func (x *Index) recount(namespace string, change func(q *quota) (less, more amounts)) {
	x.of(namespace, func(q *quota) bool {
		x.work += workQuota
		if less, more := change(q); len(less)+len(more) > 0 {
			x.quotas.Set(q.key, q.with(q.used.minus(less).plus(more)))
			x.touched.Set(q.key, struct{}{})
		}
		return true
	})
}

// sum changes what is summed up under a key by what somebody uses.
func sum(sums *store.Tree[amounts], key string, uses amounts, f func(a, b amounts) amounts) {
	before, _ := sums.Get(key)
	if after := f(before, uses); len(after) == 0 {
		sums.Delete(key)
	} else {
		sums.Set(key, after)
	}
}

// of calls f for the quotas of a namespace, by name, until f returns false. They may be
// replaced meanwhile.
func (x *Index) of(namespace string, f func(q *quota) bool) {
	if x.quotas.Len() == 0 {
		return
	}
	var all []*quota
	x.quotas.Scan(namespace+"/", func(_ string, q *quota) bool {
		if q.namespace == namespace {
			all = append(all, q)
		}
		return true
	})
	for _, q := range all {
		if !f(q) {
			return
		}
	}
}

// Add takes in that there are so many more objects of a sort in a namespace (Count).
func (x *Index) Add(namespace, what string, more int64) {
	key := namespace + "/" + what
	before, _ := x.numbers.Get(key)
	if before+more == 0 {
		x.numbers.Delete(key)
	} else {
		x.numbers.Set(key, before+more)
	}
	x.of(namespace, func(q *quota) bool {
		x.work += workQuota
		if slices.ContainsFunc(q.hard, func(l limit) bool { return !l.pods && l.own == what }) {
			x.touched.Set(q.key, struct{}{})
		}
		return true
	})
}

// Put takes in that a quota came, changed or went: nil stands for one that is not
// there. With devices, numbers of devices by class are known (versions of the rules from 26 on).
func (x *Index) Put(old, now *corev1.ResourceQuota, devices bool) {
	if now == nil {
		key := keyOf(old)
		x.quotas.Delete(key)
		x.touched.Delete(key)
		return
	}
	key := keyOf(now)
	x.touched.Set(key, struct{}{})
	if q, ok := x.quotas.Get(key); ok && equality.Semantic.DeepEqual(q.spec, &now.Spec) {
		return
	}
	q := compile(now, devices)
	q.used = x.usedIn(now.Namespace, &q.scopes).plus(x.itemsIn(now.Namespace, &q.scopes))
	x.quotas.Set(key, q)
}

// usedIn is what the pods use that are meant by scopes.
func (x *Index) usedIn(namespace string, s *scopes) (used amounts) {
	classes := slices.Sorted(maps.Keys(s.classes))
	for k := range kinds {
		if s.kinds&(1<<k) == 0 {
			continue
		}
		if s.others {
			x.work += workSum
			sum, _ := x.sums.Get(sumKey(namespace, k))
			used = used.plus(sum)
		}
		for _, class := range classes {
			x.work += workSum
			sum := x.usedBy(namespace, k, class)
			if s.others {
				used = used.minus(sum)
			} else {
				used = used.plus(sum)
			}
		}
	}
	return used
}

// usedBy is what the pods of one class use, or those of none.
func (x *Index) usedBy(namespace string, k kind, class string) amounts {
	if class != "" {
		sum, _ := x.sums.Get(classKey(namespace, k, class))
		return sum
	}
	rest, _ := x.sums.Get(sumKey(namespace, k))
	x.sums.Scan(classKey(namespace, k, ""), func(_ string, sum amounts) bool {
		x.work += workSum
		rest = rest.minus(sum)
		return true
	})
	return rest
}

// Any says whether a namespace has a quota.
func (x *Index) Any(namespace string) bool {
	if x.quotas.Len() == 0 {
		return false
	}
	key, _, ok := x.quotas.First(namespace + "/")
	return ok && strings.HasPrefix(key, namespace+"/")
}

// RefusePod says in Kubernetes' words why a pod cannot be what it is to be: a quota
// of its namespace does not allow it. "" is that all do. was is the pod as it is, nil
// for a new one: what grows is asked.
func (x *Index) RefusePod(pod *corev1.Pod, was, is *Pod) (why string) {
	x.of(pod.Namespace, func(q *quota) bool {
		x.work += workQuota
		if !q.scopes.has(is) || !q.concernsPods() {
			return true
		}
		if was == nil {
			if missing := mustSpecify(pod, q.hard); missing != "" {
				why = "failed quota: " + q.name + ": must specify " + missing
				return false
			}
		}
		var before amounts
		if was != nil && q.scopes.has(was) {
			before = was.uses()
		}
		why = x.exceeded(q, func(l *limit) total {
			if !l.pods {
				return total{}
			}
			return growth(is.uses().get(l.own), before.get(l.own))
		})
		return why == ""
	})
	return why
}

// RefuseManyPods is RefusePod for so many new pods that are equal, of which one is
// allowed.
func (x *Index) RefuseManyPods(pod *corev1.Pod, is *Pod, count int64) (why string) {
	x.of(pod.Namespace, func(q *quota) bool {
		x.work += workQuota
		if q.scopes.has(is) {
			why = x.exceeded(q, func(l *limit) total {
				if !l.pods {
					return total{}
				}
				return is.uses().get(l.own).times(count)
			})
		}
		return why == ""
	})
	return why
}

// Room is how many of so many new pods that are equal the quotas allow.
func (x *Index) Room(namespace string, is *Pod, count int64) int64 {
	x.of(namespace, func(q *quota) bool {
		x.work += workQuota
		if !q.scopes.has(is) {
			return true
		}
		for i := range q.hard {
			l := &q.hard[i]
			each := is.uses().get(l.own)
			if !l.pods || each == (total{}) {
				continue
			}
			// The largest number that is not too many.
			count = int64(sort.Search(int(count), func(n int) bool {
				return x.used(q, l).plus(each.times(int64(n) + 1)).more(l.most)
			}))
		}
		return count > 0
	})
	return count
}

// RefuseObjects is RefusePod for so many more objects of some sorts. No scope means them; by scoped, quotas that have
// scopes are asked all the same, as if nothing was used of them (versions of the rules below 26).
func (x *Index) RefuseObjects(namespace string, more map[string]int64, scoped bool) (why string) {
	x.of(namespace, func(q *quota) bool {
		x.work += workQuota
		if !q.scopes.any && !scoped {
			return true
		}
		why = x.exceeded(q, func(l *limit) total {
			if n := more[l.own]; !l.pods && n > 0 {
				return total{lo: uint64(n)}
			}
			return total{}
		})
		return why == ""
	})
	return why
}

// exceeded tells which limits would be exceeded by so much more of each; "" is none.
func (x *Index) exceeded(q *quota, more func(l *limit) total) string {
	var requested, used, limited []string
	add := func(list *[]string, name string, n resource.Quantity) { *list = append(*list, name+"="+n.String()) }
	for i := range q.hard {
		l := &q.hard[i]
		delta := more(l)
		if delta == (total{}) {
			continue
		}
		if now := x.used(q, l); now.plus(delta).more(l.most) {
			add(&requested, l.name, l.quantityOf(delta))
			add(&used, l.name, l.quantityOf(now))
			add(&limited, l.name, l.quantity)
		}
	}
	if requested == nil {
		return ""
	}
	return fmt.Sprintf("exceeded quota: %s, requested: %s, used: %s, limited: %s", q.name,
		strings.Join(requested, ","), strings.Join(used, ","), strings.Join(limited, ","))
}

// used is how much of a limit is used.
func (x *Index) used(q *quota, l *limit) total {
	used := q.used.get(l.own)
	if l.pods || !q.scopes.any { // no scope means what is in numbers
		return used
	}
	n, _ := x.numbers.Get(q.namespace + "/" + l.own)
	return used.plus(total{lo: uint64(max(n, 0))})
}

// Status is what a quota's status has to say. Of a resource that nobody counts it says
// nothing.
func (x *Index) Status(key string) corev1.ResourceQuotaStatus {
	q, ok := x.quotas.Get(key)
	if !ok {
		return corev1.ResourceQuotaStatus{}
	}
	s := corev1.ResourceQuotaStatus{Hard: q.spec.Hard.DeepCopy()}
	for i := range q.hard {
		if s.Used == nil {
			s.Used = corev1.ResourceList{}
		}
		l := &q.hard[i]
		used := l.quantityOf(x.used(q, l))
		s.Used[corev1.ResourceName(l.name)] = resource.MustParse(used.String()) // as it is read back
	}
	return s
}

// Touched gives the keys of the quotas whose status may have changed since the last
// time, in their order, and forgets them. f may Put what it writes.
func (x *Index) Touched(f func(key string)) {
	if x.touched.Len() == 0 {
		return
	}
	touched := x.touched
	x.touched.Clear()
	touched.Scan("", func(key string, _ struct{}) bool {
		f(key)
		return true
	})
	x.touched.Clear() // statuses were written, and nothing else has changed
}

// Untouch forgets which quotas were touched: their statuses are as they are.
func (x *Index) Untouch() { x.touched.Clear() }

// Describe calls f for everything that the index holds, in a fixed order, as text: two
// indexes of one state describe themselves alike.
func (x *Index) Describe(f func(line string)) {
	x.quotas.Scan("", func(key string, q *quota) bool {
		f(fmt.Sprintf("quota %q: %v, used %v", key, q.hard, q.used))
		return true
	})
	x.sums.Scan("", func(key string, a amounts) bool {
		f(fmt.Sprintf("sum %q: %v", key, a))
		return true
	})
	x.items.Scan("", func(key string, a amounts) bool {
		f(fmt.Sprintf("items %q: %v", key, a))
		return true
	})
	x.numbers.Scan("", func(key string, n int64) bool {
		f(fmt.Sprintf("number %q: %d", key, n))
		return true
	})
	x.touched.Scan("", func(key string, _ struct{}) bool {
		f(fmt.Sprintf("touched %q", key))
		return true
	})
}
