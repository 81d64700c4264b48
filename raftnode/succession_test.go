package raftnode

import (
	"testing"
	"time"

	"github.com/berth-dev/berth/ports"
)

// patient makes timeouts so long that no election comes of them.
func patient(t *testing.T, w *network) {
	t.Helper()
	for _, n := range w.nodes {
		rc := n.raft.ReloadableConfig()
		rc.HeartbeatTimeout, rc.ElectionTimeout = time.Hour, time.Hour
		if err := n.raft.ReloadConfig(rc); err != nil {
			t.Fatal(err)
		}
	}
}

// A leader whose process is gone has a successor at once: no timeout has to pass.
func TestAProcessThatIsGoneIsSucceededAtOnce(t *testing.T) {
	w := newNetwork(t, "a", "b", "c")
	old, index := w.propose(namespace())
	for _, n := range w.nodes {
		if err := n.WaitApplied(testContext(t), index); err != nil {
			t.Fatal(err)
		}
	}
	patient(t, w)
	// What the kernel does when a process ends.
	if err := old.stream.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a successor", func() bool {
		for _, n := range w.nodes {
			if n != old && n.Leadership().Leader {
				return true
			}
		}
		return false
	})
}

// Nobody is succeeded who only one voter does not reach, or who is only silent.
func TestWhoIsNotGoneIsNotSucceeded(t *testing.T) {
	w := newNetwork(t, "a", "b", "c")
	leader, index := w.propose(namespace())
	for _, n := range w.nodes {
		if err := n.WaitApplied(testContext(t), index); err != nil {
			t.Fatal(err)
		}
	}
	patient(t, w)
	term := leader.Term()
	silent, closed := deafListener(t), closedPort(t)
	for id, n := range w.nodes {
		if n == leader {
			continue
		}
		if n.succession.gone(leader.ID()) {
			t.Errorf("%s finds a leader gone that answers", id)
		}
		if n.succession.look(Server{ID: "x", Address: silent}) {
			t.Errorf("%s finds one gone that is silent", id)
		}
		if !n.succession.look(Server{ID: "x", Address: closed}) {
			t.Errorf("%s does not find one gone that is", id)
		}
		n.succession.succeed(leader.ID()) // as if it alone found it gone
	}
	if _, _, err := leader.Propose(testContext(t), create("m", "1")); err != nil {
		t.Error(err)
	}
	if !leader.Leadership().Leader || leader.Term() != term {
		t.Errorf("a leader that is well was succeeded: term %d, after %d", leader.Term(), term)
	}
}

func deafListener(t *testing.T) string {
	l, addr, err := openListener(Config{BindAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return addr.String() // the kernel takes connections, and nobody reads
}

func closedPort(t *testing.T) string {
	claim, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(claim.Release)
	return claim.Addr(0)
}

// Whoever asks for a finding while another look asks the network is not held up beyond
// the server's end.
func TestAServerThatEndsWaitsForNoLook(t *testing.T) {
	n := &Node{closing: make(chan struct{})}
	s := newSuccession(n)
	s.turn <- struct{}{} // somebody looks, and is not answered
	answer := make(chan bool)
	go func() { answer <- s.gone("a") }()
	close(n.closing)
	if <-answer {
		t.Error("a server of which nothing is known is said to be gone")
	}
}
