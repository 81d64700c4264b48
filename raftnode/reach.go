package raftnode

import (
	"sync"

	"github.com/hashicorp/raft"
)

// reach remembers how far other servers have acknowledged the log, for as long as this process runs: by what they say of themselves
// when they greet, what they have acknowledged to this leader, and what they have sent as leaders, who store it first. One whose
// whole directory is put back to an earlier time brings its promises of then along, and nothing in it can tell; whoever has heard
// more of it tells it so (hello.Known), and it has no vote until it holds that again.
type reach struct {
	id *identity // in which are the servers' incarnations

	mu      sync.Mutex
	servers map[string]reached
}

// reached is how far a server with certain data has acknowledged the log, at least.
type reached struct {
	Incarnation string   `json:"incarnation"`
	At          position `json:"at"`
	// Others: another server than that one has a vote. It is filled in when it is told.
	Others bool `json:"others,omitempty"`
}

func newReach(id *identity) *reach { return &reach{id: id, servers: map[string]reached{}} }

// note remembers that a server has acknowledged up to a position, with the data that it was last met with.
func (r *reach) note(server string, at position) {
	met, ok := r.id.record().Peers[server]
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.servers[server]; known.Incarnation != met.Incarnation || known.At.before(at) {
		r.servers[server] = reached{Incarnation: met.Incarnation, At: at}
	}
}

// noteEntries is note of who holds the entries of a request.
func (r *reach) noteEntries(server string, req *raft.AppendEntriesRequest) {
	if n := len(req.Entries); n > 0 {
		r.note(server, position{req.Entries[n-1].Term, req.Entries[n-1].Index})
	}
}

// of is what is known of a server, nil if nothing is.
func (r *reach) of(server string) *reached {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.servers[server]; ok {
		return &known
	}
	return nil
}

// remind is told what another server knows of this one. What this one does not know itself any more is its promise again.
func (s *stream) remind(known *reached) error {
	mine := s.promises.record()
	if known == nil || known.Incarnation != s.id.record().Incarnation || !mine.GivenUp.before(known.At) {
		return nil
	}
	at := known.At
	if !mine.Acknowledged.before(at) {
		// Who alone has a vote may have begun a term by itself before anybody told it, and what it has written in that is not what is missing.
		if at.Index <= mine.Acknowledged.Index || !votesAlone(s.servers(), s.self) {
			return nil
		}
		at.Term = mine.Acknowledged.Term
	}
	s.logger.Warn("this server's data are of an earlier time: it has no vote until it has again what it had acknowledged",
		"acknowledged", mine.Acknowledged, "known to others", known.At)
	return s.admitted(at, known.Others)
}

// admitted makes a promise of what this server may have acknowledged.
func (s *stream) admitted(at position, others bool) error {
	err := s.promises.admit(at, others)
	if err == nil {
		s.reweigh()
	}
	return err
}
