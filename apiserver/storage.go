package apiserver

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/berth-dev/berth/fsm"
)

// tables is the storage.Interface of one kind: reads from views of the state
// machine, writes as commands.
type tables struct {
	kind      *kind
	prefix    string // of the registry's keys, with a slash at both ends
	backend   Backend
	pins      *pins
	hub       *hub
	attrs     storage.AttrFunc
	versioner storage.APIObjectVersioner
	// leases, if not nil, remember renewals of leases.
	leases Leases
	// ended, if not nil, ends the watches: the kind is not served in this form any more.
	ended context.Context
}

var _ storage.Interface = (*tables)(nil)

// rowKey turns a key of the registry ("/pods/namespace/name") into one of the
// table ("namespace/name").
func (t *tables) rowKey(key string) string {
	return strings.TrimPrefix(strings.TrimPrefix(key, t.prefix), strings.TrimSuffix(t.prefix, "/"))
}

// rowPrefix is rowKey for a key that names a namespace or everything.
func (t *tables) rowPrefix(key string) string {
	p := t.rowKey(key)
	if p != "" && !strings.HasSuffix(p, "/") {
		p += "/"
	}
	return p
}

// Versioner implements storage.Interface.
func (t *tables) Versioner() storage.Versioner { return t.versioner }

// Get implements storage.Interface. What it gives away is the caller's own.
func (t *tables) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	v, err := t.viewFor(ctx, opts.ResourceVersion)
	if err != nil {
		return err
	}
	row, ok := t.kind.rows.get(v, t.rowKey(key))
	if !ok {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(key, v.Revision())
	}
	obj, err := t.kind.show(v, row)
	if err != nil {
		return err
	}
	obj = obj.DeepCopyObject()
	t.upToDate(ctx, key, obj, metaOf(obj).GetResourceVersion())
	set(out, obj)
	return nil
}

// set stores an object into the one that the registry has made.
func set(out, obj runtime.Object) {
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(obj).Elem())
}

// viewFor returns a view that is new enough for a resource version: the latest
// of all for none, any for "0", one not older for another.
func (t *tables) viewFor(ctx context.Context, resourceVersion string) (*fsm.View, error) {
	if d := dryRunFrom(ctx); d != nil {
		return d.copy.View(), nil
	}
	switch resourceVersion {
	case "":
		if err := t.backend.ReadIndex(ctx); err != nil {
			return nil, readError(err)
		}
		return furnished(t.backend.View())
	case "0":
		return furnished(t.backend.View())
	}
	revision, err := t.parseRevision(resourceVersion)
	if err != nil {
		return nil, err
	}
	return t.viewNotOlder(ctx, revision)
}

// parseRevision reads a resourceVersion. Upstream's are larger than revisions can be: one beyond them is as far in the future as
// there is, and not in the past.
func (t *tables) parseRevision(resourceVersion string) (int64, error) {
	revision, err := t.versioner.ParseResourceVersion(resourceVersion)
	return int64(min(revision, math.MaxInt64)), err
}

// furnished refuses the state of a server that has only just begun: it holds
// nothing yet, not even the revision that a list must have.
func furnished(v *fsm.View) (*fsm.View, error) {
	if v.Revision() == 0 {
		return nil, readError(ErrNoLeader)
	}
	return v, nil
}

// viewNotOlder waits a while for a revision that another server may already
// have shown to the client.
func (t *tables) viewNotOlder(ctx context.Context, revision int64) (*fsm.View, error) {
	v := t.backend.View()
	if v.Revision() >= revision {
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, freshnessTimeout)
	defer cancel()
	for v.Revision() < revision {
		// The feed is appended to after the view is published.
		if err := t.backend.Feed().Wait(ctx, v.Revision()); err != nil {
			return nil, storage.NewTooLargeResourceVersionError(uint64(revision), uint64(v.Revision()), retryAfterSeconds)
		}
		v = t.backend.View()
	}
	return v, nil
}

// Create implements storage.Interface.
func (t *tables) Create(ctx context.Context, key string, obj, out runtime.Object, _ uint64) error {
	if revision, err := t.versioner.ObjectResourceVersion(obj); err == nil && revision != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	if err := t.versioner.PrepareObjectForStorage(obj); err != nil {
		return err
	}
	if err := checkLimits(obj); err != nil {
		return err
	}
	command, err := t.kind.create(obj)
	if err != nil {
		return err
	}
	result, err := propose(ctx, t.backend, command)
	if apierrors.IsAlreadyExists(err) {
		return storage.NewKeyExistsError(key, result.Revision)
	}
	if err != nil {
		return err
	}
	return t.answer(ctx, key, result, out)
}

