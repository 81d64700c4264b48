package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/worker"
)

const (
	// maxObjectBytes bounds the copies of objects; beyond it all are let go of, and fetched again as they are needed.
	maxObjectBytes = 64 << 20
	// objectIdle is how long a copy is kept that nobody asks for.
	objectIdle = 10 * time.Minute
)

// objects are this node's copies of config maps and secrets, one for all pods that refer to them. A copy is good until
// the server says that the object has changed. Nothing of it is on a disk.
type objects struct {
	mu sync.Mutex
	of map[worker.ObjectRef]*object
}

type object struct {
	fetching sync.Mutex // held by who asks the server
	// Guarded by objects.mu.
	raw      []byte
	revision int64 // of raw; 0: there is none
	good     bool
	used     time.Time
}

// get gives the object's bytes, which are shared. When the server cannot be asked, the copy of before is good enough: it
// is what the pods of the node have.
func (o *objects) get(
	ctx context.Context, ref worker.ObjectRef, fetch func(ctx context.Context, have int64) (*rpc.FetchResponse, error),
) ([]byte, error) {
	one := o.entry(ref)
	one.fetching.Lock()
	defer one.fetching.Unlock()
	o.mu.Lock()
	raw, have, good := one.raw, one.revision, one.good
	one.good = true // unless a change is told from here on
	o.mu.Unlock()
	if good {
		return raw, nil
	}
	r, err := fetch(ctx, have)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil && r.Unchanged:
		one.good = one.good && r.Followed
		return raw, nil
	case err == nil:
		one.raw, one.revision, one.good = r.Object, r.Revision, one.good && r.Followed
		return r.Object, nil
	case errors.Is(err, rpc.ErrNotFound), errors.Is(err, rpc.ErrForbidden):
		one.raw, one.revision, one.good = nil, 0, false
		return nil, err
	case have != 0:
		one.good = false
		return raw, nil
	}
	one.good = false
	return nil, err
}

func (o *objects) entry(ref worker.ObjectRef) *object {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	one := o.of[ref]
	if one == nil {
		o.prune(now)
		one = &object{}
		o.of[ref] = one
	}
	one.used = now
	return one
}

// prune lets go of what was not asked for lately, and of all where it is too much.
func (o *objects) prune(now time.Time) {
	held := 0
	for ref, one := range o.of {
		held += len(one.raw)
		if now.Sub(one.used) > objectIdle {
			held -= len(one.raw)
			delete(o.of, ref)
		}
	}
	if o.of == nil || held > maxObjectBytes {
		o.of = map[worker.ObjectRef]*object{}
	}
}

// changed: copies are good no more.
func (o *objects) changed(refs []worker.ObjectRef) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, ref := range refs {
		if one := o.of[ref]; one != nil {
			one.good = false
		}
	}
}

// doubt: any of them may have changed.
func (o *objects) doubt() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, one := range o.of {
		one.good = false
	}
}
