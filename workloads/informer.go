package workloads

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// informer is one of client-go's whose objects are the state's. Its handlers are told of
// changes, one after the other, by feed; all of them are there before it begins.
type informer struct {
	*indexer
	registered []*registration
	interest   *interest     // of those who register next
	synced     chan struct{} // closed when the handlers know what there is
}

var (
	_ cache.SharedIndexInformer              = (*informer)(nil)
	_ cache.DoneChecker                      = (*informer)(nil)
	_ cache.ResourceEventHandlerRegistration = (*registration)(nil)
)

func newInformer(r *rows, view func() *fsm.View) *informer {
	return &informer{indexer: &indexer{rows: r, view: view, indexers: cache.Indexers{}}, synced: make(chan struct{})}
}

// registration is a handler of an informer.
type registration struct {
	*informer
	handler  cache.ResourceEventHandler
	interest *interest // in pods; nil: in all that the informer tells of
}

// begin tells the handlers what there is.
func (i *informer) begin(v *fsm.View) {
	i.rows.scan(v, "", func(_ string, o any) bool {
		for _, r := range i.registered {
			if r.interest.has(nil, o) {
				r.handler.OnAdd(o, true)
			}
		}
		return true
	})
	close(i.synced)
}

// tell tells the handlers of a change, if it is one of this kind.
func (i *informer) tell(c *store.Change) {
	if len(i.registered) == 0 || c.Table != i.rows.table {
		return
	}
	old, now := i.objectOf(c.Old), i.objectOf(c.New)
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

func (i *informer) objectOf(row any) any {
	if row == nil {
		return nil
	}
	return i.rows.object(row)
}

var errBegun = errors.New("the informer has begun already")

// AddEventHandler implements cache.SharedInformer.
func (i *informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if i.HasSynced() {
		return nil, errBegun
	}
	r := &registration{i, h, i.interest}
	i.registered = append(i.registered, r)
	return r, nil
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer. Nothing is told twice:
// what a handler was told of before is in the state.
func (i *informer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (i *informer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// RemoveEventHandler implements cache.SharedInformer. Handlers stay as long as their
// controllers do.
func (*informer) RemoveEventHandler(cache.ResourceEventHandlerRegistration) error { return errBegun }

// GetStore implements cache.SharedInformer.
func (i *informer) GetStore() cache.Store { return i.indexer }

// GetIndexer implements cache.SharedIndexInformer.
func (i *informer) GetIndexer() cache.Indexer { return i.indexer }

// GetController implements cache.SharedInformer. Nobody lists and watches here.
func (*informer) GetController() cache.Controller { return nil }

// Run implements cache.SharedInformer.
func (*informer) Run(stop <-chan struct{}) { <-stop }

// RunWithContext implements cache.SharedInformer.
func (*informer) RunWithContext(ctx context.Context) { <-ctx.Done() }

// HasSynced implements cache.SharedInformer.
func (i *informer) HasSynced() bool {
	select {
	case <-i.synced:
		return true
	default:
		return false
	}
}

// HasSyncedChecker implements cache.SharedInformer.
func (i *informer) HasSyncedChecker() cache.DoneChecker { return i }

// Name implements cache.DoneChecker.
func (i *informer) Name() string { return i.rows.prefix + i.rows.table }

// Done implements cache.DoneChecker.
func (i *informer) Done() <-chan struct{} { return i.synced }

// LastSyncResourceVersion implements cache.SharedInformer.
func (i *informer) LastSyncResourceVersion() string { return i.LastStoreSyncResourceVersion() }

// SetWatchErrorHandler implements cache.SharedInformer. There is no watch.
func (*informer) SetWatchErrorHandler(cache.WatchErrorHandler) error { return nil }

// SetWatchErrorHandlerWithContext implements cache.SharedInformer.
func (*informer) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	return nil
}

var errTransform = errors.New("the state's objects are shown as they are")

// SetTransform implements cache.SharedInformer.
func (*informer) SetTransform(cache.TransformFunc) error { return errTransform }

// IsStopped implements cache.SharedInformer.
func (*informer) IsStopped() bool { return false }

// feed tells informers of what changes in the state.
type feed struct {
	state     State
	informers []*informer
	interests []*interest
}

// begins notes in which pods the controller has an interest that registers its handlers
// from now on; nil: in all.
func (f *feed) begins(i *interest) {
	if i != nil {
		f.interests = append(f.interests, i)
	}
	for _, informer := range f.informers {
		if informer.rows.table == podTable {
			informer.interest = i
		}
	}
}

// changesAtOnce is how many changes are read at a time.
const changesAtOnce = 4096

// begin tells of what there is, and gives the revision that it was read at.
func (f *feed) begin() int64 {
	v := f.state.View()
	for _, i := range f.interests {
		i.begin(v)
	}
	var telling sync.WaitGroup
	for _, i := range f.informers {
		telling.Go(func() { i.begin(v) })
	}
	telling.Wait()
	return v.Revision()
}

// follow tells of every change after a revision until ctx ends. It fails with
// store.ErrCompacted when changes were missed: the state was restored, or changed too
// fast.
func (f *feed) follow(ctx context.Context, at int64) error {
	for {
		changes, err := f.state.Feed().After(at, changesAtOnce)
		if err != nil {
			return err
		}
		for c := range changes {
			f.tell(&changes[c])
		}
		if len(changes) > 0 {
			at = changes[len(changes)-1].Revision
			continue
		}
		if err := f.state.Feed().Wait(ctx, at); err != nil {
			return err
		}
	}
}

func (f *feed) tell(c *store.Change) {
	for _, i := range f.interests {
		i.follow(c)
	}
	for _, i := range f.informers {
		i.tell(c)
	}
}
