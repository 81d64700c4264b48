package cluster

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// TestStreamsAreBounded: who is one too many of those that connect and say nothing is closed, and once there is room members are heard.
func TestStreamsAreBounded(t *testing.T) {
	p := start(t, config("m0", RoleServer))
	dial := func() net.Conn {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	// fill takes every place that there is for this machine's address.
	fill := func() (free []func()) {
		for {
			done, ok := p.transport.gate.Begin(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if !ok {
				return free
			}
			free = append(free, done)
		}
	}
	places := fill()
	refused := p.RefusedStreams()
	if refused != 1 || len(places) < 1000 {
		t.Fatalf("%d have a place, %d were refused", len(places), refused)
	}
	beyond := dial()
	if err := beyond.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := beyond.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || p.RefusedStreams() <= refused {
		t.Errorf("one too many: %v, and %d were refused", err, p.RefusedStreams())
	}
	other := start(t, config("m1", RoleWorker))
	if _, err := other.Join(t.Context(), p.Addr()); err == nil {
		t.Error("a member is heard though there is no room")
	}
	for _, done := range places {
		done()
	}
	join(t, other, p)
	eventually(t, "both see each other", func() bool { return alive(p) == 2 && alive(other) == 2 })
	eventually(t, "who was heard to have given his place back", func() bool {
		now := fill()
		for _, done := range now {
			done()
		}
		return len(now) == len(places)
	})
}
