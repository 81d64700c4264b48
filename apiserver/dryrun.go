package apiserver

import (
	"context"
	"errors"
	"sync"

	"github.com/berth-dev/berth/fsm"
)

var errResults = errors.New("the log gave another number of results than commands were proposed")

// dryRun is a request that is to change nothing: its commands are carried out
// on a copy of the state, which the rest of the request reads. So every rule of
// Apply holds and every field that Apply fills in shows.
type dryRun struct {
	mu     sync.Mutex
	origin *fsm.View
	copy   *fsm.State
	now    func() int64
}

type dryRunKey struct{}

// withDryRun begins a dry run on the latest state.
func withDryRun(ctx context.Context, backend Backend) (context.Context, error) {
	if err := backend.ReadIndex(ctx); err != nil {
		return nil, readError(err)
	}
	v := backend.View()
	return context.WithValue(ctx, dryRunKey{}, &dryRun{origin: v, copy: v.Fork(), now: backend.NowUnixNano}), nil
}

func dryRunFrom(ctx context.Context) *dryRun {
	d, _ := ctx.Value(dryRunKey{}).(*dryRun)
	return d
}

// try carries commands out on the copy.
func (d *dryRun) try(proposals []fsm.Proposal) []fsm.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.copy.Try(d.now(), proposals...)
}

// resourceVersion is that of the object which really is there: what the copy
// counted belongs to a state that nobody will see.
func (d *dryRun) resourceVersion(k *kind, key string) string {
	row, ok := k.rows.get(d.origin, key)
	if !ok {
		return ""
	}
	obj, err := k.show(d.origin, row)
	if err != nil {
		return ""
	}
	return metaOf(obj).GetResourceVersion()
}
