package queue

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/store"
)

// Order is what the order of the queue depends on.
type Order struct {
	// FIFO: the queue ignores priorities, because it is told to (QU1) or because
	// priority as a whole is switched off (PC11).
	FIFO bool `msgpack:"fifo,omitempty"`
	// SecondsPerPoint is how much waiting a point of priority is worth; 0: no time
	// makes up for priority.
	SecondsPerPoint int64 `msgpack:"seconds_per_point,omitempty"`
}

// OrderOf is the order that a configuration with every default filled in asks
// for.
func OrderOf(spec *berthv1.SchedulerConfigurationSpec) Order {
	return Order{
		FIFO:            spec.Queue == berthv1.QueueFIFO || !*spec.Preemption.Enabled,
		SecondsPerPoint: int64(*spec.Aging.SecondsPerPoint),
	}
}

// key sorts by priority, highest first, then by first enqueueing, then by UID
// (QU2, ours); in FIFO order the priority is left out. With aging, a point of
// priority is worth so many seconds of waiting: all pods age alike, so their
// order, by the time of enqueueing less what the priority is worth, never
// changes while they wait.
func (o Order) key(e *Entry) string {
	b := make([]byte, 0, 8+8+48) // a UID has 36; of a fixed size, so that only the key is allocated
	switch {
	case o.FIFO:
		b = append(b, 0, 0, 0, 0)
	case o.SecondsPerPoint > 0:
		const millis = 1_000_000
		worth := int64(e.Priority) * o.SecondsPerPoint * 1000
		b = binary.BigEndian.AppendUint64(b, uint64(e.EnqueuedUnixNano/millis-worth)^1<<63)
	default:
		b = appendPriorityDescending(b, e.Priority)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(e.EnqueuedRevision))
	return string(append(b, e.UID...))
}

func appendPriorityDescending(b []byte, priority int32) []byte {
	return binary.BigEndian.AppendUint32(b, ^(uint32(priority) ^ 1<<31))
}

// ordering is the queue in one order.
type ordering struct {
	order    Order
	active   store.Tree[*Entry] // Order.key
	backoffs store.Tree[*Entry] // end of backoff and Order.key
	waiting  store.Tree[*Entry] // waitKey: those that wait for a change
	blocked  store.Tree[*Entry] // Order.key: those of them that wait for nobody's end
}

func (q *ordering) fork() ordering {
	return ordering{
		order: q.order, active: q.active.Fork(), backoffs: q.backoffs.Fork(), waiting: q.waiting.Fork(), blocked: q.blocked.Fork(),
	}
}

// Reorder has the queue go over to another order (QU1, QU2). All that are in it
// are given their place in that by Sort, so many at a time; until it has done so
// the queue goes by the order that it has.
func (x *Index) Reorder(o Order) {
	if x.sorting && x.next.order == o {
		return
	}
	x.next, x.sorting, x.sorted = ordering{}, false, ""
	switch {
	case x.now.order == o:
	case x.now.active.Len()+x.now.backoffs.Len()+x.now.waiting.Len() == 0:
		x.now.order = o
	default:
		x.next.order, x.sorting = o, true
	}
}

// Resume is Reorder for an index without entries, of a queue that was in the midst
// of it: it goes by one order, and those with keys up to sorted have their place
// in the next.
func (x *Index) Resume(now, next Order, sorted string) {
	x.now.order, x.next.order, x.sorting, x.sorted = now, next, true, sorted
}

// Sorting says by which order the queue goes, and whether it is going over to
// another one.
func (x *Index) Sorting() (now Order, is bool) { return x.now.order, x.sorting }

// Sort goes on with what Reorder began, for half of the time that an entry of the
// log has. scan gives the queue's entries by key, from one on. It returns the last
// key that has its place in the next order, and whether the queue goes by that now.
func (x *Index) Sort(work *Work, scan func(from string, f func(key string, e *Entry) bool)) (sorted string, done bool) {
	done = true
	from := x.sorted
	if from != "" {
		from += "\x00" // the one after it
	}
	scan(from, func(key string, e *Entry) bool {
		if work.HalfOver() {
			done = false
			return false
		}
		work.Charge(costSort)
		x.next.enter(e)
		x.sorted = key
		return true
	})
	sorted = x.sorted
	if done {
		x.now, x.next, x.sorting, x.sorted = x.next, ordering{}, false, ""
	}
	return sorted, done
}

// inNext says whether an entry has its place in the next order, too.
func (x *Index) inNext(e *Entry) bool { return x.sorting && e.Key() <= x.sorted }

func (x *Index) enter(e *Entry) {
	x.now.enter(e)
	if x.inNext(e) {
		x.next.enter(e)
	}
}

func (x *Index) leave(e *Entry) {
	x.now.leave(e)
	if x.inNext(e) {
		x.next.leave(e)
	}
}

// enter puts an entry where its state says.
func (q *ordering) enter(e *Entry) {
	k := q.order.key(e)
	switch e.State {
	case berthv1.QueueActive:
		q.active.Set(k, e)
	case berthv1.QueueBackoff, berthv1.QueueSetAside:
		q.backoffs.Set(backoffKey(e, k), e)
	case berthv1.QueueUnschedulable, berthv1.QueueNominated:
		q.waiting.Set(waitKey(e, k), e)
		if e.State == berthv1.QueueUnschedulable {
			q.blocked.Set(k, e)
		}
	}
}

