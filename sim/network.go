package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// link is what happens to what one machine sends to another. The other direction
// is another link.
type link struct {
	cut   bool
	delay time.Duration // at most, beside the least that every link has
	loss  float64       // of a segment: it comes later; of a packet: it never does
	twice float64       // of a packet
}

// leastDelay is what every segment takes.
const leastDelay = 50 * time.Microsecond

// calm is a link on which nothing is wrong.
func calm() link { return link{delay: 500 * time.Microsecond} }

// network joins machines by connections that keep order, as TCP does, and by
// packets that do not.
type network struct {
	story *story

	mu    sync.Mutex
	rand  *rand.Rand
	hosts map[string]*host                          // by IP: those that are up
	dark  map[string]bool                           // machines without power: nothing answers
	links map[[2]string]link                        // from, to; others are calm
	conns map[*conn]struct{}                        // one end each
	held  map[[2]string][]func(after time.Duration) // what a cut holds up
}

func newNetwork(seed uint64, s *story) *network {
	return &network{
		story: s, rand: rand.New(rand.NewPCG(seed, 1)), hosts: map[string]*host{}, dark: map[string]bool{},
		links: map[[2]string]link{}, conns: map[*conn]struct{}{}, held: map[[2]string][]func(time.Duration){},
	}
}

// host is a machine while one process runs on it. After its end nothing that the
// process still does reaches anybody.
type host struct {
	net  *network
	ip   string
	gone chan struct{}                     // closed when the process has ended
	over atomic.Pointer[func(addr string)] // told where it dials when nothing of it should be left; nil: not yet
	// Below: under net.mu.
	dead      bool
	listeners map[int]*listener
	gossip    *gossip
}

// start makes a machine's process reachable.
func (n *network) start(ip string) *host {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := &host{net: n, ip: ip, gone: make(chan struct{}), listeners: map[int]*listener{}}
	n.hosts[ip] = h
	delete(n.dark, ip)
	return h
}

// end cuts a process off for good. Its machine's kernel resets what it had open;
// one that lost its power tells nobody, and those who wait for it wait.
func (n *network) end(h *host, power bool) {
	n.mu.Lock()
	if h.dead {
		n.mu.Unlock()
		return
	}
	h.dead = true
	close(h.gone)
	if n.hosts[h.ip] == h {
		delete(n.hosts, h.ip)
		if power {
			n.dark[h.ip] = true
		}
	}
	listeners, gossip := h.listeners, h.gossip
	var mine []*conn
	for c := range n.conns {
		if c.host == h {
			mine = append(mine, c)
		}
	}
	n.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close()
	}
	if gossip != nil {
		_ = gossip.Shutdown()
	}
	sortConns(mine)
	for _, c := range mine {
		c.fail(syscall.ENETDOWN)
		if !power {
			n.after(c.host.ip, c.other.host.ip, func() { c.other.fail(syscall.ECONNRESET) })
		}
	}
}

// reset breaks all connections of a machine, and tells both ends.
func (n *network) reset(ip string) {
	n.mu.Lock()
	var all []*conn
	for c := range n.conns {
		if c.host.ip == ip {
			all = append(all, c)
		}
	}
	n.mu.Unlock()
	sortConns(all)
	for _, c := range all {
		c.fail(syscall.ECONNRESET)
		c.other.fail(syscall.ECONNRESET)
	}
}

// set changes a link. What a cut held up comes some time after its end, as its
// sender tries less and less often.
func (n *network) set(from, to string, l link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setLocked(from, to, l, func() time.Duration { return time.Duration(n.rand.Int64N(int64(2 * time.Second))) })
}

// release ends the cut of a link, of which what it held up comes at once.
func (n *network) release(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setLocked(from, to, calm(), func() time.Duration { return leastDelay })
}

func (n *network) setLocked(from, to string, l link, late func() time.Duration) {
	key := [2]string{from, to}
	was := n.links[key]
	n.links[key] = l
	if was.cut && !l.cut {
		d := late()
		for _, send := range n.held[key] {
			send(d)
		}
		delete(n.held, key)
	}
}

