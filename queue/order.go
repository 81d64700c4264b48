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
	// fifo: the queue ignores priorities, because it is told to (QU1) or because
	// priority as a whole is switched off (PC11).
	fifo            bool
	secondsPerPoint int64
}

// OrderOf is the order that a configuration with every default filled in asks
// for.
func OrderOf(spec *berthv1.SchedulerConfigurationSpec) Order {
	return Order{
		fifo:            spec.Queue == berthv1.QueueFIFO || !*spec.Preemption.Enabled,
		secondsPerPoint: int64(*spec.Aging.SecondsPerPoint),
	}
}

// key sorts by priority, highest first, then by first enqueueing, then by UID
// (QU2, ours); in FIFO order the priority is left out. With aging, a point of
// priority is worth so many seconds of waiting: all pods age alike, so their
// order, by the time of enqueueing less what the priority is worth, never
// changes while they wait.
func (o Order) key(e *Entry) string {
	b := make([]byte, 0, 8+8+len(e.UID))
	switch {
	case o.fifo:
		b = append(b, 0, 0, 0, 0)
	case o.secondsPerPoint > 0:
		const millis = 1_000_000
		worth := int64(e.Priority) * o.secondsPerPoint * 1000
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

// Reorder sorts all entries by another order (QU1, QU2), if it is another.
func (x *Index) Reorder(o Order) {
	if x.order == o {
		return
	}
	x.order = o
	var entries []*Entry
	for _, m := range []*store.Tree[*Entry]{&x.active, &x.backoffs, &x.waiting} {
		m.Scan("", func(_ string, e *Entry) bool {
			entries = append(entries, e)
			return true
		})
		m.Clear()
	}
	x.blocked.Clear()
	for _, e := range entries {
		x.enter(e)
	}
}

// enter puts an entry where its state says.
func (x *Index) enter(e *Entry) {
	k := x.order.key(e)
	switch e.State {
	case berthv1.QueueActive:
		x.active.Set(k, e)
	case berthv1.QueueBackoff, berthv1.QueueSetAside:
		x.backoffs.Set(backoffKey(e, k), e)
	case berthv1.QueueUnschedulable, berthv1.QueueNominated:
		x.waiting.Set(waitKey(e, k), e)
		if e.State == berthv1.QueueUnschedulable {
			x.blocked.Set(k, e)
		}
	}
}

// leave takes it out again.
func (x *Index) leave(e *Entry) {
	k := x.order.key(e)
	switch e.State {
	case berthv1.QueueActive:
		x.active.Delete(k)
	case berthv1.QueueBackoff, berthv1.QueueSetAside:
		x.backoffs.Delete(backoffKey(e, k))
	case berthv1.QueueUnschedulable, berthv1.QueueNominated:
		x.waiting.Delete(waitKey(e, k))
		x.blocked.Delete(k)
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
	if len(due) == 0 && x.active.Len() == 0 {
		due = x.earlyBackoffs()
	}
	x.merge(due, f)
}

// InOrder calls f for every entry that is or will be tried without further
// cause, in queue order, whatever its backoff, with its position counted from
// 1.
func (x *Index) InOrder(f func(position int32, e *Entry) bool) {
	backoffs := make([]ordered, 0, x.backoffs.Len())
	x.backoffs.Scan("", func(_ string, e *Entry) bool {
		backoffs = append(backoffs, ordered{x.order.key(e), e})
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
func (x *Index) SortKey(e *Entry) string { return x.order.key(e) }

type ordered struct {
	key   string
	entry *Entry
}

// merge calls f for the active entries and others, in queue order, until f
// returns false.
func (x *Index) merge(others []ordered, f func(e *Entry) bool) {
	goOn := true
	x.active.Scan("", func(k string, e *Entry) bool {
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
		x.backoffs.ScanFrom(string(kind), string(kind), func(_ string, e *Entry) bool {
			if e.BackoffUntilUnixNano > nowUnixNano || len(due) == most {
				return false
			}
			due = append(due, ordered{x.order.key(e), e})
			return true
		})
	}
	slices.SortFunc(due, compareOrder)
	return due
}

func (x *Index) earlyBackoffs() []ordered {
	var early []ordered
	x.backoffs.ScanFrom(string(earlyBackoff), string(earlyBackoff), func(_ string, e *Entry) bool {
		early = append(early, ordered{x.order.key(e), e})
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
		x.backoffs.ScanFrom(string(kind), string(kind), func(_ string, e *Entry) bool {
			if !found || e.BackoffUntilUnixNano < least {
				found, least = true, e.BackoffUntilUnixNano
			}
			return false
		})
	}
	return least, found
}
