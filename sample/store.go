package sample

import (
	"sync"
	"time"
)

const (
	// MaxAge is how old a sample may be and be shown.
	MaxAge = 2 * time.Minute
	// storeBytes bounds what a Store holds: the samples of 10,000 nodes of 100
	// containers are half of it.
	storeBytes = 256 << 20
	// entryBytes is about what an entry takes beside its sample.
	entryBytes = 160
)

// Taken is a sample, and when it was taken.
type Taken struct {
	At time.Time
	*Node
}

// Raw is a sample as it is kept and sent on.
type Raw struct {
	Node string
	At   time.Time
	Body []byte
}

// Store holds the newest sample of each node, encoded: those that workers have
// told this server, and for a while those that other servers were asked for. It is
// safe for concurrent use.
type Store struct {
	mu    sync.Mutex
	nodes map[string]entry
	bytes int
	max   int // storeBytes, except in tests
}

type entry struct {
	body []byte // nil: nobody had one
	at   time.Time
	// asked is when another server was asked for it; zero: the worker told it here.
	asked time.Time
}

// NewStore makes an empty one.
func NewStore() *Store { return &Store{nodes: map[string]entry{}, max: storeBytes} }

// Tell keeps what the worker of a node has said, which was checked (Decode).
// False: there is no room.
func (s *Store) Tell(node string, body []byte, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(node, entry{body: body, at: at})
}

// Learn keeps what another server has answered about a node, at the time that it was
// asked; a nil body: it had none. What the worker tells here is better.
func (s *Store) Learn(node string, body []byte, at, asked time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.nodes[node]
	fresh := known && old.body != nil && asked.Sub(old.at) <= MaxAge
	switch {
	case fresh && old.asked.IsZero():
		return
	case fresh && (body == nil || at.Before(old.at)):
		old.asked = asked
		s.nodes[node] = old
		return
	}
	s.put(node, entry{body: body, at: at, asked: asked})
}

// put keeps an entry if there is room. The lock is held.
func (s *Store) put(node string, e entry) bool {
	old, known := s.nodes[node]
	grows := len(e.body) + entryBytes + len(node)
	if known {
		grows -= len(old.body) + entryBytes + len(node)
	}
	if s.bytes+grows > s.max {
		now := e.at
		if now.Before(e.asked) {
			now = e.asked
		}
		s.prune(now)
		if old, known = s.nodes[node]; !known {
			grows = len(e.body) + entryBytes + len(node)
		}
		if s.bytes+grows > s.max {
			return false
		}
	}
	s.nodes[node] = e
	s.bytes += grows
	return true
}

// prune drops what is too old to be shown, and what was learnt from others.
func (s *Store) prune(now time.Time) {
	for node, e := range s.nodes {
		if !e.asked.IsZero() || now.Sub(e.at) > MaxAge {
			s.drop(node)
		}
	}
}

func (s *Store) drop(node string) {
	if e, ok := s.nodes[node]; ok {
		s.bytes -= len(e.body) + entryBytes + len(node)
		delete(s.nodes, node)
	}
}

// Forget drops what the worker of a node has told here: its stream is elsewhere.
func (s *Store) Forget(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.nodes[node]; ok && e.asked.IsZero() {
		s.drop(node)
	}
}

// Keep drops the nodes that are not kept, and what is too old.
func (s *Store) Keep(keep func(node string) bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for node, e := range s.nodes {
		if !keep(node) || now.Sub(e.at) > MaxAge && now.Sub(e.asked) > MaxAge {
			s.drop(node)
		}
	}
}

// Told gives what workers have told here of the nodes, one after another, until
// fn says no.
func (s *Store) Told(nodes []string, now time.Time, fn func(Raw) bool) {
	for _, node := range nodes {
		s.mu.Lock()
		e, ok := s.nodes[node]
		s.mu.Unlock()
		if ok && e.asked.IsZero() && e.body != nil && now.Sub(e.at) <= MaxAge && !fn(Raw{Node: node, At: e.at, Body: e.body}) {
			return
		}
	}
}

// Missing are those of the nodes of which nothing is known that is worth showing, and
// nobody was asked since.
func (s *Store) Missing(nodes []string, now, since time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, node := range nodes {
		e, ok := s.nodes[node]
		told := ok && e.asked.IsZero() && now.Sub(e.at) <= MaxAge
		if !told && (!ok || e.asked.Before(since)) {
			out = append(out, node)
		}
	}
	return out
}

// Get decodes what is known of a node.
func (s *Store) Get(node string, now time.Time) (Taken, bool) {
	s.mu.Lock()
	e, ok := s.nodes[node]
	s.mu.Unlock()
	if !ok || e.body == nil || now.Sub(e.at) > MaxAge {
		return Taken{}, false
	}
	n, err := Decode(e.body)
	if err != nil {
		return Taken{}, false // what another server said is checked here
	}
	return Taken{At: e.at, Node: n}, true
}