func (n *network) heal() {
	n.mu.Lock()
	var cut [][2]string
	for key := range n.links {
		cut = append(cut, key)
	}
	n.mu.Unlock()
	sortLinks(cut)
	for _, key := range cut {
		n.set(key[0], key[1], calm())
	}
}

// of is called with mu held.
func (n *network) of(from, to string) link {
	if l, ok := n.links[[2]string{from, to}]; ok {
		return l
	}
	return calm()
}

// late is how long a segment takes. It is called with mu held.
func (n *network) late(l link) time.Duration {
	d := leastDelay + time.Duration(n.rand.Int64N(int64(l.delay)+1))
	for again := 200 * time.Millisecond; l.loss > 0 && n.rand.Float64() < l.loss && again < 5*time.Second; again *= 2 {
		d += again
	}
	return d
}

// after does something when word of it has come from one machine to another.
func (n *network) after(from, to string, do func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.of(from, to); !l.cut {
		time.AfterFunc(n.late(l), do)
		return
	}
	key := [2]string{from, to}
	n.held[key] = append(n.held[key], func(d time.Duration) { time.AfterFunc(d, do) })
}

// address of a port of a machine.
func address(ip string, port int) string { return fmt.Sprintf("%s:%d", ip, port) }

func split(addr string) (ip string, port int, err error) {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return "", 0, err
	}
	return a.IP.String(), a.Port, nil
}

// listener is a port of a machine.
type listener struct {
	host  *host
	port  int
	queue chan *conn
	once  sync.Once
	done  chan struct{}
}

// listen opens a port.
func (h *host) listen(port int) (*listener, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.listeners[port] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := &listener{host: h, port: port, queue: make(chan *conn, 128), done: make(chan struct{})}
	h.listeners[port] = l
	return l, nil
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.host.net.mu.Lock()
		delete(l.host.listeners, l.port)
		l.host.net.mu.Unlock()
		close(l.done)
		for {
			select {
			case c := <-l.queue:
				_ = c.Close()
			default:
				return
			}
		}
	})
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return tcpAddr(l.host.ip, l.port) }

func tcpAddr(ip string, port int) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: port} }

// dial connects to a port of another machine.
func (h *host) dial(ctx context.Context, addr string) (net.Conn, error) {
	ip, port, err := split(addr)
	if err != nil {
		return nil, err
	}
	if stray := h.over.Load(); stray != nil {
		(*stray)(addr)
	}
	fail := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Addr: tcpAddr(ip, port), Err: err} }
	there := make(chan error, 1)
	var made *conn
	// The first packet, and the answer to it.
	h.net.after(h.ip, ip, func() {
		c, err := h.connect(ip, port)
		if errIsSilence(err) {
			return
		}
		h.net.after(ip, h.ip, func() { made = c; there <- err })
	})
	select {
	case err := <-there:
		if err != nil {
			return nil, fail(err)
		}
		return made, nil
	case <-ctx.Done():
		return nil, fail(os.ErrDeadlineExceeded)
	case <-h.gone:
		return nil, fail(syscall.ENETDOWN) // or what is left of the process would wait for minutes
	case <-time.After(2 * time.Minute):
		return nil, fail(syscall.ETIMEDOUT)
	}
}

type silence struct{}

func (silence) Error() string { return "nobody answers" }

func errIsSilence(err error) bool { _, is := err.(silence); return is }

// connect is what the other machine does with the first packet.
func (h *host) connect(ip string, port int) (*conn, error) {
	n := h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.dead || n.dark[ip] {
		return nil, silence{}
	}
	to := n.hosts[ip]
	if to == nil || to.listeners[port] == nil {
		return nil, syscall.ECONNREFUSED
	}
	here, there := n.pair(h, to, port)
	select {
	case to.listeners[port].queue <- there:
		n.story.send("connect", h.ip, ip, port)
		return here, nil
	default:
		return nil, silence{} // its queue is full
	}
}
