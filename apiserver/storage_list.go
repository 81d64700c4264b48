package apiserver

import (
	"context"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/berth-dev/berth/fsm"
)

// GetList implements storage.Interface. The items share memory with the rows.
func (t *tables) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	v, from, err := t.listView(ctx, opts)
	if err != nil {
		return err
	}
	m := newMatcher(t.kind, opts.Predicate, t.attrs)
	s := selection{limit: opts.Predicate.Limit}
	if opts.Recursive {
		err = s.scan(t, v, &m, t.rowPrefix(key), from.After)
	} else if row, ok := t.kind.rows.get(v, t.rowKey(key)); ok {
		err = s.add(t, v, &m, t.rowKey(key), row)
	}
	if err != nil {
		return err
	}
	if err := t.fill(list, v, s.rows); err != nil {
		return err
	}
	token, remaining := t.rest(ctx, v, from, &s, m.all())
	return t.versioner.UpdateList(list, uint64(v.Revision()), token, remaining)
}

// listView chooses the state that a list shows, and where in it this part
// begins.
func (t *tables) listView(ctx context.Context, opts storage.ListOptions) (*fsm.View, continueToken, error) {
	start := continueToken{Remaining: -1}
	if opts.Recursive && opts.Predicate.Continue != "" {
		if opts.ResourceVersion != "" && opts.ResourceVersion != "0" {
			return nil, start, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		token, err := decodeContinue(opts.Predicate.Continue)
		if err != nil {
			return nil, start, err
		}
		if token.Revision == latestRevision {
			v, err := t.viewFor(ctx, "")
			return v, token, err
		}
		if v, ok := t.viewAt(token.Revision); ok {
			return v, token, nil
		}
		return nil, start, token.expired()
	}
	revision, err := t.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, start, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	exact := opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact ||
		opts.ResourceVersionMatch == "" && opts.Recursive && opts.Predicate.Limit > 0 && revision > 0
	if !exact {
		v, err := t.viewFor(ctx, opts.ResourceVersion)
		return v, start, err
	}
	if _, err := t.viewNotOlder(ctx, int64(revision)); err != nil {
		return nil, start, err
	}
	if v, ok := t.viewAt(int64(revision)); ok {
		return v, start, nil
	}
	return nil, start, listExpired()
}

// viewAt is the view of exactly one revision, while there is one.
func (t *tables) viewAt(revision int64) (*fsm.View, bool) {
	if v := t.backend.View(); v.Revision() == revision {
		return v, true
	}
	return t.pins.get(revision)
}

// selection is the rows of one part of a list.
type selection struct {
	limit int64 // 0: none
	rows  []any
	last  string
	// more: there are rows after the last; left counts them, where somebody
	// may want to know.
	more bool
	left int64
}

func (s *selection) scan(t *tables, v *fsm.View, m *matcher, prefix, after string) error {
	from := prefix
	if after != "" {
		from = max(prefix, after+"\x00")
	}
	var err error
	visit := func(key string, row any) bool {
		if s.limit > 0 && int64(len(s.rows)) >= s.limit {
			s.more = true
			s.left++
			return m.all() && after == "" // the first part counts what follows
		}
		err = s.add(t, v, m, key, row)
		return err == nil
	}
	if node, ok := m.node(); ok {
		t.kind.rows.onNode(v, node, func(key string, row any) bool {
			if key < from || len(key) < len(prefix) || key[:len(prefix)] != prefix {
				return true
			}
			return visit(key, row)
		})
		return err
	}
	t.kind.rows.scan(v, prefix, from, visit)
	return err
}

func (s *selection) add(t *tables, v *fsm.View, m *matcher, key string, row any) error {
	ok, err := m.matches(row, func() (runtime.Object, error) { return t.kind.show(v, row) })
	if ok && err == nil {
		s.rows = append(s.rows, row)
		s.last = key
	}
	return err
}

// fill presents rows as the items of a list.
func (t *tables) fill(list runtime.Object, v *fsm.View, rows []any) error {
	items, err := meta.GetItemsPtr(list)
	if err != nil {
		return err
	}
	slice := reflect.ValueOf(items).Elem()
	slice.Set(reflect.MakeSlice(slice.Type(), len(rows), len(rows)))
	present := t.kind.present(v)
	for i, row := range rows {
		if err := present(row, slice.Index(i).Addr().Interface().(runtime.Object)); err != nil {
			return err
		}
	}
	return nil
}

// rest gives the token and the count for what follows a part, and keeps the
// view for it.
func (t *tables) rest(ctx context.Context, v *fsm.View, from continueToken, s *selection, count bool) (string, *int64) {
	if !s.more {
		return "", nil
	}
	next := continueToken{Revision: v.Revision(), After: s.last, Remaining: -1}
	if count {
		switch {
		case from.After == "":
			next.Remaining = s.left
		case from.Remaining >= 0:
			next.Remaining = from.Remaining - int64(len(s.rows))
		}
	}
	if dryRunFrom(ctx) == nil {
		t.pins.keep(v)
	}
	if next.Remaining < 0 {
		return next.encode(), nil
	}
	return next.encode(), &next.Remaining
}
