package fsm

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// QueueEntry is a pod that waits for a place. Every pod of Berth's scheduler
// that is not bound, not ended and not on its way out has exactly one.
type QueueEntry struct {
	Namespace string    `msgpack:"namespace"`
	Name      string    `msgpack:"name"`
	UID       types.UID `msgpack:"uid"`
	// Revision is the entry's own last change.
	Revision int64 `msgpack:"revision"`

	State berthv1.QueueState `msgpack:"state"`
	// Priority is the pod's (AD1), so that the queue needs no other table.
	Priority int32 `msgpack:"priority"`
	// EnqueuedRevision is the revision at which the pod first entered the
	// queue. It is kept for as long as the entry lives, so a retry never
	// loses its turn (QU2).
	EnqueuedRevision int64 `msgpack:"enqueued_revision"`
	EnqueuedUnixNano int64 `msgpack:"enqueued_unix_nano"`

	// Attempts counts the attempts that found no place, Errors the consecutive
	// ones that ended in an error (QU5).
	Attempts            int32 `msgpack:"attempts,omitempty"`
	Errors              int32 `msgpack:"errors,omitempty"`
	LastAttemptRevision int64 `msgpack:"last_attempt_revision,omitempty"`
	// Refusals counts the decisions about the pod, one after another, that Apply
	// refused, and Refusal is why the last one was (see Tx.setBack).
	Refusals int32  `msgpack:"refusals,omitempty"`
	Refusal  string `msgpack:"refusal,omitempty"`
	// SetAside is what went wrong when the pod was last set aside, and
	// TimesSetAside how often that happened in a row; nil and 0 once an attempt
	// had an outcome again.
	SetAside      *SetAside `msgpack:"set_aside,omitempty"`
	TimesSetAside int32     `msgpack:"times_set_aside,omitempty"`
	// BackoffUntilUnixNano is the time before which the pod is not tried
	// again. An entry in Backoff or SetAside becomes ready when the time has
	// come, without any command.
	BackoffUntilUnixNano int64 `msgpack:"backoff_until_unix_nano,omitempty"`
	BlockedSinceUnixNano int64 `msgpack:"blocked_since_unix_nano,omitempty"`
	// Diagnosis is why the last attempt found no place. Entries that failed
	// for the same reasons share it; it must not be changed.
	Diagnosis *Diagnosis `msgpack:"diagnosis,omitempty"`
	// KeptAway: when the last attempt found no place, other pods' required
	// anti-affinity kept the pod away from some node.
	KeptAway bool `msgpack:"kept_away,omitempty"`
	// ByDefaults: in the last attempt the pod was spread by the cluster's default
	// constraints, SpreadOwner being the key of the workload by whose selector,
	// among others (TS12).
	ByDefaults  bool   `msgpack:"by_defaults,omitempty"`
	SpreadOwner string `msgpack:"spread_owner,omitempty"`

	class *model.Class
}

// Diagnosis is the outcome of an attempt that found no place: how many nodes
// refused for which reason. A node that refuses for several reasons counts
// under each of them.
type Diagnosis struct {
	Nodes   int32         `msgpack:"nodes"`
	Reasons []ReasonCount `msgpack:"reasons,omitempty"`
	// Preemption says why no eviction could help, when one was considered.
	Preemption string `msgpack:"preemption,omitempty"`
	// Message is the Kubernetes wording of it all (QU10).
	Message string `msgpack:"message"`
	// Budgets are the disruption budgets that forbid evictions that would have
	// helped, by key: the pod is tried again when one of them allows more.
	Budgets []string `msgpack:"budgets,omitempty"`
}

// ReasonCount is how many nodes gave a reason.
type ReasonCount struct {
	Kind     model.ReasonKind `msgpack:"kind"`
	Resource string           `msgpack:"resource,omitempty"`
	Text     string           `msgpack:"text"`
	Nodes    int32            `msgpack:"nodes"`
	// ShortBy is the least that was missing on any node, in the resource's
	// base unit (milli-CPU, bytes, or a count).
	ShortBy int64  `msgpack:"short_by,omitempty"`
	Detail  string `msgpack:"detail,omitempty"`
}

// Key is the pod's key.
func (e *QueueEntry) Key() string { return PodKey(e.Namespace, e.Name) }

// Class is what the pod asks for.
func (e *QueueEntry) Class() *model.Class { return e.class }

var queueTable = &tableDef[*QueueEntry]{
	Name:    "queueentries",
	Marshal: func(e *QueueEntry) ([]byte, error) { return store.Marshal(e) },
	Unmarshal: func(b []byte) (*QueueEntry, error) {
		e := new(QueueEntry)
		return e, store.Unmarshal(b, e)
	},
	Revise: func(e *QueueEntry, revision int64) { e.Revision = revision },
	Size:   queueEntryBytes,
	Complete: func(v *live, key string, e *QueueEntry) (err error) {
		e.Diagnosis = v.cache.diagnosis(e.Diagnosis)
		e.class, err = v.classOfWaiting(key)
		return err
	},
	Index: indexQueue,
}

// classOfWaiting is the class of the pod that a restored row is about.
func (v *live) classOfWaiting(key string) (*model.Class, error) {
	pod, ok := v.Pods.Get(key)
	if !ok {
		return nil, errors.New("its pod is not in the snapshot")
	}
	return v.cache.class(pod), nil
}

