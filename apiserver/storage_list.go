package apiserver

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/berth-dev/berth/fsm"
)

// GetList implements storage.Interface. The items share memory with the rows.
func (t *tables) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	at, from, err := t.listMoment(ctx, key, opts)
	if err != nil {
		return err
	}
	m := newMatcher(t.kind, opts.Predicate, t.attrs)
	s := selection{limit: opts.Predicate.Limit}
	if opts.Recursive {
		err = s.scan(ctx, t, at, &m, t.rowPrefix(key), from)
	} else if row, ok := at.rows.get(at.view, t.rowKey(key)); ok {
		err = s.add(t.kind.showing(at.view), &m, t.rowKey(key), row)
	}
	if err != nil {
		return err
	}
	if err := answerFrom(ctx).take(s.rows); err != nil {
		return err
	}
	if l, ok := ctx.Value(listingKey{}).(*listing); ok {
		l.kind, l.view, l.rows = t.kind, at.view, s.rows
	} else if err := fillList(ctx, list, t.kind, at.view, s.rows); err != nil {
		return err
	}
	token, err := t.rest(ctx, at, key, &s)
	if err != nil {
		return err
	}
	return t.versioner.UpdateList(list, uint64(at.revision), token, s.remaining(m.all()))
}

// listMoment chooses the state that a list shows, and the key at which this part
// begins.
func (t *tables) listMoment(ctx context.Context, key string, opts storage.ListOptions) (at moment, from string, err error) {
	if opts.Recursive && opts.Predicate.Continue != "" {
		if opts.ResourceVersion != "" && opts.ResourceVersion != "0" {
			return at, "", apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		from, revision, err := storage.DecodeContinue(opts.Predicate.Continue, t.listPrefix(key))
		if err != nil {
			return at, "", apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
		}
		from = t.rowKey(from)
		if revision <= 0 { // whatever is there when the part is asked for
			v, err := t.viewFor(ctx, "")
			return t.now(v), from, err
		}
		at, err = t.momentToGoOn(ctx, t.undonePrefix(key, opts), revision)
		if apierrors.IsResourceExpired(err) {
			return at, "", t.continueExpired(key, from)
		}
		return at, from, err
	}
	revision, err := t.parseRevision(opts.ResourceVersion)
	if err != nil {
		return at, "", apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	exact := opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact ||
		opts.ResourceVersionMatch == "" && opts.Recursive && opts.Predicate.Limit > 0 && revision > 0
	if exact {
		at, err = t.momentAt(ctx, t.undonePrefix(key, opts), revision)
		return at, "", err
	}
	v, err := t.viewFor(ctx, opts.ResourceVersion)
	return t.now(v), "", err
}

// undonePrefix is what the keys of the rows begin with that a list may show.
func (t *tables) undonePrefix(key string, opts storage.ListOptions) string {
	if opts.Recursive {
		return t.rowPrefix(key)
	}
	return t.rowKey(key)
}

// now is the moment of a view.
func (t *tables) now(v *fsm.View) moment {
	if v == nil {
		return moment{}
	}
	return moment{v, v.Revision(), t.kind.rows}
}

// listPrefix is what the registry's keys of a list begin with.
func (t *tables) listPrefix(key string) string {
	if !strings.HasSuffix(key, "/") {
		key += "/"
	}
	return key
}

// selection is the rows of one part of a list.
type selection struct {
	limit int64 // 0: none
	rows  []any
	last  string
	// more: there are rows after the last; left counts them.
	more bool
	left int64
}

// maxCounted bounds the rows that follow a part and are counted.
const maxCounted = 1 << 16

// remaining is how many rows follow, if somebody may want to know and they were
// counted to the end.
func (s *selection) remaining(all bool) *int64 {
	if !s.more || !all || s.left >= maxCounted {
		return nil
	}
	return &s.left
}

func (s *selection) scan(ctx context.Context, t *tables, at moment, m *matcher, prefix, from string) error {
	from = max(prefix, from)
	var err error
	answer, show := answerFrom(ctx), t.kind.showing(at.view)
	var counting time.Time // since when rows are counted and not shown: a short list waits for nobody because of them
	defer func() { answer.charge(counting) }()
	visit := func(key string, row any) bool {
		if s.limit > 0 && int64(len(s.rows)) >= s.limit {
			if !s.more {
				s.more, counting = true, time.Now()
			}
			s.left++
			return m.all() && s.left < maxCounted
		}
		if err = answer.inTurn(ctx); err != nil {
			return false
		}
		err = s.add(show, m, key, row)
		return err == nil
	}
	if node, ok := m.node(); ok {
		at.rows.onNode(at.view, node, func(key string, row any) bool {
			if key < from || len(key) < len(prefix) || key[:len(prefix)] != prefix {
				return true
			}
			return visit(key, row)
		})
		return err
	}
	at.rows.scan(at.view, prefix, from, visit)
	return err
}

func (s *selection) add(show func(row any) (runtime.Object, error), m *matcher, key string, row any) error {
	ok, err := m.matches(row, func() (runtime.Object, error) { return show(row) })
	if ok && err == nil {
		s.rows = append(s.rows, row)
		s.last = key
	}
	return err
}

// fillList presents rows as the items of a list.
func fillList(ctx context.Context, list runtime.Object, k *kind, v *fsm.View, rows []any) error {
	items, err := meta.GetItemsPtr(list)
	if err != nil {
		return err
	}
	slice := reflect.ValueOf(items).Elem()
	slice.Set(reflect.MakeSlice(slice.Type(), len(rows), len(rows)))
	present, answer := k.present(v), answerFrom(ctx)
	for i, row := range rows {
		if err := answer.inTurn(ctx); err != nil {
			return err
		}
		if err := present(row, slice.Index(i).Addr().Interface().(runtime.Object)); err != nil {
			return err
		}
	}
	return nil
}

// rest gives the token for what follows a part, and keeps the view for it.
func (t *tables) rest(ctx context.Context, at moment, key string, s *selection) (string, error) {
	if !s.more {
		return "", nil
	}
	if dryRunFrom(ctx) == nil && at.view.Revision() == at.revision {
		t.pins.keep(at.view)
	}
	return t.continueAt(key, s.last+"\x00", at.revision)
}

// latestRevision in a token stands for whatever is there when a part is asked
// for.
const latestRevision = -1

// continueAt is the token of a list that goes on at a row's key.
func (t *tables) continueAt(key, from string, revision int64) (string, error) {
	prefix := t.listPrefix(key)
	return storage.EncodeContinue(prefix+strings.TrimPrefix(from, t.rowPrefix(key)), prefix, revision)
}

// continueExpired is the answer to a token whose state is no longer kept: it
// offers to go on from the same place in the latest state.
func (t *tables) continueExpired(key, from string) error {
	token, err := t.continueAt(key, from, latestRevision)
	if err != nil {
		return err
	}
	expired := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to retrieve " +
		"the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that " +
		"were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
	expired.ErrStatus.ListMeta = metav1.ListMeta{Continue: token}
	return expired
}

func listExpired() error {
	return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
}
