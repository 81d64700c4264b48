package apiserver

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

const (
	// watcherBuffer is how many changes may wait for a watcher before it is
	// left to catch up from the feed.
	watcherBuffer = 128
	// resultBuffer is how many events a client that is slow for a moment has
	// still before it when its watch ends.
	resultBuffer = 16
	// catchUpBatch is how many changes it then reads at once.
	catchUpBatch = 1024
)

// sharedChange is a change on its way to several watchers of one kind. It is
// presented once for all of them, and encoded once a form, by the first that
// needs it.
type sharedChange struct {
	revision int64
	key      string
	old, new any

	oldOnce, newOnce, goneOnce sync.Once
	oldObj                     runtime.Object
	newObj, goneObj            *encodedOnce
	oldErr, newErr             error
}

func (c *sharedChange) showOld(k *kind, v func() *fsm.View) (runtime.Object, error) {
	c.oldOnce.Do(func() { c.oldObj, c.oldErr = k.showChange(v(), c.old) })
	return c.oldObj, c.oldErr
}

func (c *sharedChange) showNew(k *kind, v func() *fsm.View) (*encodedOnce, error) {
	c.newOnce.Do(func() {
		var obj runtime.Object
		obj, c.newErr = k.showChange(v(), c.new)
		c.newObj = &encodedOnce{object: obj}
	})
	return c.newObj, c.newErr
}

// showGone is the old object as those are told of it for whom it is gone: with
// the revision of the change.
func (c *sharedChange) showGone(k *kind, v func() *fsm.View) (*encodedOnce, error) {
	obj, err := c.showOld(k, v)
	if err != nil {
		return nil, err
	}
	c.goneOnce.Do(func() {
		gone := shallowCopy(obj)
		metaOf(gone).SetResourceVersion(strconv.FormatInt(c.revision, 10))
		c.goneObj = &encodedOnce{object: gone}
	})
	return c.goneObj, nil
}

func (k *kind) showChange(v *fsm.View, row any) (runtime.Object, error) {
	present := k.present
	if k.presentChange != nil {
		present = k.presentChange
	}
	into := k.newObject()
	return into, present(v)(row, into)
}

// item is what the hub gives a watcher: a change, or the revision up to which
// there were no others.
type item struct {
	change   *sharedChange
	bookmark int64
}

// watcher is one watch. Its goroutine sends the initial objects, catches up
// from the feed, and then takes from the hub; when it falls behind there it
// catches up again.
type watcher struct {
	kind      *kind
	hub       *hub
	backend   Backend
	matcher   matcher
	scope     scope
	prefix    string // of the keys that are watched
	bookmarks bool

	ctx    context.Context
	cancel context.CancelFunc
	result chan watch.Event

	initial *initialEvents // nil: none

	// Of the hub, under its lock.
	input    chan item
	after    int64 // revision up to which the hub's changes are known already
	attached bool
	told     int64
	toldAt   time.Time
	last     bool  // the last bookmark was sent
	resume   int64 // where the hub let go

	endsAt time.Time // zero: nobody knows

	// sending is the revision of the oldest of what the watch holds because its client has not taken it: of a view or a change; 0: it
	// holds nothing.
	sending atomic.Int64
	stalled chan struct{} // closed by the hub when that is too old

	delivery *delivery // nil: events are not written to anybody
	mu       sync.Mutex
	out      []int64 // of which revisions the events are that were given to upstream and may not be written yet; 0: they hold nothing
}

// initialEvents are the objects that are there when a watch begins.
type initialEvents struct {
	view     *fsm.View
	announce bool // the end, by a bookmark
}

func (w *watcher) group() group { return group{w.kind.rows.table, w.kind.rows.keyPrefix} }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.cancel() }

// offer is the hub's; it never waits.
func (w *watcher) offer(c *sharedChange) {
	if c.revision > w.after && w.attached {
		w.offerItem(item{change: c})
	}
}

func (w *watcher) offerItem(i item) {
	select {
	case w.input <- i:
	default:
		w.resume = w.hub.position
		w.hub.release(w)
	}
}

var errStopped = errors.New("the watch was stopped")

// run is the watcher's goroutine. position is the revision to begin after.
func (w *watcher) run(position int64) {
	defer close(w.result)
	defer w.hub.detach(w)
	defer w.cancel()
	var err error
	if !w.hub.guard("watch", func() { err = w.tell(position) }) {
		err = apierrors.NewInternalError(errors.New("the server broke over this watch, which is a mistake of Berth's"))
	}
	if !errors.Is(err, errStopped) {
		w.drop() // what the client has not taken it learns otherwise: behind the error it lists again
		// Nothing is held for a client that does not even take the error.
		w.hub.detach(w)
		w.input, w.initial, w.stalled = nil, nil, nil
		w.sendError(err)
	}
}

// tell sends what there is to tell, until the watch ends.
func (w *watcher) tell(position int64) error {
	err := w.sendInitial()
	utilflowcontrol.WatchInitialized(w.ctx) // from here on the watch costs little
	for err == nil {
		if position, err = w.catchUp(position); err == nil {
			position, err = w.follow(position)
		}
	}
	return err
}

