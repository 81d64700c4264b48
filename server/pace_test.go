package server

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

type answering func(*http.Request) (*http.Response, error)

func (f answering) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestControllersThatUndo: who changes one object again and again is slowed down, and nobody else.
func TestControllersThatUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		p := &pacedRequests{next: answering(func(*http.Request) (*http.Response, error) {
			asked++
			return nil, nil
		})}
		ask := func(method, path string) {
			r, err := http.NewRequestWithContext(t.Context(), method, "http://s/"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.RoundTrip(r); err != nil { //nolint:bodyclose // there is none
				t.Fatal(err)
			}
		}
		begin := time.Now()
		for i := range 2*pacedAtOnce - 1 {
			ask(http.MethodPut, fmt.Sprint("many/", i))
			ask(http.MethodPost, "many")
			ask(http.MethodGet, "one")
			ask(http.MethodDelete, "one")
		}
		for range rewritesAtOnce {
			ask(http.MethodPatch, "one")
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("who changes no object often waited for %s", took)
		}
		for range 3 * rewritesPerSecond {
			ask(http.MethodPut, "one")
		}
		if took := time.Since(begin); took < 2900*time.Millisecond || took > 3100*time.Millisecond {
			t.Errorf("%d changes more took %s", 3*rewritesPerSecond, took)
		}
		time.Sleep(time.Minute)
		ask(http.MethodPut, "another")
		if n := len(p.paces); n != 1 {
			t.Errorf("%d paces are kept of objects that rest", n)
		}
		if want := 4*(2*pacedAtOnce-1) + rewritesAtOnce + 3*rewritesPerSecond + 1; asked != want {
			t.Errorf("%d requests came through, and %d were made", asked, want)
		}
	})
}
