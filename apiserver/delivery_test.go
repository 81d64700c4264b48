package apiserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

// What is written and not read is bounded: the write that has waited longest ends, and one of a watch that has ended.
func TestWritesThatNobodyReadsEnd(t *testing.T) {
	const event = 16 << 20 // more than what lies between this process and itself
	for name, two := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			all := newDeliveries()
			all.ofClient = 2 * event
			watch, endWatch := context.WithCancel(t.Context())
			defer endWatch()
			cut := make(chan string, 8)
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, w, end := all.begin(r.Context(), w, r.URL.Query().Get("user"))
				defer end()
				if r.URL.Path == "/ends" {
					deliveryFrom(ctx).watching(watch)
				}
				_, err := w.Write(make([]byte, event))
				for err == nil { // HTTP/2 tells of it at the next
					_, err = w.Write(make([]byte, event))
				}
				cut <- r.URL.Path
			}))
			s.EnableHTTP2 = two
			s.StartTLS()
			defer s.Close()
			defer s.CloseClientConnections()
			writing := 0
			begin := func(path string) {
				t.Helper()
				answer, err := s.Client().Get(s.URL + path)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = answer.Body.Close() })
				writing++
				eventually(t, "it is being written", func() bool {
					all.mu.Lock()
					defer all.mu.Unlock()
					n := 0
					for d := range all.all {
						if d.isWriting() {
							n++
						}
					}
					return n == writing
				})
			}
			begin("/first?user=ann")
			begin("/second?user=ann")
			begin("/other?user=joe")
			begin("/ends?user=joe")
			all.cutUnread(time.Now()) // nobody has waited long
			later := time.Now().Add(time.Hour)
			all.cutUnread(later)
			if len(cut) > 0 {
				t.Fatalf("%s was cut, and there is not too much", <-cut)
			}
			endWatch()
			all.cutUnread(later)
			if got := <-cut; got != "/ends" {
				t.Errorf("%s was cut", got)
			}
			writing--
			begin("/third?user=ann")
			all.cutUnread(later)
			if got := <-cut; got != "/first" {
				t.Errorf("%s was cut", got)
			}
			all.ofAll = event
			all.cutUnread(later)
			if got := []string{<-cut, <-cut}; !slices.Contains(got, "/second") || !slices.Contains(got, "/other") {
				t.Errorf("%v were cut", got)
			}
			if len(cut) > 0 {
				t.Errorf("%s was cut, too", <-cut)
			}
		})
	}
}
