package raftnode

import (
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/berth-dev/berth/pki"
)

// The greeting is what two servers say before Raft says anything: who each is,
// of which cluster, and which copy of its data (standing.go says what follows).
const (
	helloMagic    = "BERTH-RAFT/2\n"
	maxHelloBytes = 4096
)

var errGreeting = errors.New("it does not speak as a server of Berth")

func writeHello(w io.Writer, h hello) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	msg := binary.BigEndian.AppendUint16([]byte(helloMagic), uint16(len(b)))
	_, err = w.Write(append(msg, b...))
	return err
}

func readHello(r io.Reader) (hello, error) {
	var h hello
	head := make([]byte, len(helloMagic)+2)
	if _, err := io.ReadFull(r, head); err != nil {
		return h, fmt.Errorf("%w: %w", errGreeting, err)
	}
	n := int(binary.BigEndian.Uint16(head[len(helloMagic):]))
	if string(head[:len(helloMagic)]) != helloMagic || n > maxHelloBytes {
		return h, errGreeting
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return h, fmt.Errorf("%w: %w", errGreeting, err)
	}
	if err := json.Unmarshal(body, &h); err != nil {
		return h, fmt.Errorf("%w: %w", errGreeting, err)
	}
	return h, nil
}

func (s *stream) greet(conn net.Conn, to string, admit *position) error {
	mine := s.helloTo(to)
	mine.To, mine.Admit = to, admit
	if err := writeHello(conn, mine); err != nil {
		return err
	}
	theirs, err := readHello(conn)
	if err != nil {
		return err
	}
	refused := s.id.record().judgeAnswer(mine, theirs)
	if refused != nil && theirs.Cluster != mine.Cluster {
		return refused
	}
	if err := checkCertificate(conn, theirs.Server); err != nil {
		return errors.Join(refused, err)
	}
	if refused != nil {
		return errors.Join(refused, s.remind(theirs.Known)) // which may be why
	}
	return s.meet(theirs)
}

// meet takes note of a server with which this one is going to speak as one of the cluster.
func (s *stream) meet(theirs hello) error {
	s.introduce(theirs)
	if err := s.id.meet(theirs.Server, theirs.copyOf); err != nil {
		return err
	}
	s.reach.note(theirs.Server, theirs.Acknowledged)
	return s.remind(theirs.Known)
}

// helloTo is hello with what is known of the other server.
func (s *stream) helloTo(server string) hello {
	h := s.hello()
	h.Acknowledged, h.Known = s.promises.record().Acknowledged, s.reach.of(server)
	if h.Known != nil {
		h.Known.Others = othersVote(s.servers(), server)
	}
	return h
}

// hello is what this server says of itself.
func (s *stream) hello() hello {
	r := s.id.record()
	return hello{Cluster: r.Cluster, Server: s.self, copyOf: r.copyOf, RPC: s.mine.RPC, HTTP: s.mine.HTTP}
}

// errAsked ends a connection that was only there to ask who is here.
var errAsked = errors.New("it only asked who is here")

// ask finds out who is at an address, and of which cluster, and tells the same of
// this server. It commits nobody to anything.
func (s *stream) ask(addr string, question hello, timeout time.Duration) (hello, error) {
	conn, err := s.open(addr, timeout)
	if err != nil {
		return hello{}, err
	}
	defer func() { _ = conn.Close() }() // all was said
	mine, to := s.hello(), question.To
	mine.To, mine.Gone, mine.Who = to, question.Gone, true
	if err := writeHello(conn, mine); err != nil {
		return hello{}, err
	}
	theirs, err := readHello(conn)
	switch {
	case err != nil:
		return hello{}, err
	case theirs.Refusal != "":
		return hello{}, errors.New(theirs.Refusal)
	case to != "" && theirs.Server != to:
		return hello{}, fmt.Errorf("it is server %q, and %q was asked for", theirs.Server, to)
	}
	if err := checkCertificate(conn, theirs.Server); err != nil {
		return hello{}, err
	}
	if theirs.Cluster == mine.Cluster {
		s.introduce(theirs)
	}
	return theirs, nil
}

// introduce takes note of where a server is reached that has shown who it is.
func (s *stream) introduce(h hello) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.RPC != "" {
		s.introduced[h.Server] = Addresses{RPC: h.RPC, HTTP: h.HTTP}
	}
}

func (s *stream) answer(conn net.Conn) (peer string, err error) {
	theirs, err := readHello(conn)
	if err != nil {
		return "", err
	}
	if err := checkCertificate(conn, theirs.Server); err != nil {
		return "", err // whoever has no server's certificate is told nothing
	}
	if theirs.Who && (theirs.To == "" || theirs.To == s.self) {
		mine := s.hello()
		if theirs.Cluster == mine.Cluster {
			s.introduce(theirs)
			if theirs.Gone != "" {
				s.agree(theirs.Gone, &mine)
			}
		}
		return "", errors.Join(errAsked, writeHello(conn, mine))
	}
	refusal := s.accept(theirs)
	mine := s.helloTo(theirs.Server)
	if refusal != nil {
		mine.Refusal, mine.Lost = refusal.Error(), errors.Is(refusal, ErrLostData)
	}
	return theirs.Server, errors.Join(refusal, writeHello(conn, mine))
}

// accept does what a greeting leads to.
func (s *stream) accept(theirs hello) error {
	v := s.id.record().judge(theirs)
	if v.refuse != nil {
		return v.refuse
	}
	if v.admit != nil {
		if leader := s.leader(); leader != "" && leader != theirs.Server {
			return fmt.Errorf("server %q would take this one in, which follows server %q: data of one of the two are of an earlier time", theirs.Server, leader)
		}
		// The promise first: who belongs to a cluster knows how far it may have
		// acknowledged.
		if err := s.admitted(*v.admit, true); err != nil {
			return err
		}
		if err := s.id.admitted(theirs.Cluster, *v.admit); err != nil {
			return err
		}
	}
	return s.meet(theirs)
}

// checkCertificate makes sure that the peer of a TLS connection is the server
// that it says it is: a worker's or client's certificate is signed by the same
// authority and must not vote.
func checkCertificate(conn net.Conn, name string) error {
	c, ok := conn.(*tls.Conn)
	if !ok {
		return nil
	}
	id, err := pki.PeerIdentity(c.ConnectionState().VerifiedChains, time.Now())
	if err != nil {
		return err
	}
	if id.Kind != pki.Server || id.Name != name {
		return fmt.Errorf("its certificate is that of %s %q, and it calls itself server %q", id.Kind, id.Name, name)
	}
	return nil
}
