package apiserver

import (
	"sync"
	"time"

	"github.com/berth-dev/berth/fsm"
)

// Bounds of the views that are kept for clients which read a list in parts. A
// view costs what has changed since, so it is kept neither for long nor behind
// many changes.
const (
	maxPins   = 64
	pinTTL    = 5 * time.Minute
	maxPinLag = 1 << 18
	// Nor longer than the change feed reaches back to them: what a view holds alone was replaced since, and the feed holds so
	// many bytes of that.
)

// pins keeps views for lists that are read in parts, so that every part is of
// one state.
type pins struct {
	now func() time.Time

	mu    sync.Mutex
	views map[int64]pin
}

type pin struct {
	view  *fsm.View
	until time.Time
}

func newPins(now func() time.Time) *pins { return &pins{now: now, views: map[int64]pin{}} }

// keep holds a view from its first part on.
func (p *pins) keep(v *fsm.View) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.views[v.Revision()]; ok {
		return
	}
	if len(p.views) >= maxPins {
		p.dropOldest()
	}
	p.views[v.Revision()] = pin{v, p.now().Add(pinTTL)}
}

func (p *pins) dropOldest() {
	var oldest int64 = -1
	for revision, kept := range p.views {
		if oldest < 0 || kept.until.Before(p.views[oldest].until) {
			oldest = revision
		}
	}
	delete(p.views, oldest)
}

// get returns the view of a revision while it is kept.
func (p *pins) get(revision int64) (*fsm.View, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept, ok := p.views[revision]
	return kept.view, ok && p.now().Before(kept.until)
}

// expire forgets what has been kept for long enough, or is too far behind the
// state's revision, or behind what the feed still has.
func (p *pins) expire(current, first int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	for revision, kept := range p.views {
		if !now.Before(kept.until) || current-revision > maxPinLag || revision < first {
			delete(p.views, revision)
		}
	}
}
