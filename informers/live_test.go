package informers

import (
	"context"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/informers/worldtest"
)

// TestLiveHandlersAreToldEverything: whoever comes, early or late, knows what there is, also
// when changes were missed, and who has gone is told of nothing.
func TestLiveHandlersAreToldEverything(t *testing.T) {
	w := worldtest.New(t)
	change := rapid.Custom(func(t *rapid.T) int { w.Step(t); return 0 })
	f := NewLiveFeed(w)
	var lives []*Live
	for _, rows := range []*Rows{pods(), Plain("statefulsets"), Plain("services")} {
		lives = append(lives, f.Add(rows))
	}
	if lives[0].HasSynced() {
		t.Error("it is synced before anybody has said so")
	}
	f.Ready()
	var everybody []*told
	join := func(l *Live) cache.ResourceEventHandlerRegistration {
		k := &told{at: map[string]any{}, t: t}
		r, err := l.AddEventHandler(k)
		if err != nil || !r.HasSynced() {
			t.Fatal(err)
		}
		everybody = append(everybody, k)
		return r
	}
	join(lives[0])
	for i := range 100 {
		change.Example(i)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { f.Run(ctx); close(ended) }()
	for i := range 300 {
		change.Example(1000 + i)
		if i == 100 {
			join(lives[0])
			join(lives[1])
		}
	}
	for i, of := range []*Live{lives[0], lives[0], lives[1]} {
		for deadline := time.After(30 * time.Second); !everybody[i].is(of.Informer); {
			select {
			case <-deadline:
				t.Fatalf("%s: told of %d, and there are %d", of.Name(), len(everybody[i].at), len(of.List()))
			case <-time.After(time.Millisecond):
			}
		}
	}
	cancel()
	<-ended
	// What happens now is missed, and found when it is looked at anew.
	gone := join(lives[2])
	if err := lives[2].RemoveEventHandler(gone); err != nil {
		t.Fatal(err)
	}
	before := len(everybody[3].at)
	for i := range 100 {
		change.Example(2000 + i)
	}
	f.anew()
	if !everybody[0].is(lives[0].Informer) || !everybody[2].is(lives[1].Informer) {
		t.Error("what was missed was not told")
	}
	if len(everybody[3].at) != before {
		t.Error("who has gone was told of something")
	}
}
