package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/worker"
)

// TestObjects: an object is fetched when nobody knows that the copy is good, and only then.
func TestObjects(t *testing.T) {
	var o objects
	ref := worker.ObjectRef{Resource: "configmaps", Namespace: "default", Name: "c"}
	answer, failure := rpc.FetchResponse{Object: []byte("one"), Revision: 5, Followed: true}, error(nil)
	var asked []string
	during := func() {}
	get := func() string {
		raw, err := o.get(t.Context(), ref, func(_ context.Context, have int64) (*rpc.FetchResponse, error) {
			asked = append(asked, fmt.Sprint(have))
			during()
			r := answer
			if r.Unchanged = have == r.Revision; r.Unchanged {
				r.Object = nil
			}
			return &r, failure
		})
		if err != nil {
			return err.Error()
		}
		return string(raw)
	}
	expect := func(step, want, fetched string) {
		t.Helper()
		asked = nil
		if got := get(); got != want || strings.Join(asked, " ") != fetched {
			t.Errorf("%s: %q after asking with [%s], want %q and [%s]", step, got, strings.Join(asked, " "), want, fetched)
		}
	}
	expect("at first", "one", "0")
	expect("again", "one", "")
	o.changed([]worker.ObjectRef{ref})
	expect("it was told, and is the same", "one", "5")
	expect("and is followed again", "one", "")
	answer.Object, answer.Revision = []byte("two"), 6
	o.doubt()
	expect("another server", "two", "5")
	failure = errors.New("no server answers")
	o.changed([]worker.ObjectRef{ref})
	expect("the copy is what there is", "two", "6")
	expect("until somebody answers", "two", "6")
	failure = nil
	during = func() { o.changed([]worker.ObjectRef{ref}) }
	expect("it changes while it is fetched", "two", "6")
	during = func() {}
	expect("which is not lost", "two", "6")
	failure = rpc.ErrNotFound
	o.changed([]worker.ObjectRef{ref})
	expect("it is gone", rpc.ErrNotFound.Error(), "6")
	failure = nil
	expect("and comes again", "two", "0")
	answer.Followed = false
	o.changed([]worker.ObjectRef{ref})
	expect("a server that does not tell", "two", "6")
	expect("is asked each time", "two", "6")
}

// TestObjectsAreFetchedOnce: many pods that start at once ask for one object once.
func TestObjectsAreFetchedOnce(t *testing.T) {
	var o objects
	var asked atomic.Int32
	var pods sync.WaitGroup
	for range 50 {
		pods.Go(func() {
			for _, name := range []string{"a", "b"} {
				ref := worker.ObjectRef{Resource: "configmaps", Namespace: "default", Name: name}
				raw, err := o.get(t.Context(), ref, func(context.Context, int64) (*rpc.FetchResponse, error) {
					asked.Add(1)
					return &rpc.FetchResponse{Object: []byte(name), Revision: 1, Followed: true}, nil
				})
				if err != nil || string(raw) != name {
					t.Errorf("%q, %v", raw, err)
				}
			}
		})
	}
	pods.Wait()
	if n := asked.Load(); n != 2 {
		t.Errorf("it was fetched %d times", n)
	}
}
