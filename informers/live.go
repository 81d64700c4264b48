package informers

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// Live is an informer for as long as a server runs: handlers come when they like, and if
// changes were missed they are told what is otherwise than they know. Of kinds with
// handlers it remembers which objects they were told of, so it is for those that are few.
type Live struct {
	*Informer
	ready *atomic.Bool

	mu       sync.Mutex
	handlers []*liveHandler
	known    map[string]any // what the handlers were told of; nil: there was none yet
	at       int64          // the revision that known is of
}

// liveHandler is a handler of a Live, and its registration.
type liveHandler struct {
	cache.ResourceEventHandler
	of *Live
}

var (
	_ cache.SharedIndexInformer              = (*Live)(nil)
	_ cache.ResourceEventHandlerRegistration = (*liveHandler)(nil)
)

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (h *liveHandler) HasSynced() bool { return h.of.HasSynced() }

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (h *liveHandler) HasSyncedChecker() cache.DoneChecker { return h.of }

// HasSynced implements cache.SharedInformer: the state is as new as it was anywhere when
// this server began.
func (l *Live) HasSynced() bool { return l.ready.Load() }

// AddEventHandler implements cache.SharedInformer.
func (l *Live) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		v := l.view()
		l.known, l.at = map[string]any{}, v.Revision()
		l.rows.scan(v, "", func(key string, o any) bool {
			l.known[key] = o
			return true
		})
	}
	for _, o := range l.known {
		h.OnAdd(o, true)
	}
	r := &liveHandler{h, l}
	l.handlers = append(l.handlers, r)
	return r, nil
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer.
func (l *Live) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return l.AddEventHandler(h)
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (l *Live) AddEventHandlerWithOptions(h cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return l.AddEventHandler(h)
}

// RemoveEventHandler implements cache.SharedInformer.
func (l *Live) RemoveEventHandler(r cache.ResourceEventHandlerRegistration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, h := range l.handlers {
		if h == r {
			l.handlers = append(l.handlers[:i:i], l.handlers[i+1:]...)
			break
		}
	}
	return nil
}

// follow tells the handlers of a change, if it is one of this kind that they do not know.
func (l *Live) follow(c *store.Change) {
	if c.Table != l.rows.table {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil || c.Revision <= l.at {
		return
	}
	if key, ours := strings.CutPrefix(c.Key, l.rows.prefix); ours {
		l.tell(key, l.objectOf(c.New))
	}
}

// anew tells the handlers what is otherwise in a view than they know.
func (l *Live) anew(v *fsm.View) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		return
	}
	there := map[string]any{}
	l.rows.scan(v, "", func(key string, o any) bool {
		there[key] = o
		return true
	})
	for key := range l.known {
		if there[key] == nil {
			l.tell(key, nil)
		}
	}
	for key, o := range there {
		if l.known[key] != o {
			l.tell(key, o)
		}
	}
	l.at = v.Revision()
}

// tell tells the handlers of what became of a key.
func (l *Live) tell(key string, now any) {
	old := l.known[key]
	if old == nil && now == nil {
		return
	}
	if l.known[key] = now; now == nil {
		delete(l.known, key)
	}
	for _, h := range l.handlers {
		switch {
		case now == nil:
			h.OnDelete(old)
		case old == nil:
			h.OnAdd(now, false)
		default:
			h.OnUpdate(old, now)
		}
	}
}

// LiveFeed tells Live informers what changes in the state.
type LiveFeed struct {
	state State
	lives []*Live
	ready atomic.Bool
}

// NewLiveFeed gives a feed of a state's changes.
func NewLiveFeed(state State) *LiveFeed { return &LiveFeed{state: state} }

// Add makes an informer of rows. All are made before Run.
func (f *LiveFeed) Add(r *Rows) *Live {
	l := &Live{Informer: New(r, f.state.View), ready: &f.ready}
	f.lives = append(f.lives, l)
	return l
}

// Ready says that the state is as new as it was anywhere when this server began: what is
// read from it is not of long ago.
func (f *LiveFeed) Ready() { f.ready.Store(true) }

// IsReady says whether it is.
func (f *LiveFeed) IsReady() bool { return f.ready.Load() }

// Run tells of changes until ctx ends.
func (f *LiveFeed) Run(ctx context.Context) {
	at := f.anew()
	for {
		changes, err := f.state.Feed().After(at, changesAtOnce)
		switch {
		case err != nil: // too far behind, or the state was restored
			at = f.anew()
			continue
		case len(changes) == 0:
			if f.state.Feed().Wait(ctx, at) != nil {
				return
			}
			continue
		}
		for c := range changes {
			for _, l := range f.lives {
				l.follow(&changes[c])
			}
		}
		at = changes[len(changes)-1].Revision
	}
}

func (f *LiveFeed) anew() int64 {
	v := f.state.View()
	for _, l := range f.lives {
		l.anew(v)
	}
	return v.Revision()
}
