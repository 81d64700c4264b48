package main

import (
	"sync"
	"time"
)

const (
	// repeatPause is how long a message is not said again.
	repeatPause = 10 * time.Second
	// maxRepeats bounds how many messages are remembered.
	maxRepeats = 256
)

// repeats holds back messages that were said a moment ago. Whoever says one again
// after that learns how many were held back: hundreds of equal lines in a minute
// would hide the one that says why.
type repeats struct {
	now func() time.Time

	mu   sync.Mutex
	said map[string]*repeat
}

type repeat struct {
	at   time.Time
	held int
}

func newRepeats() *repeats { return &repeats{now: time.Now, said: map[string]*repeat{}} }

// say reports whether a message is to be said, and how many like it were held back
// since it was said last.
func (r *repeats) say(message string) (held int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	last := r.said[message]
	switch {
	case last == nil:
		if len(r.said) >= maxRepeats {
			clear(r.said) // each is said once more
		}
		r.said[message] = &repeat{at: now}
		return 0, true
	case now.Sub(last.at) < repeatPause:
		last.held++
		return 0, false
	}
	held = last.held
	last.at, last.held = now, 0
	return held, true
}