// answer copies the row of a result into the object that the registry gives to
// the client.
func (t *tables) answer(ctx context.Context, key string, result fsm.Result, out runtime.Object) error {
	if out == nil {
		return nil
	}
	if result.Object == nil {
		return apierrors.NewInternalError(fmt.Errorf("the state machine gave no object for %s", key))
	}
	obj, err := t.kind.show(t.backend.View(), result.Object)
	if err != nil {
		return err
	}
	obj = obj.DeepCopyObject()
	switch d := dryRunFrom(ctx); {
	case d != nil:
		metaOf(obj).SetResourceVersion(d.resourceVersion(t.kind, t.rowKey(key)))
	case result.Deleted: // what went is shown with the revision at which it did
		metaOf(obj).SetResourceVersion(strconv.FormatInt(result.Revision, 10))
	}
	set(out, obj)
	return nil
}

// Delete implements storage.Interface. What it validates is what is deleted: if
// the object has changed since, it begins again with the latest.
func (t *tables) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, _ runtime.Object, _ storage.DeleteOptions,
) error {
	if t.kind.remove == nil {
		return apierrors.NewMethodNotSupported(t.kind.resource, "delete")
	}
	if _, err := precondition(preconditions); err != nil {
		return err
	}
	var refused error // why the object of a revision may not go
	var refusedAt uint64
	for try := 0; ; try++ {
		cur, err := t.current(ctx, key, out, try > 0)
		switch {
		case err != nil:
			return err
		case cur.shown == nil && cur.latest:
			return storage.NewKeyNotFoundError(key, cur.view.Revision())
		case cur.shown == nil:
			continue
		case refused != nil && cur.revision == refusedAt:
			return refused // it was the latest
		}
		if refused = preconditions.Check(key, cur.own); refused == nil && validate != nil {
			refused = validate(ctx, cur.own)
		}
		if refusedAt = cur.revision; refused != nil {
			if cur.latest {
				return refused
			}
			continue
		}
		pre := fsm.Precondition{UID: string(metaOf(cur.own).GetUID()), Revision: int64(cur.revision)}
		command := t.kind.remove(t.rowKey(key), pre)
		m := metaOf(cur.own)
		emptied := t.kind.emptied && m.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) > 0
		if emptied {
			m.SetFinalizers(nil) // which ends it in Apply
			if command, err = t.kind.update(cur.own, int64(cur.revision)); err != nil {
				return err
			}
		}
		result, err := propose(ctx, t.backend, command)
		switch {
		case err == nil:
			return t.answer(ctx, key, result, out)
		case ctx.Err() != nil:
			return apiError(ctx.Err())
		case !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) || try >= maxTries:
			return err
		case emptied && cur.latest: // somebody may have put another finalizer there
			return err
		}
	}
}

// maxTries bounds how often a write begins again because somebody else was
// faster: then the conflict is the caller's.
const maxTries = 64

func precondition(p *storage.Preconditions) (fsm.Precondition, error) {
	var pre fsm.Precondition
	if p == nil {
		return pre, nil
	}
	if p.UID != nil {
		pre.UID = string(*p.UID)
	}
	if p.ResourceVersion != nil {
		revision, err := strconv.ParseInt(*p.ResourceVersion, 10, 64)
		if err != nil || revision <= 0 {
			return pre, apierrors.NewBadRequest(fmt.Sprintf("the resourceVersion of the precondition is not one: %q", *p.ResourceVersion))
		}
		pre.Revision = revision
	}
	return pre, nil
}

// Stats implements storage.Interface.
func (t *tables) Stats(context.Context) (storage.Stats, error) {
	n := int64(0)
	t.kind.rows.scan(t.backend.View(), "", "", func(string, any) bool {
		n++
		return true
	})
	return storage.Stats{ObjectCount: n}, nil
}

// ReadinessCheck implements storage.Interface.
func (t *tables) ReadinessCheck() error { return nil }

// RequestWatchProgress implements storage.Interface: the hub sends bookmarks
// by itself.
func (t *tables) RequestWatchProgress(context.Context) error { return nil }

// GetCurrentResourceVersion implements storage.Interface.
func (t *tables) GetCurrentResourceVersion(context.Context) (uint64, error) {
	return uint64(t.backend.View().Revision()), nil
}

// EnableResourceSizeEstimation implements storage.Interface.
func (t *tables) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// CompactRevision implements storage.Interface.
func (t *tables) CompactRevision() int64 { return t.backend.Feed().First() }
