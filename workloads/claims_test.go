package workloads

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"
)

// TestClaimsLater: what there is when a controller begins is told at once, and every change a moment later, once.
func TestClaimsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		tell := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, what)
		}
		heard := func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			out := slices.Sorted(slices.Values(told)) // of one moment in any order: who is told reads the newest
			told = nil
			return out
		}
		h := handlerLater{cache.ResourceEventHandlerDetailedFuncs{
			AddFunc:    func(o any, _ bool) { tell("add " + o.(string)) },
			UpdateFunc: func(_, now any) { tell("update " + now.(string)) },
			DeleteFunc: func(o any) { tell("delete " + o.(string)) },
		}}
		h.OnAdd("a", true)
		h.OnAdd("b", false)
		h.OnUpdate("a", "a2")
		h.OnDelete("b")
		if got := heard(); !slices.Equal(got, []string{"add a"}) {
			t.Errorf("at once: %q", got)
		}
		time.Sleep(claimDelay)
		if got := heard(); !slices.Equal(got, []string{"add b", "delete b", "update a2"}) {
			t.Errorf("later: %q", got)
		}
	})
}
