package rpc

import (
	"sync"
)

const (
	// maxPendingUpdates and maxPendingBytes bound what waits for a slow
	// worker; beyond them it gets one delta, or the full set, from the state.
	maxPendingUpdates = 4096
	maxPendingBytes   = 16 << 20
	// maxPendingTunnels bounds the tunnels asked for and not yet opened.
	maxPendingTunnels = 256
	// chunkBytes is where a message is cut.
	chunkBytes = 1 << 20
)

// Update is the newest state of one pod of a worker, or what Assignments.Node says of its node.
type Update struct {
	UID string // empty: of the node
	// Revision at which the pod, or the node, got this state.
	Revision int64
	// Pod is a corev1.Pod, protobuf; nil if it shall not run any more. It is
	// not copied and must not change.
	Pod []byte
	// Node is in place of Pod. What holds for Pod holds for it.
	Node []byte
}

func (u *Update) size() int { return len(u.UID) + len(u.Pod) + len(u.Node) + 32 }

// outbox holds what one worker is still to be sent. Whoever fills it never
// waits: a pod's newer state takes the place of the older one, and what is too
// much is dropped and made good from the state (resync).
//
// Invariants: every update up to revision top was put in, or is covered by the
// resync that is due; the worker has everything up to sent; no update at or
// below floor is ever sent, since a snapshot of floor was.
type outbox struct {
	wake   chan struct{} // capacity 1
	limits limits

	mu      sync.Mutex
	updates map[string]Update
	order   []string // UIDs of updates, oldest first
	bytes   int
	resync  bool
	top     int64
	floor   int64
	sent    int64
	due     bool // an Assignments message is due, even an empty one
	acks    []Ack
	tunnels []TunnelOpen
	drain   *Drain
	changed map[ObjectRef]struct{}
}

// limits are those above, except in tests.
type limits struct{ updates, bytes, chunk int }

// newOutbox begins with a resync: the worker has everything up to resume.
func newOutbox(resume int64) *outbox {
	return &outbox{
		wake: make(chan struct{}, 1), limits: limits{maxPendingUpdates, maxPendingBytes, chunkBytes},
		updates: map[string]Update{}, resync: true, top: resume, sent: resume,
	}
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// put takes over an update. Updates come in the order of their revisions.
func (o *outbox) put(u Update) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.top = max(o.top, u.Revision)
	if o.resync || u.Revision <= o.floor {
		return
	}
	old, ok := o.updates[u.UID]
	if ok && old.Revision >= u.Revision {
		return
	}
	if !ok {
		o.order = append(o.order, u.UID)
	}
	o.bytes += u.size()
	if ok {
		o.bytes -= old.size()
	}
	o.updates[u.UID] = u
	o.due = true
	if len(o.updates) > o.limits.updates || o.bytes > o.limits.bytes {
		o.clearUpdates()
		o.resync = true
	}
	o.signal()
}

func (o *outbox) clearUpdates() {
	clear(o.updates)
	o.order, o.bytes = nil, 0
}

// advance tells that every update up to revision was put in. The worker is told
// as well, which also answers its heartbeat.
func (o *outbox) advance(revision int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.top = max(o.top, revision)
	o.due = true
	o.signal()
}

func (o *outbox) ack(a Ack) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acks = append(o.acks, a) // bounded: the worker has one batch in flight
	o.signal()
}

func (o *outbox) openTunnel(t TunnelOpen) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.tunnels) >= maxPendingTunnels {
		return ErrBusy
	}
	o.tunnels = append(o.tunnels, t)
	o.signal()
	return nil
}

// tellChanged: the worker learns it before any pod that was put in later.
func (o *outbox) tellChanged(ref ObjectRef) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed == nil {
		o.changed = map[ObjectRef]struct{}{}
	}
	o.changed[ref] = struct{}{} // bounded by what a worker follows
	o.signal()
}

// takeChanged takes what fits into one message.
func (o *outbox) takeChanged() []ObjectRef {
	var refs []ObjectRef
	size := 0
	for ref := range o.changed {
		refs = append(refs, ref)
		delete(o.changed, ref)
		if size += len(ref.Namespace) + len(ref.Name) + 64; size > o.limits.chunk {
			break
		}
	}
	return refs
}

func (o *outbox) setDrain(d Drain) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drain = &d
	o.signal()
}

// forceResync drops what waits in favour of the state.
func (o *outbox) forceResync(revision int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clearUpdates()
	o.top = max(o.top, revision)
	o.resync, o.due = true, true
	o.signal()
}

// beginResync says whether a resync is due and since which revision. From here
// on updates are kept again; the caller reads the state after it.
func (o *outbox) beginResync() (since int64, due bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	due, o.resync = o.resync, false
	return o.sent, due
}

// endResync takes note of what the caller read and is about to send: nothing as
// old as that may follow it.
func (o *outbox) endResync(revision int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.floor = max(o.floor, revision)
	o.top = max(o.top, revision)
	o.sent = max(o.sent, revision)
	kept := o.order[:0]
	for _, uid := range o.order {
		if u := o.updates[uid]; u.Revision <= o.floor {
			o.bytes -= u.size()
			delete(o.updates, uid)
		} else {
			kept = append(kept, uid)
		}
	}
	o.order = kept
}

// next is the next message to send; nil if there is none. It must not be called
// between beginResync and endResync.
func (o *outbox) next() *ServerMessage {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := &ServerMessage{Acks: o.acks, Tunnels: o.tunnels, Drain: o.drain}
	o.acks, o.tunnels, o.drain = nil, nil, nil
	m.Changed = o.takeChanged()
	// While a resync is due, nothing says up to where the worker has all. Pods wait
	// for what they may refer to.
	if o.due && !o.resync && len(o.changed) == 0 {
		m.Assignments = o.takeUpdates()
	}
	if m.Assignments == nil && m.Acks == nil && m.Tunnels == nil && m.Drain == nil && m.Changed == nil {
		return nil
	}
	return m
}

// takeUpdates takes what fits into one message. Only the last of several says
// that the worker has more than before.
func (o *outbox) takeUpdates() *Assignments {
	a := &Assignments{}
	n, size := 0, 0
	for _, uid := range o.order {
		u := o.updates[uid]
		if n > 0 && size+u.size() > o.limits.chunk {
			break
		}
		switch {
		case u.Node != nil:
			a.Node = u.Node
		case u.Pod == nil:
			a.Gone = append(a.Gone, uid)
		default:
			a.Pods = append(a.Pods, u.Pod)
		}
		size += u.size()
		delete(o.updates, uid)
		n++
	}
	o.order = o.order[n:]
	o.bytes -= size
	if len(o.order) == 0 {
		o.order, o.due = nil, false
		o.sent = max(o.sent, o.top)
	}
	a.Revision = o.sent
	return a
}
