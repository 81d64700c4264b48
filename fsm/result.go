package fsm

import (
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-dev/berth/store"
)

// Result is the outcome of one command. A refusal is a value: Code is the HTTP
// status that the API answers with, and nothing was changed. Code 0 means that
// the command was carried out.
type Result struct {
	Code    int32                 `msgpack:"code,omitempty"`
	Reason  metav1.StatusReason   `msgpack:"reason,omitempty"`
	Message string                `msgpack:"message,omitempty"`
	Details *metav1.StatusDetails `msgpack:"details,omitempty"`

	// Revision is the state's revision after the command, Index the log index
	// of its entry.
	Revision int64  `msgpack:"revision"`
	Index    uint64 `msgpack:"index"`
	// Object is the stored row after the command (the last one before a
	// deletion), where the command is about one object. It must not be
	// changed. It travels between servers as Table and its bytes.
	Object any `msgpack:"-"`
	// Deleted says that Object is no longer stored.
	Deleted bool `msgpack:"deleted,omitempty"`
	// Table is the table that Object is a row of.
	Table string `msgpack:"table,omitempty"`
	// Plan tells what became of each decision of an ApplyPlan.
	Plan *PlanResult `msgpack:"plan,omitempty"`

	// Failed are the keys of those things of a command that were undone, as they panicked (see Tx.part), while the rest of it
	// was carried out: nothing is known of them on any server.
	Failed []string `msgpack:"failed,omitempty"`

	// Work is what the command has cost, in the units of
	// docs/benchmarks.md; it is the same on every server, and does not travel.
	Work int64 `msgpack:"-"`

	Raw []byte `msgpack:"raw,omitempty"` // Object's bytes, while in transit
}

// Refused reports whether the command was not carried out.
func (r Result) Refused() bool { return r.Code != 0 }

// Err is the refusal as the error that the Kubernetes API answers with, or
// nil.
func (r Result) Err() error {
	if r.Code == 0 {
		return nil
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    r.Code,
		Reason:  r.Reason,
		Message: r.Message,
		Details: r.Details,
	}}
}

func refusal(err *apierrors.StatusError) Result {
	s := err.ErrStatus
	return Result{Code: s.Code, Reason: s.Reason, Message: s.Message, Details: s.Details}
}

func refuseNotFound(gr schema.GroupResource, name string) Result {
	return refusal(apierrors.NewNotFound(gr, name))
}

func refuseExists(gr schema.GroupResource, name string) Result {
	return refusal(apierrors.NewAlreadyExists(gr, name))
}

func refuseConflict(gr schema.GroupResource, name, why string) Result {
	return refusal(apierrors.NewConflict(gr, name, fmt.Errorf("%s", why)))
}

func refuseForbidden(gr schema.GroupResource, name, why string) Result {
	return refusal(apierrors.NewForbidden(gr, name, fmt.Errorf("%s", why)))
}

func refuseInvalid(gk schema.GroupKind, name string, errs ...*field.Error) Result {
	return refusal(apierrors.NewInvalid(gk, name, errs))
}

func refuseBadRequest(why string) Result { return refusal(apierrors.NewBadRequest(why)) }

const modifiedMessage = "the object has been modified; please apply your changes to the latest version and try again"

// EncodeResults gives the bytes in which results travel from the leader to the
// server that forwarded the commands. The results' Raw is filled on the way.
func EncodeResults(rs []Result) ([]byte, error) {
	for i := range rs {
		if rs[i].Object == nil || rs[i].Raw != nil {
			continue
		}
		raw, err := encodeRow(rs[i].Table, rs[i].Object)
		if err != nil {
			return nil, fmt.Errorf("encode the object of result %d: %w", i, err)
		}
		rs[i].Raw = raw
	}
	return msgpack.Marshal(rs)
}

// DecodeResults is the inverse of EncodeResults.
func DecodeResults(b []byte) ([]Result, error) {
	var rs []Result
	if err := store.Unmarshal(b, &rs); err != nil {
		return nil, fmt.Errorf("decode results: %w", err)
	}
	for i := range rs {
		if rs[i].Raw == nil {
			continue
		}
		o, err := decodeRow(rs[i].Table, rs[i].Raw)
		if err != nil {
			return nil, fmt.Errorf("decode the object of result %d: %w", i, err)
		}
		rs[i].Object, rs[i].Raw = o, nil
	}
	return rs, nil
}
