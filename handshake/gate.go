// Package handshake accepts TLS connections: it bounds how many handshakes are
// under way, in all and from one address, and how long one may take. Until a
// handshake is over nobody knows who is there, so nothing else can bound it.
//
// It must never decide who may do what, and never keep a place once the
// handshake is over.
package handshake

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Bounds of the handshakes under way at one door. One takes some 30 kB, and a
// millisecond of a processor.
const (
	maxUnderway = 4096
	// maxOfAddress are those of one address; IPv6 addresses count by network.
	maxOfAddress = 512
	// maxLocal are those of this machine itself, where many workers may run.
	maxLocal = maxUnderway / 2

	// Timeout is how long a peer may take to show its certificate.
	Timeout = 10 * time.Second
)

// Gate counts the handshakes under way at one door. Its zero value is ready.
type Gate struct {
	mu      sync.Mutex
	all     int
	of      map[netip.Prefix]int
	refused int64
}

// Begin takes a place for a connection from an address, if there is one. Whoever
// got it calls done, once, when the handshake is over.
func (g *Gate) Begin(from net.Addr) (done func(), ok bool) {
	origin, limit := originOf(from)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= maxUnderway || g.of[origin] >= limit {
		g.refused++
		return nil, false
	}
	if g.of == nil {
		g.of = map[netip.Prefix]int{}
	}
	g.all++
	g.of[origin]++
	return func() { g.end(origin) }, true
}

func (g *Gate) end(origin netip.Prefix) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.of[origin]--; g.of[origin] == 0 {
		delete(g.of, origin)
	}
}

// Refused is how many connections found no place so far.
func (g *Gate) Refused() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused
}

// originOf is what a connection counts for, and how many that may have.
func originOf(from net.Addr) (origin netip.Prefix, limit int) {
	tcp, ok := from.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}, maxLocal // a pipe of this process
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	origin, _ = addr.Prefix(bits) // bits fit the address
	if addr.IsLoopback() {
		return origin, maxLocal
	}
	return origin, maxOfAddress
}
