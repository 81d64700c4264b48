package informers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
)

// indexer is a store of client-go's whose content is always that of the latest view. It
// holds nothing, and nothing can be put into it.
type indexer struct {
	rows *Rows
	view func() *fsm.View

	mu       sync.RWMutex
	indexers cache.Indexers
	last     atomic.Pointer[namespaceList]
}

// listKept bounds what one may have, for it is kept as it was until another is asked for.
const listKept = 4096

// namespaceList is what a namespace had at a revision. Many who look at the same time ask for the same.
type namespaceList struct {
	prefix   string
	index    uint64
	revision int64
	items    []any
}

var _ cache.Indexer = (*indexer)(nil)

var errReadOnly = errors.New("the state is changed by commands alone")

// Add implements cache.Store.
func (*indexer) Add(any) error { return errReadOnly }

// Update implements cache.Store.
func (*indexer) Update(any) error { return errReadOnly }

// Delete implements cache.Store.
func (*indexer) Delete(any) error { return errReadOnly }

// Replace implements cache.Store.
func (*indexer) Replace([]any, string) error { return errReadOnly }

// Resync implements cache.Store.
func (*indexer) Resync() error { return nil }

// Bookmark implements cache.Store: the view has a revision of its own.
func (*indexer) Bookmark(string) {}

// LastStoreSyncResourceVersion implements cache.Store.
func (x *indexer) LastStoreSyncResourceVersion() string {
	return strconv.FormatInt(x.view().Revision(), 10)
}

// List implements cache.Store.
func (x *indexer) List() []any { return x.rows.List(x.view(), "") }

// ListKeys implements cache.Store.
func (x *indexer) ListKeys() []string {
	out := []string{}
	x.rows.scan(x.view(), "", func(key string, _ any) bool {
		out = append(out, key)
		return true
	})
	return out
}

// Get implements cache.Store.
func (x *indexer) Get(o any) (any, bool, error) {
	key, err := cache.MetaNamespaceKeyFunc(o)
	if err != nil {
		return nil, false, err
	}
	return x.GetByKey(key)
}

// GetByKey implements cache.Store.
func (x *indexer) GetByKey(key string) (any, bool, error) {
	o, ok := x.rows.Get(x.view(), key)
	if !ok {
		return nil, false, nil
	}
	return o, true, nil
}

// Index implements cache.Indexer.
func (x *indexer) Index(name string, o any) ([]any, error) {
	if name == cache.NamespaceIndex {
		prefix, err := namespaceOf(o)
		if err != nil {
			return nil, err
		}
		return x.listed(prefix), nil
	}
	f, err := x.function(name)
	if err != nil {
		return nil, err
	}
	values, err := f(o)
	if err != nil {
		return nil, err
	}
	return x.anyOf(name, values)
}

// ByIndex implements cache.Indexer.
func (x *indexer) ByIndex(name, value string) ([]any, error) {
	if name == cache.NamespaceIndex {
		return x.listed(value + "/"), nil
	}
	if find := x.rows.Indexes[name]; find != nil {
		return find(x.view(), value), nil
	}
	return x.anyOf(name, []string{value})
}

// listed are the objects of a namespace. Whoever gets them shares them with others.
func (x *indexer) listed(prefix string) []any {
	v := x.view()
	if l := x.last.Load(); l != nil && l.prefix == prefix && l.index == v.Index() && l.revision == v.Revision() {
		return l.items
	}
	items := slices.Clip(x.rows.List(v, prefix))
	if len(items) <= listKept {
		x.last.Store(&namespaceList{prefix: prefix, index: v.Index(), revision: v.Revision(), items: items})
	}
	return items
}

// anyOf are the objects that have one of the values, found by looking at all: where
// there are many, the state has an index.
func (x *indexer) anyOf(name string, values []string) ([]any, error) {
	f, err := x.function(name)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(x.List(), func(o any) bool {
		has, err := f(o)
		return err != nil || !slices.ContainsFunc(has, func(v string) bool { return slices.Contains(values, v) })
	}), nil
}

func (x *indexer) function(name string) (cache.IndexFunc, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	f := x.indexers[name]
	if f == nil {
		return nil, fmt.Errorf("there is no index %q", name)
	}
	return f, nil
}

// IndexKeys implements cache.Indexer.
func (x *indexer) IndexKeys(name, value string) ([]string, error) {
	found, err := x.ByIndex(name, value)
	out := make([]string, 0, len(found))
	for _, o := range found {
		key, err := cache.MetaNamespaceKeyFunc(o)
		if err != nil {
			return nil, err
		}
		out = append(out, key)
	}
	return out, err
}

// ListIndexFuncValues implements cache.Indexer.
func (x *indexer) ListIndexFuncValues(name string) []string {
	f, err := x.function(name)
	if err != nil {
		return nil
	}
	seen := map[string]bool{}
	x.rows.scan(x.view(), "", func(_ string, o any) bool {
		values, _ := f(o) // what cannot be indexed has no value
		for _, v := range values {
			seen[v] = true
		}
		return true
	})
	return slices.Sorted(maps.Keys(seen))
}

// GetIndexers implements cache.Indexer.
func (x *indexer) GetIndexers() cache.Indexers {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return maps.Clone(x.indexers)
}

// AddIndexers implements cache.Indexer.
func (x *indexer) AddIndexers(more cache.Indexers) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name := range more {
		if x.indexers[name] != nil {
			return fmt.Errorf("there is an index %q already", name)
		}
	}
	maps.Copy(x.indexers, more)
	return nil
}
