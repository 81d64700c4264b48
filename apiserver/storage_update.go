package apiserver

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/berth-dev/berth/fsm"
)

// GuaranteedUpdate implements storage.Interface. It works on this server's own
// view, which may be behind: the expected revision in the command finds that
// out, and whatever fails on an object that may be old is tried again on the
// latest.
func (t *tables) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, _ runtime.Object,
) error {
	for try := 0; ; try++ {
		cur, err := t.current(ctx, key, out, try > 0)
		if err != nil {
			return err
		}
		if cur.shown == nil && !cur.latest {
			continue
		}
		if cur.shown == nil && !ignoreNotFound {
			return storage.NewKeyNotFoundError(key, cur.view.Revision())
		}
		command, next, err := t.change(ctx, key, cur, preconditions, tryUpdate)
		switch {
		case err != nil && cur.latest:
			return err
		case err != nil:
			continue
		case command == nil && cur.latest:
			// Nothing to do: no entry, and the revision stays.
			set(out, cur.shown.DeepCopyObject())
			return nil
		case command == nil:
			continue
		}
		if t.renewed(ctx, key, cur, next) {
			metaOf(next).SetResourceVersion(metaOf(cur.shown).GetResourceVersion())
			set(out, next)
			return nil
		}
		result, err := propose(ctx, t.backend, asResize(ctx, command))
		switch {
		case err == nil:
			return t.answer(ctx, key, result, out)
		case !overtaken(cur, err) || try >= maxTries:
			return err
		case ctx.Err() != nil:
			return apiError(ctx.Err())
		}
	}
}

// overtaken reports whether somebody else has changed the object, or made the
// one that was to be made, since it was read.
func overtaken(cur *current, err error) bool {
	if cur.shown == nil {
		// A conflict is about something that is to be the object's alone (fsm.SinceServiceAddresses).
		return apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err)
	}
	return apierrors.IsConflict(err)
}

// current is an object as an update finds it.
type current struct {
	view     *fsm.View
	row      any
	shown    runtime.Object // shares memory with the row; nil if there is none
	own      runtime.Object // the caller's copy; zero if there is none
	revision uint64
	// latest: no newer state had been acknowledged when the object was read.
	latest bool
}

// current reads the object, from the latest state of all or from this server's.
func (t *tables) current(ctx context.Context, key string, out runtime.Object, latest bool) (*current, error) {
	resourceVersion := "0"
	if latest {
		resourceVersion = ""
	}
	v, err := t.viewFor(ctx, resourceVersion)
	if err != nil {
		return nil, err
	}
	cur := &current{view: v, latest: latest}
	row, ok := t.kind.rows.get(v, t.rowKey(key))
	if !ok {
		cur.own = reflect.New(reflect.TypeOf(out).Elem()).Interface().(runtime.Object)
		return cur, nil
	}
	cur.row = row
	if cur.shown, err = t.kind.show(v, row); err != nil {
		return nil, err
	}
	cur.own = cur.shown.DeepCopyObject()
	cur.revision, err = t.versioner.ObjectResourceVersion(cur.own)
	return cur, err
}

// change lets the registry change the object and gives what it becomes, and the command for it; nil
// if nothing has changed.
func (t *tables) change(ctx context.Context, key string, cur *current, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc) (fsm.Command, runtime.Object, error) {
	if err := preconditions.Check(key, cur.own); err != nil {
		return nil, nil, err
	}
	if cur.shown != nil {
		if err := checkMerge(ctx, t.kind.resource, cur.own); err != nil {
			return nil, nil, err
		}
	}
	next, _, err := tryUpdate(cur.own, storage.ResponseMeta{ResourceVersion: cur.revision})
	if err != nil {
		return nil, nil, err
	}
	metaOf(next).SetSelfLink("")
	var before runtime.Object
	if cur.shown != nil {
		before = cur.own
	}
	if err := checkChange(next, before); err != nil {
		return nil, nil, err
	}
	if err := checkPodsOfBefore(cur.view, cur.shown, next); err != nil {
		return nil, nil, err
	}
	if cur.shown == nil {
		if err := t.versioner.PrepareObjectForStorage(next); err != nil {
			return nil, nil, err
		}
		command, err := t.kind.create(next)
		return command, next, err
	}
	if equality.Semantic.DeepEqual(next, cur.shown) && (t.kind.current == nil || t.kind.current(cur.row, next)) {
		return nil, nil, nil
	}
	t.keepRenewal(ctx, key, cur, next)
	command, err := t.kind.update(next, int64(cur.revision))
	return command, next, err
}
