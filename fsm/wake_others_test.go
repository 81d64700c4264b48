package fsm

import "testing"

// TestAnyClassOfAGroupWakesIt: which of a group's classes the index of rules
// between pods names depends on who was refused last, and is another one in a
// restored state. What is done must not depend on it: every entry's result is
// compared with a replica's that was never restored.
func TestAnyClassOfAGroupWakesIt(t *testing.T) {
	s := newTranscript(t)
	s.quiet = true
	for _, step := range []struct {
		line    string
		waiting int
	}{
		{"node n1 cpu=4 labels=zone:a", 0},
		{"pod k uid=k labels=app:web cpu=1", 0},
		{"bind k n1", 0},
		{"pod a uid=a labels=app:web,x:1 anti=zone:app:web cpu=1", 0},
		{"pod b uid=b labels=app:web,x:2 anti=zone:app:web cpu=1", 0},
		{"plan fail b apart:1", 1},
		{"plan fail a apart:1", 2},
		{"pod g uid=g labels=app:web anti=zone:x:1 cpu=1", 2},
		{"bind g n1", 2},
		{"advance 1h", 2},
		{"snapshot", 2},
		{"delete g grace=0", 2}, // it kept a away, and not b; k keeps both
		{"delete k grace=0", 1},
	} {
		s.line(step.line)
		if q := s.view().QueueLengths(); q.Waiting != step.waiting {
			t.Fatalf("%s: %d wait, want %d", step.line, q.Waiting, step.waiting)
		}
	}
}
