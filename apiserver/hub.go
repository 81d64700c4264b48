package apiserver

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/store"
)

const (
	// dispatchBatch is how many changes the hub reads from the feed at once.
	dispatchBatch = 1024
	// bookmarkEvery is how often an idle watcher is told how far it is;
	// bookmarkLag is after how many changes at the latest, so that what a
	// client resumes from is in the feed still.
	bookmarkEvery = 15 * time.Second
	bookmarkLag   = 1 << 16
	// bookmarkBefore is how long before its end a watch is told how far it is,
	// so that the client goes on from there.
	bookmarkBefore = 2 * time.Second
	tick           = time.Second
)

// hub follows the change feed, once for all watchers of a server, and routes
// each change to those watchers that it may concern. What nobody watches costs
// one look into a map. A watcher that does not keep up is let go, and catches
// up from the feed by itself.
type hub struct {
	backend Backend
	pins    *pins
	guard   guard.Func // see Config.Guard
	// deliveries are the ways of what watches tell; nil: there are none.
	deliveries *deliveries

	mu       sync.Mutex
	position int64 // every change up to this revision has been routed
	closed   bool
	// groups are by kind within: one table of rows can be shown in several versions.
	groups map[group]map[*kind]*watchers
	all    map[*watcher]struct{}
}

// group is what changes are routed by: the table, and the resource in a table
// of several.
type group struct{ table, keyPrefix string }

// watchers of one group, by what they confine themselves to.
type watchers struct {
	rows  rows
	every map[*watcher]struct{}
	by    map[scope]map[*watcher]struct{}
}

// scope is a part of a group; one of its fields is set.
type scope struct{ key, namespace, node string }

func newHub(backend Backend, pins *pins) *hub {
	return &hub{backend: backend, pins: pins, guard: guard.Unguarded, position: backend.Feed().Last(), groups: map[group]map[*kind]*watchers{}, all: map[*watcher]struct{}{}}
}

// run routes changes until the context ends; then every watch ends.
func (h *hub) run(ctx context.Context) {
	defer h.close()
	var ticking sync.WaitGroup
	ticking.Go(func() { h.guard.Keep(ctx, "watches/tick", h.tick) })
	h.guard.Keep(ctx, "watches/feed", h.follow)
	ticking.Wait()
}

// follow routes changes until the context ends, from where the last one has come to that panicked.
func (h *hub) follow(ctx context.Context) {
	feed := h.backend.Feed()
	position := h.at()
	for feed.Wait(ctx, position) == nil {
		changes, err := feed.After(position, dispatchBatch)
		if err != nil {
			// The state was replaced, or the hub fell behind: the watchers
			// find out for themselves what that means for them.
			position = feed.Last()
			h.restart(position)
			continue
		}
		if !h.guard("watches", func() { h.route(changes) }) {
			h.restart(feed.Last()) // the watchers find out for themselves
		}
		position = h.at()
	}
}

func (h *hub) at() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.position
}

// route hands changes to the watchers that they may concern. It never waits.
func (h *hub) route(changes []store.Change) {
	if len(changes) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range changes {
		c := &changes[i]
		kinds, key := h.watching(c)
		for _, ws := range kinds {
			ws.route(&sharedChange{revision: c.Revision, key: key, old: c.Old, new: c.New})
		}
	}
	h.position = changes[len(changes)-1].Revision
}

// watching finds who watches the group that a change is for, and its key there.
func (h *hub) watching(c *store.Change) (map[*kind]*watchers, string) {
	if len(h.groups) == 0 {
		return nil, ""
	}
	if c.Table != objectsTable {
		return h.groups[group{table: c.Table}], c.Key
	}
	i := strings.IndexByte(c.Key, '/')
	if strings.HasPrefix(c.Key[i+1:], "/") {
		i++ // in no namespace
	}
	return h.groups[group{c.Table, c.Key[:i+1]}], c.Key[i+1:]
}

func (ws *watchers) route(c *sharedChange) {
	for w := range ws.every {
		w.offer(c)
	}
	if len(ws.by) == 0 {
		return
	}
	for w := range ws.by[scope{key: c.key}] {
		w.offer(c)
	}
	if i := strings.IndexByte(c.key, '/'); i >= 0 {
		for w := range ws.by[scope{namespace: c.key[:i]}] {
			w.offer(c)
		}
	}
	if ws.rows.nodeOf == nil {
		return
	}
	before, after := nodeOf(ws.rows, c.old), nodeOf(ws.rows, c.new)
	if before != "" {
		for w := range ws.by[scope{node: before}] {
			w.offer(c)
		}
	}
	if after != "" && after != before {
		for w := range ws.by[scope{node: after}] {
			w.offer(c)
		}
	}
}

