// Package lasting keeps what was let in and goes on, by the node that it is with, so that it can be asked about again: watches and
// logs, streams of workers, connections to kubelets.
//
// It must never decide whether anything goes on.
package lasting

import (
	"maps"
	"slices"
	"sync"
)

// Open is what is open, by node; what is with no node is under "". The zero value has nothing. It is safe for concurrent use.
type Open[T comparable] struct {
	mu  sync.Mutex
	all map[string]map[T]struct{} // by node
}

// Add takes note of one until forget is called.
func (o *Open[T]) Add(node string, one T) (forget func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[string]map[T]struct{}{}
	}
	if o.all[node] == nil {
		o.all[node] = map[T]struct{}{}
	}
	o.all[node][one] = struct{}{}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if delete(o.all[node], one); len(o.all[node]) == 0 {
			delete(o.all, node)
		}
	}
}

// Has says whether anything is open with a node.
func (o *Open[T]) Has(node string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all[node]) > 0
}

// Of is what is open with a node, in no order; of an empty name everything.
func (o *Open[T]) Of(node string) (open []T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if node != "" {
		return slices.Collect(maps.Keys(o.all[node]))
	}
	for _, with := range o.all {
		open = slices.AppendSeq(open, maps.Keys(with))
	}
	return open
}
