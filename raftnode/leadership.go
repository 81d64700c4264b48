package raftnode

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Leadership is whether this server leads and is ready to: it has committed
// and applied an entry of its own term, so that its state holds everything that
// any leader before it has acknowledged.
type Leadership struct {
	Leader bool
	// Term is that of the leadership. Two of one server that follow each
	// other closely differ in it alone.
	Term uint64
	// Index is the entry from which on this server led.
	Index uint64
}

// office follows whether this server leads, and tells who asks.
type office struct {
	n      *Node
	notify chan bool // from Raft, which waits for it to be taken

	mu      sync.Mutex
	current Leadership
	changed chan struct{} // closed at the next change
	subs    map[chan Leadership]struct{}
}

func newOffice(n *Node) *office {
	return &office{
		n: n, notify: make(chan bool, 8), changed: make(chan struct{}), subs: map[chan Leadership]struct{}{},
	}
}

func (o *office) run() {
	var establishing sync.WaitGroup
	resign := func() {}
	defer func() {
		resign()
		establishing.Wait()
	}()
	for {
		select {
		case elected := <-o.notify:
			resign()
			establishing.Wait()
			o.set(Leadership{})
			if !elected {
				o.n.clock.Resign()
				resign = func() {}
				continue
			}
			o.n.clock.Lead()
			ctx, cancel := context.WithCancel(context.Background())
			resign = cancel
			establishing.Go(func() { o.establish(ctx) })
		case <-o.n.dead:
			o.set(Leadership{})
			return
		}
	}
}

// establish makes the leader ready: everything before its own first entry is
// committed and applied once that one is.
func (o *office) establish(ctx context.Context) {
	for ctx.Err() == nil {
		f, err := o.n.barrier(ctx)
		if err == nil {
			o.n.tellStep(o.n.clock.Begin())
			o.set(Leadership{Leader: true, Term: f.term, Index: f.index})
			return
		}
		if errors.Is(err, ErrShutdown) || o.n.raft.State() != raft.Leader {
			return
		}
		// Still the leader: a transfer that may yet fail.
		select {
		case <-ctx.Done():
		case <-time.After(o.n.c.CommitTimeout):
		}
	}
}

func (o *office) set(l Leadership) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.current == l {
		return
	}
	if l.Leader != o.current.Leader {
		o.n.metrics.leading(l.Leader)
	}
	o.current = l
	close(o.changed)
	o.changed = make(chan struct{})
	for ch := range o.subs {
		deliver(ch, l)
	}
}

// deliver replaces what the subscriber has not taken yet: only the newest
// counts.
func deliver(ch chan Leadership, l Leadership) {
	select {
	case <-ch:
	default:
	}
	ch <- l
}

func (o *office) get() (Leadership, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.current, o.changed
}

// Leadership is whether this server leads now and is ready.
func (n *Node) Leadership() Leadership {
	l, _ := n.office.get()
	return l
}

// WatchLeadership gives the present leadership at once and then the newest
// after every change, until the context ends; a slow reader misses what is no
// longer true. The channel is never closed.
func (n *Node) WatchLeadership(ctx context.Context) <-chan Leadership {
	o := n.office
	ch := make(chan Leadership, 1)
	o.mu.Lock()
	ch <- o.current
	o.subs[ch] = struct{}{}
	o.mu.Unlock()
	context.AfterFunc(ctx, func() {
		o.mu.Lock()
		delete(o.subs, ch)
		o.mu.Unlock()
	})
	return ch
}

// IsLeader reports whether this server believes to lead, ready or not.
func (n *Node) IsLeader() bool { return n.raft.State() == raft.Leader }

// Leader is the server that leads, as far as this one knows; "" if it knows
// none. Raft forgets one by its own timeout, which a server that waits has not.
func (n *Node) Leader() (id, addr string) {
	if n.waits.Load() && !n.hears() {
		return "", ""
	}
	a, i := n.raft.LeaderWithID()
	return string(i), string(a)
}

// hears: this server has heard of a leader within the timeout.
func (n *Node) hears() bool { return time.Since(n.raft.LastContact()) <= n.c.HeartbeatTimeout }

// heardLeader is Leader, of one that was heard within the timeout, or this one.
func (n *Node) heardLeader() string {
	if !n.started.Load() || !n.IsLeader() && !n.hears() {
		return ""
	}
	id, _ := n.Leader()
	return id
}

// Term is Raft's current term on this server.
func (n *Node) Term() uint64 { return n.raft.CurrentTerm() }

// State is what this server is in the consensus: "follower", "candidate", "leader", or "shutdown".
func (n *Node) State() string { return strings.ToLower(n.raft.State().String()) }

// CommitIndex is the last entry that this server knows to be committed.
func (n *Node) CommitIndex() uint64 { return n.raft.CommitIndex() }

// ConfigurationIndex is the entry that the newest configuration which this server knows is in.
func (n *Node) ConfigurationIndex() uint64 { return n.raft.GetConfiguration().Index() }
