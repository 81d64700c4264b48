package fsm

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/store"
)

// PutObject creates (Create) or replaces an object of a kind without meaning
// for scheduling.
//
// Refuses: 403 for a template of a system class without permission (AD5), for one more in a namespace that has as many as it may, and for
// what a quota does not allow; 400 for an unknown kind or unreadable bytes; 404 or 403 for a
// namespace, or the definition of a custom kind, that is missing or on its way out; 409 if an object to be created
// exists, or for a stale revision, for a service
// that is to have the address or the port of another, or an address of no range, for a claim of devices that another has, and for a definition that is to go before its objects; 404 if one to be
// replaced does not exist.
type PutObject struct {
	Resource string `msgpack:"resource"`
	// Raw is the object's protobuf encoding.
	Raw      []byte `msgpack:"raw"`
	Create   bool   `msgpack:"create,omitempty"`
	Revision int64  `msgpack:"revision,omitempty"`

	value codec.Object // Raw, once it is unpacked
}

// since implements laterCommand.
func (c *PutObject) since() int {
	kind, _ := KindOf(c.Resource)
	return kind.Since
}

// unpack stops at fields that are not known. All else that is wrong is refused
// when the command is applied.
func (c *PutObject) unpack(*cache) error {
	kind, ok := KindOf(c.Resource)
	if !ok {
		return nil
	}
	value := kind.New()
	switch err := codec.Unmarshal(c.Raw, value); {
	case errors.Is(err, store.ErrUnknownCommand):
		return err
	case err == nil:
		c.value = value
	}
	return nil
}

// Apply implements Command.
func (c *PutObject) Apply(tx *Tx) Result {
	kind, ok := tx.view.objectKind(c.Resource)
	if !ok {
		return refuseBadRequest(fmt.Sprintf("PutObject does not know the resource %q", c.Resource))
	}
	value := c.value
	if value == nil {
		value = kind.New()
		if err := value.Unmarshal(c.Raw); err != nil {
			return refuseBadRequest(fmt.Sprintf("PutObject: %s: %v", c.Resource, err))
		}
	}
	if value.GetName() == "" {
		return refuseBadRequest(fmt.Sprintf("PutObject: %s without a name", c.Resource))
	}
	old, known := tx.view.Objects.Get(ObjectKey(c.Resource, value.GetNamespace(), value.GetName()))
	switch {
	case c.Create:
		return c.create(tx, kind, value, known)
	case !known:
		return refuseNotFound(kind.names().groupResource(), value.GetName())
	}
	return c.replace(tx, kind, value, old)
}

// create stores an object that is not to be there yet.
func (c *PutObject) create(tx *Tx, kind ObjectKind, value codec.Object, known bool) Result {
	v, res := tx.view, kind.names()
	if r, ok := v.checkDefined(kind, value); !ok {
		return r
	}
	if !kind.ClusterScoped && !(kind.Custom && value.GetNamespace() == "") {
		if r, ok := v.checkNamespace(value.GetNamespace(), res, value.GetName()); !ok {
			return r
		}
	}
	if known {
		return refuseExists(res.groupResource(), value.GetName())
	}
	if r, ok := v.checkRoom(kind, value.GetNamespace(), value.GetName()); !ok {
		return r
	}
	if r, ok := c.check(tx, kind, value, nil); !ok {
		return r
	}
	return c.store(tx, value)
}

// replace stores an object in the place of another one, or lets it go if nothing holds it any more.
func (c *PutObject) replace(tx *Tx, kind ObjectKind, value codec.Object, old *Object) Result {
	v := tx.view
	if r, ok := (Precondition{UID: string(value.GetUID()), Revision: c.Revision}).check(old.Value, kind.names()); !ok {
		return r
	}
	if r, ok := c.check(tx, kind, value, old); !ok {
		return r
	}
	value.SetResourceVersion(old.Value.GetResourceVersion())
	if value.GetDeletionTimestamp() == nil && old.Value.GetDeletionTimestamp() != nil { // an end that has begun
		value.SetDeletionTimestamp(old.Value.GetDeletionTimestamp())
		value.SetDeletionGracePeriodSeconds(old.Value.GetDeletionGracePeriodSeconds())
	}
	if same(value, old.Value) {
		return Result{Table: v.Objects.Name(), Object: old}
	}
	if r, ok := v.checkHeld(kind, value); !ok {
		return r
	}
	if letGo(value) {
		remove(tx, v.Objects, ObjectKey(c.Resource, value.GetNamespace(), value.GetName()))
		return Result{Table: v.Objects.Name(), Object: old, Deleted: true}
	}
	return c.store(tx, value)
}

// check refuses what an object may not say, new (old is nil) or instead of another.
func (c *PutObject) check(tx *Tx, kind ObjectKind, value codec.Object, old *Object) (Result, bool) {
	v := tx.view
	var before codec.Object
	if old != nil {
		before = old.Value
	}
	if r, ok := tx.checkTemplate(kind, value, before); !ok {
		return r, false
	}
	if r, ok := v.checkObjectQuotas(&Object{Resource: c.Resource, Value: value}, old); !ok {
		return r, false
	}
	if r, ok := v.checkDevices(value, before); !ok {
		return r, false
	}
	if r, ok := v.checkGiven(value, before); !ok {
		return r, false
	}
	return v.checkAddresses(value, before)
}

func (c *PutObject) store(tx *Tx, value codec.Object) Result {
	return tx.storeObject(ObjectKey(c.Resource, value.GetNamespace(), value.GetName()), &Object{Resource: c.Resource, Value: value})
}

func (tx *Tx) storeObject(key string, o *Object) Result {
	put(tx, tx.view.Objects, key, o)
	return Result{Table: tx.view.Objects.Name(), Object: o}
}

func same(a, b codec.Object) bool {
	x, errX := a.Marshal()
	y, errY := b.Marshal()
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