// sendInitial sends what is there when the watch begins.
func (w *watcher) sendInitial() error {
	if w.initial == nil {
		return nil
	}
	v := w.initial.view
	w.sending.Store(v.Revision())
	defer w.sending.Store(0)
	present, answer := w.kind.present(v), answerFrom(w.ctx)
	defer answer.outOfTurn()
	err := w.scanInitial(v, func(row any) error {
		if err := answer.inTurn(w.ctx); err != nil {
			return errStopped
		}
		show := func() (runtime.Object, error) {
			into := w.kind.newObject()
			return into, present(row, into)
		}
		ok, err := w.matcher.matches(row, show)
		if !ok || err != nil {
			return err
		}
		obj, err := show()
		if err != nil {
			return err
		}
		answer.outOfTurn() // the client may take its time
		return w.send(watch.Added, answer.encodedInTurn(w.ctx, obj))
	})
	if err == nil && w.initial.announce {
		err = w.sendBookmark(v.Revision(), true)
	}
	w.initial = nil // the view is free
	return err
}

func (w *watcher) scanInitial(v *fsm.View, f func(row any) error) (err error) {
	visit := func(key string, row any) bool {
		if strings.HasPrefix(key, w.prefix) {
			err = f(row)
		}
		return err == nil
	}
	switch {
	case w.scope.key != "":
		if row, ok := w.kind.rows.get(v, w.scope.key); ok {
			err = f(row)
		}
	case w.scope.node != "":
		w.kind.rows.onNode(v, w.scope.node, visit)
	default:
		w.kind.rows.scan(v, w.prefix, w.prefix, visit)
	}
	return err
}

// catchUp reads from the feed until the hub takes over, and gives the revision
// up to which everything was sent.
func (w *watcher) catchUp(position int64) (int64, error) {
	feed := w.backend.Feed()
	if err := w.awaitFeed(feed, position); err != nil {
		return position, err
	}
	for {
		changes, err := feed.After(position, catchUpBatch)
		if err != nil {
			return position, err
		}
		w.sending.Store(position + 1)
		for i := range changes {
			c := &changes[i]
			if c.Table == w.kind.rows.table && strings.HasPrefix(c.Key, w.kind.rows.keyPrefix) {
				shared := &sharedChange{revision: c.Revision, key: c.Key[len(w.kind.rows.keyPrefix):], old: c.Old, new: c.New}
				if err := w.sendChange(shared); err != nil {
					return position, err
				}
			}
			position = c.Revision
		}
		w.sending.Store(0)
		if w.ctx.Err() != nil {
			return position, errStopped
		}
		if len(changes) == 0 {
			if w.hub.attach(w, position) {
				return position, nil
			}
			if w.hub.isClosed() {
				return position, errStopped
			}
		}
	}
}

// awaitFeed waits for the feed to be as far as the view that the watch began
// with: a view is published a moment before its changes.
func (w *watcher) awaitFeed(feed *store.Feed, position int64) error {
	ctx, cancel := context.WithTimeout(w.ctx, freshnessTimeout)
	defer cancel()
	for {
		last := feed.Last()
		if last >= position {
			return nil
		}
		if feed.Wait(ctx, last) != nil {
			if w.ctx.Err() != nil {
				return errStopped
			}
			return store.ErrCompacted // the state went back behind what the client saw
		}
	}
}

// follow sends what comes from the hub until the hub lets go.
func (w *watcher) follow(position int64) (int64, error) {
	for {
		select {
		case <-w.ctx.Done():
			return position, errStopped
		case <-w.stalled:
			return position, store.ErrCompacted
		case i, ok := <-w.input:
			switch {
			case !ok:
				return max(position, w.hub.resumeOf(w)), nil
			case i.change == nil:
				position = max(position, i.bookmark)
				if err := w.sendBookmark(i.bookmark, false); err != nil {
					return position, err
				}
			default:
				w.sending.Store(i.change.revision)
				if err := w.sendChange(i.change); err != nil {
					return position, err
				}
				w.sending.Store(0)
				position = i.change.revision
			}
		}
	}
}

// sendChange sends what a change means to this watch: an object that begins or
// ceases to match is added or deleted.
func (w *watcher) sendChange(c *sharedChange) error {
	if !w.inScope(c.key) {
		return nil
	}
	was, err := w.selected(c.old, c.oldShown(w))
	if err != nil {
		return err
	}
	is, err := w.selected(c.new, c.newShown(w))
	if err != nil {
		return err
	}
	switch {
	case is && was:
		return w.sendNew(watch.Modified, c)
	case is:
		return w.sendNew(watch.Added, c)
	case was:
		gone, err := c.showGone(w.kind, w.backend.View)
		if err != nil {
			return err
		}
		return w.send(watch.Deleted, gone)
	}
	return nil
}

func (w *watcher) inScope(key string) bool {
	if w.scope.key != "" {
		return key == w.scope.key
	}
	return strings.HasPrefix(key, w.prefix)
}

