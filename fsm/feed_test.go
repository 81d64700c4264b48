package fsm

import (
	"sync"
	"testing"
)

// TestReadersNeverStumble: while entries are applied and a snapshot is restored,
// readers walk over views, follow the feed and try things out on forks. A view
// and its changes belong together at every moment; with -race it is also shown
// that none of this needs a lock.
func TestReadersNeverStumble(t *testing.T) {
	w := newTranscript(t)
	w.quiet = true
	done := make(chan struct{})
	var readers sync.WaitGroup
	read := func(f func()) {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					f()
				}
			}
		})
	}
	s := w.state
	read(func() {
		v := s.View()
		cs, err := s.Feed().After(v.Revision(), 10)
		if err != nil {
			t.Errorf("view %d is there before its changes: %v", v.Revision(), err)
		}
		for _, c := range cs {
			if s.View().Revision() < c.Revision {
				t.Errorf("change %d is there before the view of it", c.Revision)
			}
		}
	})
	read(func() {
		v := s.View()
		n := 0
		v.Queue.Scan("", func(string, *QueueEntry) bool { n++; return true })
		if n != v.Queue.Len() {
			t.Errorf("a view changes under its reader: %d entries, %d counted", v.Queue.Len(), n)
		}
		v.Ready(w.now.UnixNano(), func(*QueueEntry) bool { return true })
	})
	read(func() {
		v := s.View()
		before := v.Revision()
		v.Fork().Try(0, Proposal{Command: &DeleteNode{Name: "n1"}}, Proposal{Command: &Checkpoint{}})
		if v.Revision() != before {
			t.Error("a fork changes its original")
		}
	})
	read(func() {
		if len(s.View().Digest()) != 64 {
			t.Error("no digest")
		}
	})
	for i := range 60 {
		w.line("node n1 cpu=4")
		w.line("pod web cpu=1")
		w.line("bind web n1")
		w.line("delete web grace=0")
		if i%7 == 0 {
			w.line("delete-node n1")
		}
	}
	restored := restoredFrom(t, s.View())
	if restored.View().Digest() != s.View().Digest() {
		t.Error("restored to something else")
	}
	close(done)
	readers.Wait()
}
