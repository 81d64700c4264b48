package rpc

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

// tunnelOpenTimeout is how long a worker may take to open a tunnel.
const tunnelOpenTimeout = 10 * time.Second

// Hub knows the workers whose streams end at this server. Its methods take time
// that does not grow with the number of workers, except Held, Drain, Resync and
// ObjectChanged, which is about those that follow the object, and never wait for
// a worker.
type Hub struct {
	log       hclog.Logger
	heartbeat time.Duration
	revision  atomic.Int64 // see Advance
	services  *servicesFeed
	// changed: services have changed since the last Advance. Known to who pushes only.
	changed bool

	mu       sync.RWMutex
	sessions map[string]*session // by node
	carriers int                 // streams that are sent services
	drain    *Drain
	tunnels  map[string]*pendingTunnel // by ID
	// followers are the sessions that are to be told when an object is another one.
	followers map[ObjectRef]map[*session]struct{}
}

// maxFollowed bounds what one worker follows. Of what is beyond it is told at
// once that it has changed, so it asks again.
const maxFollowed = 16 << 10

// session is one worker's stream.
type session struct {
	node     string
	instance string
	box      *outbox
	cancel   context.CancelCauseFunc
	heard    *heard
	gone     chan struct{} // closed at the end
	follows  map[ObjectRef]struct{}
	services bool // it is sent services
}

// heard is when a worker was last heard, by the monotonic clock: whoever sets the
// clock of this machine silences nobody.
type heard struct{ at atomic.Pointer[time.Time] }

func newHeard() *heard {
	h := &heard{}
	h.note()
	return h
}

func (h *heard) note() {
	now := time.Now()
	h.at.Store(&now)
}

func (h *heard) silence() time.Duration { return time.Since(*h.at.Load()) }

// pendingTunnel waits for the worker to open it.
type pendingTunnel struct {
	node  string
	ready chan *workerTunnel // capacity 1
}

// workerTunnel is a worker's Tunnel stream. Whoever gets it calls release.
type workerTunnel struct {
	frames
	release func()
}

func newHub(log hclog.Logger, heartbeat time.Duration, services *ServicesSource) *Hub {
	h := &Hub{log: log, heartbeat: heartbeat, sessions: map[string]*session{}, tunnels: map[string]*pendingTunnel{},
		followers: map[ObjectRef]map[*session]struct{}{}}
	if services != nil {
		h.services = newServicesFeed(*services)
	}
	return h
}

// Push hands a pod's newest state, or its node's, to the worker of node, if its stream ends
// here; it never waits. One goroutine pushes everything, in the order of the
// revisions.
func (h *Hub) Push(node string, u Update) {
	h.mu.RLock()
	s := h.sessions[node]
	h.mu.RUnlock()
	if s != nil {
		s.box.put(u)
	}
}

// Advance tells that everything up to revision was pushed, for all nodes.
// Workers learn it with the answer to their next heartbeat, and so resume from
// there even if nothing concerned them.
func (h *Hub) Advance(revision int64) {
	h.revision.Store(revision)
	if h.services == nil {
		return
	}
	h.services.advance(revision)
	if h.changed {
		h.changed = false
		h.wakeServices()
	}
}

// ServicesWanted says whether a worker here carries services, so that encoding them
// is worth it.
func (h *Hub) ServicesWanted() bool { return h.services != nil && h.services.wanted() }

// PutService tells the workers that carry services of one, or of an endpoint slice,
// at the next Advance. The goroutine that pushes calls it.
func (h *Hub) PutService(o ServiceRevision) {
	h.services.put(o)
	h.changed = true
}

func (h *Hub) wakeServices() {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, s := range h.sessions {
		if s.services {
			s.box.signal()
		}
	}
}

// Resync makes every worker read its assignments anew, at least as of
// revision: what happened meanwhile was not pushed.
func (h *Hub) Resync(revision int64) {
	if h.services != nil {
		h.services.unload()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sessions {
		s.box.forceResync(revision)
		h.unfollowAll(s)
	}
	h.revision.Store(revision) // now: no worker counts as told of it before it is
}

// Follow has the worker of node told, once, when the object is another one; false:
// its stream does not end here. Whoever reads the object for it does so after
// this call, or a change could be missed.
func (h *Hub) Follow(node string, ref ObjectRef) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[node]
	if s == nil {
		return false
	}
	if len(s.follows) >= maxFollowed {
		h.unfollowAll(s)
	}
	s.follows[ref] = struct{}{}
	if h.followers[ref] == nil {
		h.followers[ref] = map[*session]struct{}{}
	}
	h.followers[ref][s] = struct{}{}
	return true
}

// ObjectChanged tells the workers that follow the object, and takes time for no
// other.
func (h *Hub) ObjectChanged(ref ObjectRef) {
	h.mu.RLock()
	n := len(h.followers[ref])
	h.mu.RUnlock()
	if n == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.followers[ref] {
		h.unfollow(s, ref)
		s.box.tellChanged(ref)
	}
}

// unfollowAll tells a worker that all it follows may have changed.
func (h *Hub) unfollowAll(s *session) {
	for ref := range s.follows {
		h.unfollow(s, ref)
		s.box.tellChanged(ref)
	}
}

