package informers

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// Informer is one of client-go's whose objects are the state's. Its handlers are told of
// changes, one after the other, by feed; all of them are there before it begins.
type Informer struct {
	*indexer
	registered []*registration
	interest   *Interest     // of those who register next
	synced     chan struct{} // closed when the handlers know what there is
	shown      func(o any)   // is told of each row that is there, or comes, before its handlers are
	later      later         // what they are told of when the rest is done
}

var (
	_ cache.SharedIndexInformer              = (*Informer)(nil)
	_ cache.DoneChecker                      = (*Informer)(nil)
	_ cache.ResourceEventHandlerRegistration = (*registration)(nil)
)

// New makes an informer of rows that view gives. Nobody is told of changes who does not register with it
// before its feed begins.
func New(r *Rows, view func() *fsm.View) *Informer {
	return &Informer{indexer: &indexer{rows: r, view: view, indexers: cache.Indexers{}}, synced: make(chan struct{}), shown: func(any) {}}
}

// registration is a handler of an informer.
type registration struct {
	*Informer
	handler  cache.ResourceEventHandler
	interest *Interest // in pods; nil: in all that the informer tells of
}

// begin tells the handlers what there is, but for what can wait: of that it tells the first.
func (i *Informer) begin(v *fsm.View) {
	i.rows.scan(v, "", func(key string, o any) bool {
		i.shown(o)
		if i.rows.Rests != nil && i.rows.Rests(v, o) {
			i.later.add(key, o)
			return true
		}
		i.tellOf(o)
		return true
	})
	i.later.order()
	i.tellLater()
	close(i.synced)
}

// tellOf tells the handlers of what was there at the beginning. Of a great many pods that are at rest few have to be told, and nobody asks
// for the others whether they have to be: all wait for this.
func (i *Informer) tellOf(o any) {
	pod, ok := o.(*corev1.Pod)
	resting := ok && atRest(pod)
	for _, r := range i.registered {
		if !(resting && r.interest.looksItself()) && r.interest.has(nil, o) {
			r.handler.OnAdd(o, true)
		}
	}
}

// tell tells the handlers of a change, if it is one of this kind.
func (i *Informer) tell(c *store.Change) {
	if c.Table != i.rows.table {
		return
	}
	old, now := i.objectOf(c.Old), i.objectOf(c.New)
	if old != nil {
		if waits, ok := i.later.take(strings.TrimPrefix(c.Key, i.rows.prefix)); ok {
			i.tellOf(waits)
		}
	}
	if now != nil {
		i.shown(now)
	}
	for _, r := range i.registered {
		switch {
		case old == nil && now == nil, !r.interest.has(old, now):
		case old == nil:
			r.handler.OnAdd(now, false)
		case now == nil:
			r.handler.OnDelete(old)
		default:
			r.handler.OnUpdate(old, now)
		}
	}
}

func (i *Informer) objectOf(row any) any {
	if row == nil {
		return nil
	}
	return i.rows.object(row)
}

var errBegun = errors.New("the informer has begun already")

// AddEventHandler implements cache.SharedInformer.
func (i *Informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if i.HasSynced() {
		return nil, errBegun
	}
	r := &registration{i, h, i.interest}
	i.registered = append(i.registered, r)
	return r, nil
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer. Nothing is told twice:
// what a handler was told of before is in the state.
func (i *Informer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (i *Informer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// RemoveEventHandler implements cache.SharedInformer. Handlers stay as long as their
// controllers do.
func (*Informer) RemoveEventHandler(cache.ResourceEventHandlerRegistration) error { return errBegun }

// GetStore implements cache.SharedInformer.
func (i *Informer) GetStore() cache.Store { return i.indexer }

// GetIndexer implements cache.SharedIndexInformer.
func (i *Informer) GetIndexer() cache.Indexer { return i.indexer }

// GetController implements cache.SharedInformer. Nobody lists and watches here.
func (*Informer) GetController() cache.Controller { return nil }

// Run implements cache.SharedInformer.
func (*Informer) Run(stop <-chan struct{}) { <-stop }

// RunWithContext implements cache.SharedInformer.
func (*Informer) RunWithContext(ctx context.Context) { <-ctx.Done() }

// HasSynced implements cache.SharedInformer.
func (i *Informer) HasSynced() bool {
	select {
	case <-i.synced:
		return true
	default:
		return false
	}
}

// HasSyncedChecker implements cache.SharedInformer.
func (i *Informer) HasSyncedChecker() cache.DoneChecker { return i }

// Name implements cache.DoneChecker.
func (i *Informer) Name() string { return i.rows.prefix + i.rows.table }

// Done implements cache.DoneChecker.
func (i *Informer) Done() <-chan struct{} { return i.synced }

// LastSyncResourceVersion implements cache.SharedInformer.
func (i *Informer) LastSyncResourceVersion() string { return i.LastStoreSyncResourceVersion() }

// SetWatchErrorHandler implements cache.SharedInformer. There is no watch.
func (*Informer) SetWatchErrorHandler(cache.WatchErrorHandler) error { return nil }

// SetWatchErrorHandlerWithContext implements cache.SharedInformer.
func (*Informer) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	return nil
}

var errTransform = errors.New("the state's objects are shown as they are")

// SetTransform implements cache.SharedInformer.
func (*Informer) SetTransform(cache.TransformFunc) error { return errTransform }

// IsStopped implements cache.SharedInformer.
func (*Informer) IsStopped() bool { return false }