func indexQueue(v *live, _ string, old, new *QueueEntry, hadOld, hasNew bool) {
	v.countRuled(old, new)
	if hadOld {
		k := v.orderKey(old)
		switch old.State {
		case berthv1.QueueActive:
			v.order.Delete(k)
		case berthv1.QueueBackoff, berthv1.QueueSetAside:
			v.backoffs.Delete(backoffKey(old, k))
		case berthv1.QueueUnschedulable, berthv1.QueueNominated:
			v.waiting.Delete(waitKey(old, k))
			v.blockedPods.Delete(k)
			v.watch(old, -1)
		}
	}
	if !hasNew {
		return
	}
	v.indexOrder(new)
	if new.State == berthv1.QueueUnschedulable || new.State == berthv1.QueueNominated {
		v.watch(new, 1)
	}
}

func (v *live) indexOrder(e *QueueEntry) {
	k := v.orderKey(e)
	switch e.State {
	case berthv1.QueueActive:
		v.order.Set(k, e)
	case berthv1.QueueBackoff, berthv1.QueueSetAside:
		v.backoffs.Set(backoffKey(e, k), e)
	case berthv1.QueueUnschedulable, berthv1.QueueNominated:
		v.waiting.Set(waitKey(e, k), e)
		if e.State == berthv1.QueueUnschedulable {
			v.blockedPods.Set(k, e)
		}
	}
}

// backoffKey sorts by the end of the backoff, those that may be taken early
// before those that may not.
func backoffKey(e *QueueEntry, orderKey string) string {
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
func (e *QueueEntry) mayBeEarly() bool {
	return e.State == berthv1.QueueBackoff && e.Errors == 0 && e.Refusals == 0
}

// orderKey sorts by priority, highest first, then by first enqueueing, then by
// UID (QU2, ours); in FIFO order the priority is left out. With aging, a point
// of priority is worth so many seconds of waiting: all pods age alike, so their
// order, by the time of enqueueing less what the priority is worth, never
// changes while they wait.
func (v *View) orderKey(e *QueueEntry) string {
	b := make([]byte, 0, 8+8+len(e.UID))
	switch how := orderOf(v.SchedulerConfig()); {
	case how.fifo:
		b = append(b, 0, 0, 0, 0)
	case how.secondsPerPoint > 0:
		const millis = 1_000_000
		worth := int64(e.Priority) * how.secondsPerPoint * 1000
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
func (v *View) Ready(nowUnixNano int64, f func(e *QueueEntry) bool) {
	due := v.dueBackoffs(nowUnixNano)
	if len(due) == 0 && v.order.Len() == 0 {
		due = v.earlyBackoffs()
	}
	stopped := false
	v.order.Scan("", func(k string, e *QueueEntry) bool {
		for len(due) > 0 && due[0].key < k && !stopped {
			stopped = !f(due[0].entry)
			due = due[1:]
		}
		if !stopped {
			stopped = !f(e)
		}
		return !stopped
	})
	for _, d := range due {
		if stopped {
			return
		}
		stopped = !f(d.entry)
	}
}

type ordered struct {
	key   string
	entry *QueueEntry
}

func (v *View) dueBackoffs(nowUnixNano int64) []ordered {
	var due []ordered
	for _, kind := range []byte{earlyBackoff, lateBackoff} {
		most := len(due) + maxDue
		v.backoffs.ScanFrom(string(kind), string(kind), func(_ string, e *QueueEntry) bool {
			if e.BackoffUntilUnixNano > nowUnixNano || len(due) == most {
				return false
			}
			due = append(due, ordered{v.orderKey(e), e})
			return true
		})
	}
	slices.SortFunc(due, compareOrder)
	return due
}

func (v *View) earlyBackoffs() []ordered {
	var early []ordered
	v.backoffs.ScanFrom(string(earlyBackoff), string(earlyBackoff), func(_ string, e *QueueEntry) bool {
		early = append(early, ordered{v.orderKey(e), e})
		return len(early) < maxEarly
	})
	slices.SortFunc(early, compareOrder)
	return early
}

func compareOrder(a, b ordered) int { return strings.Compare(a.key, b.key) }

// NextBackoffUnixNano is when the next pod returns from its backoff, and
// whether there is one.
func (v *View) NextBackoffUnixNano() (int64, bool) {
	var least int64
	found := false
	for _, kind := range []byte{earlyBackoff, lateBackoff} {
		v.backoffs.ScanFrom(string(kind), string(kind), func(_ string, e *QueueEntry) bool {
			if !found || e.BackoffUntilUnixNano < least {
				found, least = true, e.BackoffUntilUnixNano
			}
			return false
		})
	}
	return least, found
}

// InOrder calls f for every entry that is or will be tried without further
// cause, in queue order, whatever its backoff, with its position counted from
// 1.
func (v *View) InOrder(f func(position int32, e *QueueEntry) bool) {
	backoffs := make([]ordered, 0, v.backoffs.Len())
	v.backoffs.Scan("", func(_ string, e *QueueEntry) bool {
		backoffs = append(backoffs, ordered{v.orderKey(e), e})
		return true
	})
	slices.SortFunc(backoffs, compareOrder)
	n, goOn := int32(0), true
	visit := func(e *QueueEntry) {
		n++
		goOn = goOn && f(n, e)
	}
	v.order.Scan("", func(k string, e *QueueEntry) bool {
		for len(backoffs) > 0 && backoffs[0].key < k && goOn {
			visit(backoffs[0].entry)
			backoffs = backoffs[1:]
		}
		if goOn {
			visit(e)
		}
		return goOn
	})
	for _, b := range backoffs {
		if !goOn {
			return
		}
		visit(b.entry)
	}
}
