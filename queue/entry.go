package queue

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// Entry is a pod that waits for a place. Every pod of Berth's scheduler that is
// not bound, not ended and not on its way out has exactly one. An entry that is
// stored must not be changed; what becomes of it is another one.
type Entry struct {
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
	// Refusals counts the decisions about the pod, one after another, that were
	// refused, and Refusal is why the last one was (see Refused).
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
	// Claims are the names of the claims of volumes that the pod has, and of those of devices, when the last
	// attempt found no place: whatever helps it need not help others of its class.
	Claims []string `msgpack:"claims,omitempty"`

	class    *model.Class
	promised Place
}

// Place is what a pod is promised while it waits: the node that it is nominated
// to, or on which room is kept for it (Reserved); none: "".
type Place struct {
	Node     string
	Reserved bool
}

// NewEntry is the entry of a pod that enters the queue (QU4), or waits at its
// gates until it may. revision is that of the change.
func NewEntry(pod *corev1.Pod, class *model.Class, revision, nowUnixNano int64) *Entry {
	e := &Entry{
		Namespace:        pod.Namespace,
		Name:             pod.Name,
		UID:              pod.UID,
		State:            berthv1.QueueActive,
		Priority:         model.Priority(pod),
		EnqueuedRevision: revision,
		EnqueuedUnixNano: nowUnixNano,
		class:            class,
	}
	if model.Gated(pod) {
		e.State = berthv1.QueueGated
	}
	return e
}

// Key is the pod's key.
func (e *Entry) Key() string { return e.Namespace + "/" + e.Name }

// Class is what the pod asks for.
func (e *Entry) Class() *model.Class { return e.class }

// SetClass says what the pod asks for, of an entry that is not stored yet.
func (e *Entry) SetClass(c *model.Class) { e.class = c }

// Promised is what the pod was promised when the entry was stored. Whatever changes
// that stores the entry anew.
func (e *Entry) Promised() Place { return e.promised }

// SetPromised says what the pod is promised, of an entry that is being stored.
func (e *Entry) SetPromised(p Place) { e.promised = p }

// Waits says whether the entry waits for a change, or for its victims.
func (e *Entry) Waits() bool {
	return e.State == berthv1.QueueUnschedulable || e.State == berthv1.QueueNominated
}

// IsTried says whether the pod is or will be tried without further cause.
func (e *Entry) IsTried() bool {
	return e.State == berthv1.QueueActive || e.State == berthv1.QueueBackoff || e.State == berthv1.QueueSetAside
}

// Bytes is about what memory the entry holds alone when it has been replaced by
// now, or removed (gone).
func (e *Entry) Bytes(now *Entry, gone bool) int {
	n := 512 + len(e.SpreadOwner) + 16*len(e.Claims) // their names are the pod's
	if gone || now.Diagnosis != e.Diagnosis {
		n += e.Diagnosis.Bytes()
	}
	return n
}
