package fsm

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/store"
)

// SetStatus stores what a controller says of its workload: the status and
// nothing else. A warning, if there is one, becomes an event, which counts how
// often it was given.
//
// Refuses: 400 for a kind that keeps no pods and for a status that cannot be
// read; 404 if the workload is gone; 409 if it is another one by now.
type SetStatus struct {
	Owner ObjectRef `msgpack:"owner"`
	// Status is its protobuf encoding.
	Status         []byte `msgpack:"status"`
	WarningReason  string `msgpack:"warning_reason,omitempty"`
	WarningMessage string `msgpack:"warning_message,omitempty"`
}

// unpack stops at fields that are not known.
func (c *SetStatus) unpack(*cache) error {
	kind := objectKinds[c.Owner.Resource]
	if kind.Workload == nil || kind.Workload.WithStatus == nil {
		return nil
	}
	if _, err := kind.Workload.WithStatus(kind.New(), c.Status); errors.Is(err, store.ErrUnknownCommand) {
		return err
	}
	return nil
}

// Apply implements Command.
func (c *SetStatus) Apply(tx *Tx) Result {
	owner, r := tx.workload(c.Owner)
	if owner == nil {
		return r
	}
	value, err := owner.kind.Workload.WithStatus(owner.object.Value, c.Status)
	if err != nil {
		return refuseBadRequest(fmt.Sprintf("SetStatus: %s: %v", c.Owner.Resource, err))
	}
	if !same(value, owner.object.Value) {
		owner.object = &Object{Resource: c.Owner.Resource, Value: value}
		put(tx, tx.view.Objects, ObjectKey(c.Owner.Resource, c.Owner.Namespace, c.Owner.Name), owner.object)
	}
	if c.WarningReason != "" {
		tx.repeatedEvent(eventSource, owner.ref.Namespace, owner.about(), corev1.EventTypeWarning, c.WarningReason, c.WarningMessage)
	}
	return Result{Table: tx.view.Objects.Name(), Object: owner.object}
}
