package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestOutboxLosesNothing drives an outbox with random changes, pushes that lag
// behind the state, overflows and resyncs, against a worker that keeps what it
// is sent. The worker never goes back in time, has at each message all that the
// message's revision promises, and in the end what the state says.
func TestOutboxLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := limits{updates: 4, bytes: 1000, chunk: 200}
		m := &boxModel{box: newOutbox(0), worker: map[string]int64{}, newest: map[string]int64{}}
		m.box.limits = small
		actions := map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				uid := fmt.Sprint("u", rapid.IntRange(0, 5).Draw(t, "uid"))
				size := rapid.SampledFrom([]int{-1, 10, 100, 400, 900}).Draw(t, "size")
				if rapid.IntRange(0, 5).Draw(t, "node") == 0 {
					uid, size = node, max(size, 0)
				}
				m.log = append(m.log, change{uid, size})
			},
			"push": func(t *rapid.T) {
				if m.pushed < len(m.log) {
					m.push()
				}
			},
			"skip": func(*rapid.T) { // the feed was too far ahead of the pushes
				m.pushed = len(m.log)
				m.box.forceResync(int64(m.pushed))
			},
			"heartbeat": func(*rapid.T) { m.box.advance(int64(m.pushed)) },
			"send": func(t *rapid.T) {
				m.send(t, rapid.IntRange(1, 3).Draw(t, "messages"), rapid.Bool().Draw(t, "full"), rapid.IntRange(0, 3).Draw(t, "meanwhile"))
			},
		}
		t.Repeat(actions)
		for m.pushed < len(m.log) {
			m.push()
		}
		m.box.advance(int64(m.pushed))
		for m.send(t, 1, false, 0) {
		}
		m.check(t, int64(len(m.log)))
		if m.at != int64(len(m.log)) {
			t.Fatalf("the worker is at %d of %d", m.at, len(m.log))
		}
		if len(m.box.order) != 0 || len(m.box.updates) != 0 || m.box.bytes != 0 {
			t.Fatalf("left in the box: %d, %d, %d bytes", len(m.box.order), len(m.box.updates), m.box.bytes)
		}
	})
}

// node is in place of a pod's uid where the change is the node's.
const node = "node"

type change struct {
	uid  string
	size int // -1: gone
}

// boxModel: the state is the log of changes; a change's revision is its place
// in the log, counted from 1. Contents are "uid:revision".
type boxModel struct {
	box    *outbox
	log    []change
	pushed int
	// worker is each pod's revision; a pod that is gone is absent. newest is
	// the highest revision of each pod that the worker was ever sent.
	worker, newest map[string]int64
	at             int64
}

func content(uid string, rev int64, size int) []byte {
	head := fmt.Appendf(nil, "%s:%d:", uid, rev)
	return append(head, make([]byte, size)...)
}

func (m *boxModel) push() {
	m.pushed++
	c := m.log[m.pushed-1]
	u := Update{UID: c.uid, Revision: int64(m.pushed)}
	switch {
	case c.uid == node:
		u.UID, u.Node = "", content(c.uid, u.Revision, c.size)
	case c.size >= 0:
		u.Pod = content(c.uid, u.Revision, c.size)
	}
	m.box.put(u)
}

// truth is the state at a revision: each pod's last change.
func (m *boxModel) truth(rev int64) map[string]int64 {
	out := map[string]int64{}
	for i, c := range m.log[:rev] {
		out[c.uid] = int64(i + 1)
	}
	return out
}

// send is workerStream.send, up to n messages of the box. meanwhile changes are
// pushed while the state is being read.
func (m *boxModel) send(t *rapid.T, n int, full bool, meanwhile int) (sent bool) {
	for range n {
		if since, due := m.box.beginResync(); due {
			a := &Assignments{Full: full || since == 0, Revision: int64(len(m.log))}
			for uid, rev := range m.truth(a.Revision) {
				c := m.log[rev-1]
				switch {
				case uid == node:
					a.Node = content(uid, rev, c.size)
				case rev <= since && !a.Full:
				case c.size >= 0:
					a.Pods = append(a.Pods, content(uid, rev, c.size))
				case !a.Full:
					a.Gone = append(a.Gone, uid)
				}
			}
			for range meanwhile {
				if m.pushed < len(m.log) {
					m.push()
				}
			}
			parts := split(a, since, m.box.limits.chunk)
			for i, p := range parts {
				if p.More != (i < len(parts)-1) || i < len(parts)-1 && p.Revision != since {
					t.Fatalf("part %d of %d: more %v, revision %d", i, len(parts), p.More, p.Revision)
				}
				m.receive(t, p, i == 0)
			}
			m.box.endResync(a.Revision)
			sent = true
		}
		msg := m.box.next()
		if msg == nil {
			return sent
		}
		m.receive(t, msg.Assignments, true)
		sent = true
	}
	return sent
}

func (m *boxModel) receive(t *rapid.T, a *Assignments, first bool) {
	if a.Full && first {
		clear(m.worker)
	}
	said := slices.Clone(a.Pods)
	if a.Node != nil {
		said = append(said, a.Node)
	}
	for _, p := range said {
		parts := bytes.SplitN(p, []byte(":"), 3)
		uid, rev := string(parts[0]), int64(0)
		if _, err := fmt.Sscan(string(parts[1]), &rev); err != nil {
			t.Fatal(err)
		}
		if rev < m.newest[uid] {
			t.Fatalf("%s went back from %d to %d", uid, m.newest[uid], rev)
		}
		m.worker[uid], m.newest[uid] = rev, rev
	}
	for _, uid := range a.Gone {
		delete(m.worker, uid)
	}
	if a.Revision < m.at {
		t.Fatalf("the worker went back from %d to %d", m.at, a.Revision)
	}
	m.at = a.Revision
	if !a.More {
		m.check(t, m.at)
	}
}

// check: the worker has every pod as it was at rev, or newer.
func (m *boxModel) check(t *rapid.T, rev int64) {
	for uid, want := range m.truth(rev) {
		got, there := m.worker[uid]
		switch {
		case there && got < want:
			t.Fatalf("at %d the worker has %s of %d instead of %d", rev, uid, got, want)
		case !there && m.log[want-1].size >= 0 && m.truth(int64(len(m.log)))[uid] == want:
			t.Fatalf("at %d the worker lacks %s of %d", rev, uid, want)
		}
	}
}

func TestOutboxOverflowBecomesResync(t *testing.T) {
	o := newOutbox(0)
	o.beginResync()
	o.endResync(1)
	for i := range maxPendingUpdates + 1 {
		o.put(Update{UID: fmt.Sprint(i), Revision: int64(i + 2), Pod: []byte{1}})
	}
	if m := o.next(); m != nil {
		t.Errorf("an overflown box sends %+v", m)
	}
	if since, due := o.beginResync(); !due || since != 1 {
		t.Errorf("resync due %v since %d", due, since)
	}
}

func TestOutboxBoundsTunnels(t *testing.T) {
	o := newOutbox(0)
	for range maxPendingTunnels {
		if err := o.openTunnel(TunnelOpen{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.openTunnel(TunnelOpen{}); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	if m := o.next(); len(m.Tunnels) != maxPendingTunnels {
		t.Errorf("%d tunnels are sent", len(m.Tunnels))
	}
}
