package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
)

const (
	// looksAtOnce is how many containers are looked at at a time, and looksAgain how many beside those of which the look before has failed: those
	// that the runtime hangs on keep no place from the others.
	looksAtOnce, looksAgain = 8, 4
	// looksPatience is how long the next listing waits for what is looked at.
	looksPatience = 2 * time.Second
)

// look is what is being found out of a container or a sandbox.
type look struct {
	over chan struct{}
	err  error // when it is over
}

// begin calls f, when it has a place, unless the same is being looked at. What has to come after others needs no place of its own, and fails once where
// one of them has failed.
func (r *Runtime) begin(ref string, after []*look, f func() error) *look {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.looks[ref]; l != nil {
		return l
	}
	l := &look{over: make(chan struct{})}
	r.looks[ref] = l
	places, again := r.looking, r.failed[ref]
	if again {
		places = r.lookingAgain
	}
	r.loops.Go(func() {
		defer close(l.over)
		for _, other := range after {
			<-other.over
			l.err = cmp.Or(l.err, other.err)
		}
		if after == nil {
			places <- struct{}{}
			defer func() { <-places }()
		}
		if l.err == nil || again {
			l.err = f()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.looks, ref)
		if delete(r.failed, ref); l.err != nil {
			r.failed[ref] = true
		}
	})
	return l
}

// forgetFailed forgets what is not there any more of what could not be looked at.
func (r *Runtime) forgetFailed(known map[runtime.ID]running, current map[types.UID]string, unwanted []string) {
	there := make(map[string]bool, len(known)+len(current)+len(unwanted))
	for _, c := range known {
		there[c.ref] = true
	}
	for _, box := range current {
		there[box] = true
	}
	for _, ref := range unwanted {
		there[ref] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.failed, func(ref string, _ bool) bool { return !there[ref] })
}

// awaitLooks waits for a while, and returns what failed of what is over.
func awaitLooks(ctx context.Context, all []*look) error {
	soon, cancel := context.WithTimeout(ctx, looksPatience)
	defer cancel()
	var failed []error
	late := 0
	for _, l := range all {
		select {
		case <-l.over:
		case <-soon.Done():
		}
		select {
		case <-l.over:
			failed = append(failed, l.err)
		default:
			late++
		}
	}
	if late > 0 {
		failed = append(failed, fmt.Errorf("what became of %d containers and sandboxes the runtime has not said yet", late))
	}
	return errors.Join(failed...)
}

// severalAtOnce calls all of them, only so many at a time, and returns what failed.
func severalAtOnce(calls []func() error) error {
	failed := make([]error, len(calls))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(looksAtOnce, len(calls)) {
		workers.Go(func() {
			for i := range next {
				failed[i] = calls[i]()
			}
		})
	}
	for i := range calls {
		next <- i
	}
	close(next)
	workers.Wait()
	return errors.Join(failed...)
}
