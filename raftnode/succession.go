package raftnode

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// goneAgain is the time between the two looks that find a process gone.
	goneAgain = 50 * time.Millisecond
	// maxLooks bounds the looks at one that takes connections and ends them.
	maxLooks = 6
	// goneTimeout bounds a look, and a question to another voter. Who is slow is
	// not gone.
	goneTimeout = 500 * time.Millisecond
	// goneFor is how long what a look has found is worth something.
	goneFor = 250 * time.Millisecond
)

// succession lets a new leader be elected at once where the old one's process is
// gone: its kernel has closed its connections, and refuses new ones, twice. One
// that is only silent, because it is busy or cut off, is still waited for as long
// as the timeouts say: nobody refuses a connection in its place.
//
// A majority of the voters has to find it gone, each by connections of its own, so
// that nobody who alone is cut off can disturb a leader. Of these the one whose log
// is longest, by name where they are equal, stands for election, and nobody else.
type succession struct {
	n      *Node
	closed chan string // a server whose connection has ended; capacity 1

	// turn is held by whoever looks, and found is his. A look asks others, so who
	// waits for his turn does not wait beyond the server's end.
	turn  chan struct{}
	found map[string]finding
}

// finding is what a look has shown.
type finding struct {
	gone bool
	at   time.Time
}

// standing is how far a voter's log goes that agrees that the leader is gone.
type standing struct {
	id          string
	term, index uint64
}

func newSuccession(n *Node) *succession {
	return &succession{n: n, closed: make(chan string, 1), turn: make(chan struct{}, 1), found: map[string]finding{}}
}

// ended is told that a connection of another server has ended. It does not wait.
func (s *succession) ended(server string) {
	select {
	case s.closed <- server:
	default: // it is being looked at
	}
}

func (s *succession) run() {
	for {
		select {
		case server := <-s.closed:
			if s.leader() == server && s.gone(server) {
				s.succeed(server)
			}
		case <-s.n.closing:
			return
		}
	}
}

// leader is whom this server follows, if it may vote; else "".
func (s *succession) leader() string {
	if !s.n.started.Load() {
		return ""
	}
	id, _ := s.n.Leader()
	self, ok := s.n.server(s.n.c.ID)
	if !ok || self.NonVoter || s.n.Waits() || s.n.raft.State() != raft.Follower {
		return ""
	}
	return id
}

// gone finds out whether a server's process is gone.
func (s *succession) gone(id string) bool {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-s.n.closing:
		return false
	}
	if f, ok := s.found[id]; ok && time.Since(f.at) < goneFor {
		return f.gone
	}
	server, ok := s.n.server(id)
	gone := ok && s.look(server)
	clear(s.found) // there is one leader
	s.found[id] = finding{gone: gone, at: time.Now()}
	return gone
}

// look: two connections in a row are refused. A kernel that is about to end a
// process may still take one.
func (s *succession) look(server Server) bool {
	refused := 0
	for range maxLooks {
		_, err := s.n.stream.ask(server.Address, hello{To: server.ID}, goneTimeout)
		var slow net.Error
		switch {
		case err == nil, errors.As(err, &slow) && slow.Timeout():
			return false
		case errors.Is(err, syscall.ECONNREFUSED):
			refused++
		default:
			refused = 0
		}
		if refused == 2 {
			return true
		}
		select {
		case <-time.After(goneAgain):
		case <-s.n.closing:
			return false
		}
	}
	return false
}

// succeed asks the other voters, and stands for election if a majority agrees and
// nobody among it has a better claim.
func (s *succession) succeed(leader string) {
	agreed := []standing{s.standing()}
	voters := 0
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, v := range s.n.Configuration() {
		if v.NonVoter {
			continue
		}
		voters++
		if v.ID == leader || v.ID == s.n.c.ID {
			continue
		}
		asking.Go(func() {
			theirs, err := s.n.stream.ask(v.Address, hello{To: v.ID, Gone: leader}, goneTimeout)
			if err != nil || !theirs.Agrees {
				return
			}
			mu.Lock()
			agreed = append(agreed, standing{v.ID, theirs.LastTerm, theirs.LastIndex})
			mu.Unlock()
		})
	}
	asking.Wait()
	if len(agreed) < voters/2+1 || s.leader() != leader {
		return
	}
	first := slices.MinFunc(agreed, func(a, b standing) int {
		return cmp.Or(cmp.Compare(b.term, a.term), cmp.Compare(b.index, a.index), cmp.Compare(a.id, b.id))
	})
	s.n.logger.Info("the leader's process is gone", "leader", leader, "agreed", len(agreed), "voters", voters, "successor", first.id)
	if first.id == s.n.c.ID {
		s.stand()
	}
}

func (s *succession) standing() standing {
	stats := s.n.ServerStats()
	return standing{s.n.c.ID, stats.LastTerm, stats.LastIndex}
}

// agree answers another voter's question whether the leader is gone.
func (s *succession) agree(leader string, answer *hello) {
	if followed := s.leader(); followed != leader || !s.gone(leader) {
		return
	}
	mine := s.standing()
	answer.Agrees, answer.LastTerm, answer.LastIndex = true, mine.term, mine.index
}

// stand makes this server a candidate now. Raft offers that to a leader which hands
// over, as a request; so it is what arrives here, and the votes are given as then:
// the voters need not have missed the old leader.
func (s *succession) stand() {
	self := s.n.transport.EncodePeer(raft.ServerID(s.n.c.ID), s.n.transport.LocalAddr())
	answer := make(chan raft.RPCResponse, 1)
	request := raft.RPC{RespChan: answer, Command: &raft.TimeoutNowRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(s.n.c.ID), Addr: self},
	}}
	select {
	case s.n.inlet.requests <- request:
	case <-s.n.closing:
		return
	}
	select {
	case r := <-answer:
		if r.Error != nil {
			s.n.logger.Warn("this server could not stand for election", "error", fmt.Errorf("timeout now: %w", r.Error))
		}
	case <-s.n.dead:
	}
}

// inlet is the transport whose requests to Raft can be joined by this server's own.
type inlet struct {
	*raft.NetworkTransport
	requests chan raft.RPC
}

func newInlet(t *raft.NetworkTransport) *inlet {
	return &inlet{NetworkTransport: t, requests: make(chan raft.RPC)}
}

// run hands requests on until the node is stopped.
func (i *inlet) run(dead <-chan struct{}) {
	for {
		select {
		case r := <-i.NetworkTransport.Consumer():
			select {
			case i.requests <- r:
			case <-dead:
				r.Respond(nil, ErrShutdown)
				return
			}
		case <-dead:
			return
		}
	}
}

// Consumer implements raft.Transport.
func (i *inlet) Consumer() <-chan raft.RPC { return i.requests }
