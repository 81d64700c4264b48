package rpc

import (
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/model"
)

const (
	// batchBytes is about how much one StatusBatch carries: that much goes
	// into one entry of the log.
	batchBytes = 256 << 10
	// retryAfter is how long a refused batch waits, and the next one where the node's status was or a pod's was late, and a status over which
	// the servers broke the first time; the next times twice as long each, until retryAtMost.
	retryAfter  = 250 * time.Millisecond
	retryAtMost = time.Minute
)

// reports holds the newest statuses that no server has acknowledged. It is
// bounded by the node's pods.
type reports struct {
	wake chan struct{} // capacity 1

	mu      sync.Mutex
	pods    map[string]pendingReport // by UID
	order   []string                 // UIDs, longest waiting first
	events  [][]byte
	node    []byte
	nodeSeq uint64 // 0: no node status waits
	seq     uint64
	flight  *flight
	hold    time.Time
}

type pendingReport struct {
	report PodReport
	seq    uint64
	rest   time.Duration // how long it waits once the servers broke over it
	until  time.Time     // when it may be sent
}

// flight is the batch that is sent and not acknowledged.
type flight struct {
	id      uint64
	seqs    map[string]uint64
	nodeSeq uint64
}

func newReports() *reports {
	return &reports{wake: make(chan struct{}, 1), pods: map[string]pendingReport{}}
}

func (r *reports) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// put queues a report. Of a status that no server takes only the rest is said, and put says false: it would be sent again for ever, and hold
// up all others.
func (r *reports) put(p PodReport) (whole bool) {
	if whole = len(p.Status) <= model.MaxPodStatusBytes; !whole {
		p.Status = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	if _, ok := r.pods[p.UID]; !ok {
		r.order = append(r.order, p.UID)
	}
	is := r.pods[p.UID]
	is.report, is.seq = p, r.seq
	r.pods[p.UID] = is
	r.signal()
	return whole
}

// putNode queues the node's status; false: it is larger than what servers take of a node, and than a message may be.
func (r *reports) putNode(status []byte) bool {
	if len(status) > batchBytes {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	r.node, r.nodeSeq = status, r.seq
	r.signal()
	return true
}

// reset forgets the batch in flight: the stream that carried it is gone, so its
// content is sent again.
func (r *reports) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flight, r.hold = nil, time.Time{}
	r.signal()
}

// next is the next batch, or how long to wait before asking again (0: until
// wake).
func (r *reports) next(now time.Time) (*StatusBatch, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.flight != nil || len(r.order) == 0 && r.nodeSeq == 0 && len(r.events) == 0 {
		return nil, 0
	}
	if wait := r.hold.Sub(now); wait > 0 {
		return nil, wait
	}
	due, wait := r.due(now)
	if len(due) == 0 && r.nodeSeq == 0 && len(r.events) == 0 {
		return nil, wait
	}
	r.seq++
	b := &StatusBatch{ID: r.seq}
	f := &flight{id: r.seq, seqs: map[string]uint64{}, nodeSeq: r.nodeSeq}
	if r.nodeSeq != 0 {
		b.NodeStatus = r.node
	}
	size := len(b.NodeStatus)
	for _, uid := range due {
		p := r.pods[uid]
		if size > 0 && size+p.report.Size() > batchBytes {
			break
		}
		size += p.report.Size()
		b.Pods = append(b.Pods, p.report)
		f.seqs[uid] = p.seq
	}
	r.takeEvents(b, size)
	r.flight = f
	return b, 0
}

// due are the pods whose statuses may be sent, and how long it is until the next of the others may.
func (r *reports) due(now time.Time) (due []string, wait time.Duration) {
	for _, uid := range r.order {
		switch left := r.pods[uid].until.Sub(now); {
		case left <= 0:
			due = append(due, uid)
		case wait == 0 || left < wait:
			wait = left
		}
	}
	return due, wait
}

// ack ends the flight, and returns the reports with which the servers are done. What has a newer status meanwhile stays.
func (r *reports) ack(a Ack, now time.Time) (taken []PodReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.flight
	if f == nil || f.id != a.BatchID {
		return nil
	}
	r.flight = nil
	defer r.signal()
	if a.Error != "" {
		r.hold = now.Add(retryAfter)
		return nil
	}
	if a.NodeFailed || len(a.Late) > 0 { // whoever is late is not told of the new state yet, perhaps
		r.hold = now.Add(retryAfter)
	} else if r.nodeSeq == f.nodeSeq {
		r.node, r.nodeSeq = nil, 0
	}
	// Those that stay but were sent go to the end, behind who waits longer.
	var first, last []string
	for _, uid := range r.order {
		seq, sent := f.seqs[uid]
		switch {
		case !sent:
			first = append(first, uid)
		case slices.Contains(a.Failed, uid) && !slices.Contains(a.Late, uid):
			p := r.pods[uid]
			p.rest = min(max(2*p.rest, retryAfter), retryAtMost)
			p.until = now.Add(p.rest)
			r.pods[uid] = p
			last = append(last, uid)
		case r.pods[uid].seq != seq:
			last = append(last, uid)
		default:
			report := r.pods[uid].report
			report.Late = slices.Contains(a.Late, uid)
			taken = append(taken, report)
			delete(r.pods, uid)
		}
	}
	r.order = append(first, last...)
	return taken
}