func nodeOf(r rows, row any) string {
	if row == nil {
		return ""
	}
	return r.nodeOf(row)
}

// attach puts a watcher that has seen everything up to a revision onto the
// hub's routes. It fails if the hub is already further: the watcher first has to
// read what is between from the feed.
func (h *hub) attach(w *watcher, revision int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.position > revision || h.closed {
		return false
	}
	w.input = make(chan item, watcherBuffer)
	w.after = revision
	w.attached = true
	w.told, w.toldAt = revision, time.Now()
	g := w.group()
	ws := h.groups[g][w.kind]
	if ws == nil {
		ws = &watchers{rows: w.kind.rows, every: map[*watcher]struct{}{}, by: map[scope]map[*watcher]struct{}{}}
		if h.groups[g] == nil {
			h.groups[g] = map[*kind]*watchers{}
		}
		h.groups[g][w.kind] = ws
	}
	if w.scope == (scope{}) {
		ws.every[w] = struct{}{}
		return true
	}
	if ws.by[w.scope] == nil {
		ws.by[w.scope] = map[*watcher]struct{}{}
	}
	ws.by[w.scope][w] = struct{}{}
	return true
}

// detach takes a watcher off the routes and closes its input.
func (h *hub) detach(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.release(w)
	delete(h.all, w)
}

func (h *hub) add(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[w] = struct{}{}
}

// endStalled ends watches whose client has not taken what the feed does not have any more: only they hold it in memory. Such a
// client has to list again in any case.
func (h *hub) endStalled(first int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.all {
		if at := w.holds(); at != 0 && at < first {
			close(w.stalled)
			delete(h.all, w)
		}
	}
}

func (h *hub) release(w *watcher) {
	if !w.attached {
		return
	}
	w.attached = false
	close(w.input)
	kinds := h.groups[w.group()]
	ws := kinds[w.kind]
	delete(ws.every, w)
	if in := ws.by[w.scope]; in != nil {
		delete(in, w)
		if len(in) == 0 {
			delete(ws.by, w.scope)
		}
	}
	if len(ws.every) == 0 && len(ws.by) == 0 {
		delete(kinds, w.kind)
	}
	if len(kinds) == 0 {
		delete(h.groups, w.group())
	}
}

// restart lets every watcher look into the feed for itself.
func (h *hub) restart(position int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.each(func(w *watcher) {
		w.resume = h.position
		h.release(w)
	})
	h.position = position
}

// resumeOf is the revision up to which a released watcher was told everything.
func (h *hub) resumeOf(w *watcher) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return w.resume
}

func (h *hub) isClosed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.each(h.release)
}

func (h *hub) each(f func(w *watcher)) {
	for _, kinds := range h.groups {
		for _, ws := range kinds {
			ws.each(f)
		}
	}
}

func (ws *watchers) each(f func(w *watcher)) {
	for w := range ws.every {
		f(w)
	}
	for _, in := range ws.by {
		for w := range in {
			f(w)
		}
	}
}

// tick sends the bookmarks that are due, and expires pinned views.
func (h *hub) tick(ctx context.Context) {
	guard.Every(ctx, tick, func(now time.Time) {
		h.bookmark(now)
		first := h.backend.Feed().First()
		h.pins.expire(h.backend.View().Revision(), first)
		h.endStalled(first)
		h.deliveries.cutUnread(now)
	})
}

// endsSoon says once of a watcher that its time is nearly over.
func (w *watcher) endsSoon(now time.Time) bool {
	if w.last || w.endsAt.IsZero() || w.endsAt.Sub(now) > bookmarkBefore {
		return false
	}
	w.last = true
	return true
}

func (h *hub) bookmark(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.each(func(w *watcher) {
		if w.bookmarks && (h.position-w.told >= bookmarkLag || now.Sub(w.toldAt) >= bookmarkEvery || w.endsSoon(now)) {
			w.told, w.toldAt = h.position, now
			w.offerItem(item{bookmark: h.position})
		}
	})
}
