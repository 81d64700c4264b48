package rpc

import "sync"

// Open is what is open with nodes and is asked about again while it lasts: streams of their workers, connections to their kubelets. The zero
// value has nothing.
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

// Of is what is open with a node, in no order; of an empty name with all.
func (o *Open[T]) Of(node string) (open []T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for of, all := range o.all {
		if node != "" && of != node {
			continue
		}
		for one := range all {
			open = append(open, one)
		}
	}
	return open
}