// leave takes it out again.
func (q *ordering) leave(e *Entry) {
	k := q.order.key(e)
	switch e.State {
	case berthv1.QueueActive:
		q.active.Delete(k)
	case berthv1.QueueBackoff, berthv1.QueueSetAside:
		q.backoffs.Delete(backoffKey(e, k))
	case berthv1.QueueUnschedulable, berthv1.QueueNominated:
		q.waiting.Delete(waitKey(e, k))
		q.blocked.Delete(k)
	}
}

// backoffKey sorts by the end of the backoff, those that may be taken early
// before those that may not.
func backoffKey(e *Entry, orderKey string) string {
	b := []byte{earlyBackoff}
	if !e.mayBeEarly() {
		b[0] = lateBackoff
	}
	return string(binary.BigEndian.AppendUint64(b, uint64(e.BackoffUntilUnixNano))) + orderKey
}

// What keys of backoffs begin with.
const earlyBackoff, lateBackoff = 'e', 'l'

// mayBeEarly: the pod only found no place. Who failed by an error, was refused
// or set aside serves his time (QU7).
func (e *Entry) mayBeEarly() bool {
	return e.State == berthv1.QueueBackoff && e.Errors == 0 && e.Refusals == 0
}

// maxDue bounds how many pods return from their backoff in one pass; the rest
// follow in the next.
const maxDue = 4096

// maxEarly bounds how many pods are taken out of their backoff at once.
const maxEarly = 64

// Ready calls f for the entries that may be tried now, in queue order, until f
// returns false: active ones, and those whose backoff has ended. When there
// are none of these, entries that still back off for having found no place
// (but not for an error) take their turn, for there is nothing better to do
// (QU7).
func (x *Index) Ready(nowUnixNano int64, f func(e *Entry) bool) {
	due := x.dueBackoffs(nowUnixNano)
	if len(due) == 0 && x.now.active.Len() == 0 {
		due = x.earlyBackoffs()
	}
	x.merge(due, f)
}

// InOrder calls f for every entry that is or will be tried without further
// cause, in queue order, whatever its backoff, with its position counted from
// 1.
func (x *Index) InOrder(f func(position int32, e *Entry) bool) {
	backoffs := make([]ordered, 0, x.now.backoffs.Len())
	x.now.backoffs.Scan("", func(_ string, e *Entry) bool {
		backoffs = append(backoffs, ordered{x.now.order.key(e), e})
		return true
	})
	slices.SortFunc(backoffs, compareOrder)
	n := int32(0)
	x.merge(backoffs, func(e *Entry) bool {
		n++
		return f(n, e)
	})
}

// SortKey puts entries in the order in which they are tried, as bytes.
func (x *Index) SortKey(e *Entry) string { return x.now.order.key(e) }

type ordered struct {
	key   string
	entry *Entry
}

// merge calls f for the active entries and others, in queue order, until f
// returns false.
func (x *Index) merge(others []ordered, f func(e *Entry) bool) {
	goOn := true
	x.now.active.Scan("", func(k string, e *Entry) bool {
		for len(others) > 0 && others[0].key < k && goOn {
			goOn = f(others[0].entry)
			others = others[1:]
		}
		goOn = goOn && f(e)
		return goOn
	})
	for _, o := range others {
		if !goOn {
			return
		}
		goOn = f(o.entry)
	}
}

func (x *Index) dueBackoffs(nowUnixNano int64) []ordered {
	var due []ordered
	for _, kind := range []byte{earlyBackoff, lateBackoff} {
		most := len(due) + maxDue
		x.now.backoffs.ScanFrom(string(kind), string(kind), func(_ string, e *Entry) bool {
			if e.BackoffUntilUnixNano > nowUnixNano || len(due) == most {
				return false
			}
			due = append(due, ordered{x.now.order.key(e), e})
			return true
		})
	}
	slices.SortFunc(due, compareOrder)
	return due
}

func (x *Index) earlyBackoffs() []ordered {
	var early []ordered
	x.now.backoffs.ScanFrom(string(earlyBackoff), string(earlyBackoff), func(_ string, e *Entry) bool {
		early = append(early, ordered{x.now.order.key(e), e})
		return len(early) < maxEarly
	})
	slices.SortFunc(early, compareOrder)
	return early
}

func compareOrder(a, b ordered) int { return strings.Compare(a.key, b.key) }

// NextBackoffUnixNano is when the next pod returns from its backoff, and
// whether there is one.
func (x *Index) NextBackoffUnixNano() (int64, bool) {
	var least int64
	found := false
	for _, kind := range []byte{earlyBackoff, lateBackoff} {
		x.now.backoffs.ScanFrom(string(kind), string(kind), func(_ string, e *Entry) bool {
			if !found || e.BackoffUntilUnixNano < least {
				found, least = true, e.BackoffUntilUnixNano
			}
			return false
		})
	}
	return least, found
}
