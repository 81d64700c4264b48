package informers

import (
	"context"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/store"
)

// State is what informers look at.
type State interface {
	// View is the latest state, Feed the changes that lead to it.
	View() *fsm.View
	Feed() *store.Feed
}

// Feed tells informers of what changes in the state.
type Feed struct {
	state     State
	informers []*Informer
	interests []*Interest
	// rows notices who changes a row: it ends the process then. It does nothing unless client-go's
	// KUBE_CACHE_MUTATION_DETECTOR is set, as it is in tests.
	rows cache.MutationDetector
}

// NewFeed gives a feed of a state's changes.
func NewFeed(state State) *Feed {
	return &Feed{state: state, rows: cache.NewCacheMutationDetector("rows")}
}

// Add makes an informer of rows, and has it told from the beginning on.
func (f *Feed) Add(r *Rows) *Informer {
	i := New(r, f.state.View)
	i.shown = f.rows.AddObject
	f.informers = append(f.informers, i)
	return i
}

// Begins notes in which pods the controller has an interest that registers its handlers
// from now on; nil: in all.
func (f *Feed) Begins(i *Interest) {
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

// Begin tells of what there is, and gives the revision that it was read at.
func (f *Feed) Begin() int64 {
	v := f.state.View()
	for _, i := range f.interests {
		i.begin(v)
	}
	var telling guard.Group
	for _, i := range f.informers {
		telling.Go(func() { i.begin(v) })
	}
	telling.Wait()
	return v.Revision()
}

// Follow tells of every change after a revision until ctx ends. It fails with
// store.ErrCompacted when changes were missed: the state was restored, or changed too
// fast.
func (f *Feed) Follow(ctx context.Context, at int64) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	go f.rows.Run(ctx.Done()) // and no guard keeps its panic
	more, told := true, time.Now().Add(laterAfter-laterEvery)
	for {
		if more && time.Since(told) >= laterEvery {
			more, told = f.tellLater(), time.Now()
		}
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
		if err := f.wait(ctx, at, more); err != nil {
			return err
		}
	}
}

// wait waits for changes after a revision, or a while if there is more to tell of anyway.
func (f *Feed) wait(ctx context.Context, at int64, more bool) error {
	waiting := ctx
	if more {
		var end context.CancelFunc
		waiting, end = context.WithTimeout(ctx, laterEvery)
		defer end()
	}
	if err := f.state.Feed().Wait(waiting, at); err != nil && (!more || ctx.Err() != nil) {
		return err
	}
	return nil
}

func (f *Feed) tell(c *store.Change) {
	for _, i := range f.interests {
		i.follow(c)
	}
	for _, i := range f.informers {
		i.tell(c)
	}
}
