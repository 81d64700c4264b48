package worker

import "time"

// Bounds of a dispute's delay. What the servers hold may be older than a report that is on its way to them, so the first
// objection waits for that as well. A kubelet objects every ten seconds.
const (
	disputeFirst = time.Second
	disputeMax   = 30 * time.Second
	disputeReset = 2 * disputeMax
)

// dispute is a difference between what the servers hold of a pod's status and what the node knows to be true. The node
// objects by reporting again, ever less often while somebody else insists.
type dispute struct {
	at    time.Time // when the node objects; zero: there is no difference
	delay time.Duration
	last  time.Time // when the node was to object last
}

// compare takes note of what the servers hold: the same as was reported last, or not.
func (d *dispute) compare(same bool, now time.Time) {
	if same {
		d.at = time.Time{}
		return
	}
	if !d.at.IsZero() {
		return
	}
	if d.delay == 0 || now.Sub(d.last) > disputeReset {
		d.delay = disputeFirst
	} else {
		d.delay = min(2*d.delay, disputeMax)
	}
	d.at = now.Add(d.delay)
	d.last = d.at
}

// due says whether the time to object has come.
func (d *dispute) due(now time.Time) bool { return !d.at.IsZero() && !now.Before(d.at) }