func (w *watcher) selected(row any, show func() (runtime.Object, error)) (bool, error) {
	if row == nil {
		return false, nil
	}
	return w.matcher.matches(row, show)
}

func (c *sharedChange) oldShown(w *watcher) func() (runtime.Object, error) {
	return func() (runtime.Object, error) { return c.showOld(w.kind, w.backend.View) }
}

func (c *sharedChange) newShown(w *watcher) func() (runtime.Object, error) {
	return func() (runtime.Object, error) {
		shown, err := c.showNew(w.kind, w.backend.View)
		if err != nil {
			return nil, err
		}
		return shown.object, nil
	}
}

func (w *watcher) sendNew(t watch.EventType, c *sharedChange) error {
	shown, err := c.showNew(w.kind, w.backend.View)
	if err != nil {
		return err
	}
	return w.send(t, shown)
}

// shallowCopy gives each encoder an object of its own: it writes the type into
// it.
func shallowCopy(obj runtime.Object) runtime.Object {
	if _, all := obj.(runtime.Unstructured); all { // its metadata is as deep as the rest
		return obj.DeepCopyObject()
	}
	out := reflect.New(reflect.TypeOf(obj).Elem())
	out.Elem().Set(reflect.ValueOf(obj).Elem())
	return out.Interface().(runtime.Object)
}

func (w *watcher) send(t watch.EventType, obj runtime.Object) error {
	select {
	case w.result <- watch.Event{Type: t, Object: obj}:
		w.give(w.sending.Load())
		return nil
	case <-w.stalled:
		return store.ErrCompacted
	case <-w.ctx.Done():
		return errStopped
	}
}

// sendBookmark tells the client that it has everything up to a revision.
func (w *watcher) sendBookmark(revision int64, endOfInitial bool) error {
	obj := w.kind.newObject()
	m := metaOf(obj)
	m.SetResourceVersion(strconv.FormatInt(revision, 10))
	if endOfInitial {
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return w.send(watch.Bookmark, obj)
}

// sendError ends the watch with a reason. A client that is told 410 lists
// again.
func (w *watcher) sendError(err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	if errors.Is(err, store.ErrCompacted) {
		status = watchExpired()
	}
	s := status.Status()
	_ = w.send(watch.Error, &s) // the client may be gone
}

func watchExpired() *apierrors.StatusError {
	err := apierrors.NewResourceExpired("too old resource version: the changes since then are no longer kept")
	err.ErrStatus.Code = http.StatusGone
	return err
}

// Watch implements storage.Interface.
func (t *tables) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w := &watcher{
		kind: t.kind, hub: t.hub, backend: t.backend,
		matcher:   newMatcher(t.kind, opts.Predicate, t.attrs),
		bookmarks: opts.Predicate.AllowWatchBookmarks,
		result:    make(chan watch.Event, resultBuffer),
		stalled:   make(chan struct{}),
	}
	if opts.Recursive {
		w.prefix = t.rowPrefix(key)
	} else {
		w.scope.key = t.rowKey(key)
	}
	if node, ok := w.matcher.node(); ok && w.scope.key == "" {
		w.scope = scope{node: node}
	} else if w.prefix != "" {
		w.scope = scope{namespace: strings.TrimSuffix(w.prefix, "/")}
	}
	position, err := t.beginWatch(ctx, w, opts)
	if err != nil {
		return nil, err
	}
	w.endsAt, _ = ctx.Deadline()
	w.ctx, w.cancel = context.WithCancel(ctx)
	if w.delivery = deliveryFrom(ctx); w.delivery != nil {
		w.delivery.watching(w.ctx)
	}
	if t.ended != nil {
		forget, cancel := context.AfterFunc(t.ended, w.cancel), w.cancel
		w.cancel = func() {
			forget()
			cancel()
		}
	}
	w.hub.add(w)
	go w.run(position)
	if w.initial == nil {
		flowcontrol.WatchInitialized(ctx) // it takes nobody's seat from now on, and others when they have sent what is there
	}
	return w, nil
}

// beginWatch decides where a watch begins and what it sends first.
func (t *tables) beginWatch(ctx context.Context, w *watcher, opts storage.ListOptions) (int64, error) {
	revision, err := t.parseRevision(opts.ResourceVersion)
	if err != nil {
		return 0, err
	}
	initial := revision == 0 // the old way: "0" and none begin with what is there
	if opts.SendInitialEvents != nil {
		initial = *opts.SendInitialEvents
	}
	if revision != 0 && !initial {
		// The view is not older, so the feed has been there.
		if _, err := t.viewNotOlder(ctx, revision); err != nil {
			return 0, err
		}
		if revision < t.backend.Feed().First() {
			return 0, watchExpired()
		}
		return revision, nil
	}
	v, err := t.viewFor(ctx, opts.ResourceVersion)
	if err != nil {
		return 0, err
	}
	if initial {
		w.initial = &initialEvents{view: v, announce: opts.SendInitialEvents != nil && opts.Predicate.AllowWatchBookmarks}
	}
	return v.Revision(), nil
}
