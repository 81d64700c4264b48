package sim

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// gossipPort is that of every machine.
const gossipPort = 7946

// gossip carries packets, which may be lost, come twice and in another order, and
// connections. It implements memberlist.NodeAwareTransport.
type gossip struct {
	host    *host
	packets chan *memberlist.Packet
	streams chan net.Conn
	lis     *listener
	once    sync.Once
	done    chan struct{}
}

var _ memberlist.NodeAwareTransport = (*gossip)(nil)

func (h *host) openGossip() (*gossip, error) {
	l, err := h.listen(gossipPort)
	if err != nil {
		return nil, err
	}
	g := &gossip{host: h, packets: make(chan *memberlist.Packet, 1024), streams: make(chan net.Conn), lis: l, done: make(chan struct{})}
	h.net.mu.Lock()
	h.gossip = g
	h.net.mu.Unlock()
	go g.accept()
	return g, nil
}

func (g *gossip) accept() {
	for {
		c, err := g.lis.Accept()
		if err != nil {
			return
		}
		select {
		case g.streams <- c:
		case <-g.done:
			_ = c.Close()
			return
		}
	}
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (g *gossip) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return net.ParseIP(g.host.ip).To4(), gossipPort, nil
}

// WriteTo implements memberlist.Transport.
func (g *gossip) WriteTo(b []byte, addr string) (time.Time, error) {
	ip, _, err := split(addr)
	if err != nil {
		return time.Time{}, err
	}
	n := g.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.of(g.host.ip, ip)
	n.story.send("packet", g.host.ip, ip, len(b))
	if g.host.dead || l.cut || n.rand.Float64() < l.loss {
		return time.Now(), nil
	}
	times := 1
	if n.rand.Float64() < l.twice {
		times = 2
	}
	p := memberlist.Packet{Buf: slices.Clone(b), From: tcpAddr(g.host.ip, gossipPort)}
	for range times {
		one := p
		one.Buf = slices.Clone(p.Buf)
		time.AfterFunc(leastDelay+time.Duration(n.rand.Int64N(int64(2*l.delay)+1)), func() { n.deliver(ip, &one) })
	}
	return time.Now(), nil
}

func (n *network) deliver(ip string, p *memberlist.Packet) {
	n.mu.Lock()
	var to *gossip
	if h := n.hosts[ip]; h != nil {
		to = h.gossip
	}
	n.mu.Unlock()
	if to == nil {
		return
	}
	p.Timestamp = time.Now()
	select {
	case to.packets <- p:
	default: // too many wait: they are lost, as the kernel does it
	}
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (g *gossip) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return g.WriteTo(b, a.Addr)
}

// PacketCh implements memberlist.Transport.
func (g *gossip) PacketCh() <-chan *memberlist.Packet { return g.packets }

// DialTimeout implements memberlist.Transport.
func (g *gossip) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return g.host.dial(ctx, addr)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (g *gossip) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return g.DialTimeout(a.Addr, timeout)
}

// StreamCh implements memberlist.Transport.
func (g *gossip) StreamCh() <-chan net.Conn { return g.streams }

// Shutdown implements memberlist.Transport.
func (g *gossip) Shutdown() error {
	g.once.Do(func() {
		close(g.done)
		_ = g.lis.Close()
	})
	return nil
}
