package worker

import "time"

// RB2: restarts wait 10 s, 20 s, 40 s … at most 5 min, or what the node says, counted from the end of the last run; after 10 min without a
// restart the delay begins anew. The first restart does not wait.
const (
	backoffInitial = 10 * time.Second
	backoffMax     = 5 * time.Minute
	backoffReset   = 2 * backoffMax
)

// sinceBy is when something was, by the clock that now is of: what a machine's clock said then may be later than what it says now, if it was set back,
// and what is reckoned from it must not wait until it says that again. It is to be kept.
func sinceBy(at, now time.Time) time.Time {
	return now.Add(-max(now.Sub(at), 0))
}

// backoff is the restart delay of one container.
type backoff struct {
	most    time.Duration // the longest; 0: backoffMax
	delay   time.Duration
	updated time.Time // when delay was last set: about when the last restart was made
}

// until returns when a container that ended at finished may start again; the zero time means at once.
func (b *backoff) until(finished time.Time) time.Time {
	if b.delay == 0 || finished.Sub(b.updated) > backoffReset {
		return time.Time{}
	}
	return finished.Add(b.delay)
}

// next takes note of a restart at now of a container that ended at finished.
func (b *backoff) next(finished, now time.Time) {
	most := b.most
	if most == 0 {
		most = backoffMax
	}
	if b.delay == 0 || finished.Sub(b.updated) > backoffReset {
		b.delay = min(backoffInitial, most)
	} else {
		b.delay = min(2*b.delay, most)
	}
	b.updated = now
}
