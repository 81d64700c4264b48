package rpc

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pki"
)

// Who is put out has nothing open any more that began before: no stream, and no tunnel, by whichever server it goes.
func TestWhoIsPutOutHasNothingOpen(t *testing.T) {
	c := newCluster()
	s1, s2 := startServer(t, c, "s1", nil), startServer(t, c, "s2", nil)
	startWorker(t, "n1", nil, &agent{}, s2)
	startWorker(t, "n2", nil, &agent{}, s2)
	eventually(t, "the workers are connected", func() bool { return s2.Hub.Count() == 2 })
	pool := startPool(t, nil)
	here := &Tunneler{Hub: s2.Hub, Pool: pool, Peers: func() []string { return nil }}
	elsewhere := &Tunneler{Hub: s1.Hub, Pool: pool, Peers: func() []string { return []string{s2.addr} }}
	open := func(tun *Tunneler, node string) *Tunnel {
		conn, err := tun.Open(t.Context(), node, "echo", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	ends := []*Tunnel{open(here, "n1"), open(elsewhere, "n1")}
	stays := open(elsewhere, "n2")
	c.putOut("n1", s1, s2)
	for _, conn := range ends {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("something is read of who is out")
		}
		_ = conn.Close()
		<-conn.Done()
	}
	eventually(t, "its stream has ended", func() bool { return !s2.Hub.Holds("n1") })
	if _, err := io.WriteString(stays, "y"); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(stays, make([]byte, 1)); err != nil {
		t.Errorf("another one's tunnel: %v", err)
	}
	_ = stays.Close()
	<-stays.Done()
	eventually(t, "it is forgotten who had something open", func() bool {
		return len(s2.callers.open.Of("n1")) == 0 && len(s2.callers.open.Of("n2")) == 1
	})
}

// Who is put out while he registers is not heard thereafter: his header was looked at before.
func TestPutOutWhileItRegisters(t *testing.T) {
	c := newCluster()
	s := startServer(t, c, "s1", nil)
	c.mu.Lock()
	c.onHello = func() { c.putOut("n1", s) }
	c.mu.Unlock()
	startWorker(t, "n1", nil, &agent{}, s)
	eventually(t, "it is refused", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.out == "n1"
	})
	eventually(t, "its stream has ended", func() bool { return len(s.callers.open.Of("")) == 0 })
	if s.Hub.Holds("n1") {
		t.Error("it is held")
	}
	if _, _, err := s.callers.enter(context.WithValue(t.Context(), identityKey{}, &pki.Identity{Kind: pki.Worker, Name: "n1"}), "n1"); err == nil || !strings.Contains(err.Error(), "is out") {
		t.Errorf("one that was let in before it: %v", err)
	}
}