func (h *Hub) unfollow(s *session, ref ObjectRef) {
	delete(s.follows, ref)
	delete(h.followers[ref], s)
	if len(h.followers[ref]) == 0 {
		delete(h.followers, ref)
	}
}

// Holds says whether node's stream ends here.
func (h *Hub) Holds(node string) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.sessions[node] != nil
}

// Count is how many workers' streams end here.
func (h *Hub) Count() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.sessions)
}

// Held lists the nodes whose streams end here and that were heard within
// maxSilence, sorted: what a StreamReport says.
func (h *Hub) Held(maxSilence time.Duration) []string {
	h.mu.RLock()
	out := make([]string, 0, len(h.sessions))
	for node, s := range h.sessions {
		if s.heard.silence() <= maxSilence {
			out = append(out, node)
		}
	}
	h.mu.RUnlock()
	slices.Sort(out)
	return out
}

// Nodes lists the nodes whose streams end here, sorted.
func (h *Hub) Nodes() []string {
	h.mu.RLock()
	out := slices.Collect(maps.Keys(h.sessions))
	h.mu.RUnlock()
	slices.Sort(out)
	return out
}

// Renew ends the stream of node, if it ends here: its worker lives, comes back and
// registers anew. why is ErrNodeGone or ErrNodeForgotten.
func (h *Hub) Renew(node string, why error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if s := h.sessions[node]; s != nil {
		s.cancel(why)
	}
}

// Drain asks every worker to go to another server, and refuses new ones.
func (h *Hub) Drain(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drain = &Drain{Reason: reason}
	for _, s := range h.sessions {
		s.box.setDrain(*h.drain)
	}
}

// add takes a worker's new stream in. An older one of the same process ends;
// one of another process that still lives keeps the name.
func (h *Hub) add(hello *Hello, heard *heard, cancel context.CancelCauseFunc) (*session, error) {
	s := &session{
		node: hello.Name, instance: hello.Instance, box: newOutbox(hello.ResumeRevision),
		cancel: cancel, heard: heard, gone: make(chan struct{}), follows: map[ObjectRef]struct{}{},
		services: hello.Services,
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.drain != nil {
		return nil, ErrStopping
	}
	if old := h.sessions[s.node]; old != nil {
		silent := old.heard.silence()
		if old.instance != s.instance && silent < 2*h.heartbeat {
			return nil, fmt.Errorf("node %s: %w", s.node, ErrNodeTaken)
		}
		old.cancel(ErrReplaced)
	}
	h.sessions[s.node] = s
	if s.services {
		h.carriers++
	}
	return s, nil
}

// remove says whether s was still the node's stream.
func (h *Hub) remove(s *session) bool {
	close(s.gone)
	h.mu.Lock()
	defer h.mu.Unlock()
	for ref := range s.follows {
		h.unfollow(s, ref)
	}
	if s.services {
		if h.carriers--; h.carriers == 0 && h.services != nil {
			h.services.unload() // nobody is sent them
		}
	}
	if h.sessions[s.node] != s {
		return false
	}
	delete(h.sessions, s.node)
	return true
}

// OpenTunnel asks the worker of node for a tunnel, and waits until it is open.
// The tunnel ends with ctx. If the node's stream does not end here, it returns
// ErrNotHeld.
func (h *Hub) OpenTunnel(ctx context.Context, node, kind string, body []byte) (*Tunnel, error) {
	wt, err := h.openStream(ctx, node, kind, body)
	if err != nil {
		return nil, err
	}
	return newTunnel(ctx, wt.frames, "worker/"+node, func() {}, wt.release), nil
}

func (h *Hub) openStream(ctx context.Context, node, kind string, body []byte) (*workerTunnel, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnelOpenTimeout)
	defer cancel()
	id := rand.Text()
	p := &pendingTunnel{node: node, ready: make(chan *workerTunnel, 1)}
	h.mu.Lock()
	s := h.sessions[node]
	if s != nil {
		h.tunnels[id] = p
	}
	h.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("opening a tunnel to %s: %w", node, ErrNotHeld)
	}
	err := s.box.openTunnel(TunnelOpen{ID: id, Kind: kind, Body: body})
	if err == nil {
		select {
		case wt := <-p.ready:
			return wt, nil
		case <-s.gone:
			err = ErrNotHeld
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	h.mu.Lock()
	delete(h.tunnels, id)
	h.mu.Unlock()
	select {
	case wt := <-p.ready: // it came in that moment
		wt.release()
	default:
	}
	return nil, fmt.Errorf("opening a tunnel to %s: %w", node, err)
}

// acceptTunnel gives a worker's Tunnel stream to whoever waits for it, and holds
// it until that one is done.
func (h *Hub) acceptTunnel(ctx context.Context, a *TunnelAccept, fs frames) error {
	released := make(chan struct{})
	h.mu.Lock()
	p := h.tunnels[a.ID]
	ok := p != nil && p.node == a.Node
	if ok {
		// Under the lock: once the waiter has taken its entry away, it finds
		// either nothing or this, and never misses it.
		delete(h.tunnels, a.ID)
		p.ready <- &workerTunnel{frames: fs, release: sync.OnceFunc(func() { close(released) })}
	}
	h.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: nobody waits for this tunnel", ErrInvalid)
	}
	select {
	case <-released:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
