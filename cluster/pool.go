package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"
)

// defaultWait bounds a broadcast where the caller's context has no deadline.
const defaultWait = 5 * time.Second

// Config says who this member is and where the others may be.
type Config struct {
	// Name is unique in the cluster.
	Name string
	// BindAddr is an IP address or a name of this machine; BindPort 0 takes
	// any free port, for TCP and UDP alike.
	BindAddr string
	BindPort int
	// Transport carries what members say; nil opens UDP and TCP sockets at
	// BindAddr and BindPort, which must both be given otherwise.
	Transport memberlist.NodeAwareTransport
	// AdvertiseAddr is what others dial, as host or host:port; empty for
	// the bound address.
	AdvertiseAddr string
	// Meta is what this member tells of itself.
	Meta Meta
	// EncryptionKey is base64 of 16, 24 or 32 bytes; empty for no encryption.
	EncryptionKey string
	// Join are members' gossip addresses, host or host:port (default port:
	// BindPort).
	Join []string
	// RetryInterval is how often Run tries Join, and lost members, again;
	// 0 means 15 s.
	RetryInterval time.Duration
	// Loopback uses settings for members of one machine, which notice losses
	// sooner.
	Loopback bool
	Logger   hclog.Logger

	// tune is for tests.
	tune func(*memberlist.Config)
}

// Pool is this process's membership. It is safe for concurrent use.
type Pool struct {
	name      string
	join      []string
	retry     time.Duration
	bindAddr  net.IP
	bindPort  int
	encrypted bool
	log       hclog.Logger
	ml        *memberlist.Memberlist
	transport *transport
	queue     *memberlist.TransmitLimitedQueue // never called with mu held
	pinger    func(name string, addr net.Addr) (time.Duration, error)

	joinMu      sync.Mutex // one Join at a time
	advertiseMu sync.Mutex // one Advertise at a time
	endMu       sync.Mutex // Leave and Shutdown
	ended       bool

	// mu is taken under memberlist's lock: never call memberlist with it held.
	mu           sync.Mutex
	addr         string
	meta         Meta
	rawMeta      []byte
	members      map[string]Member // see put
	gone         int               // of them
	subs         map[*Subscription]struct{}
	refused      error // by the last NotifyMerge
	lastConflict string
	forgotten    time.Time
}

// New starts gossip. It joins nobody: see Join and Run.
func New(c Config) (*Pool, error) {
	if c.Name == "" {
		return nil, errors.New("starting gossip: the member has no name")
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.Meta.Instance = strconv.FormatUint(rand.Uint64(), 36) // #nosec G404 -- no secret: it tells two runs of a member apart
	raw, err := encodeMeta(c.Meta)
	if err == nil {
		_, err = decodeMeta(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("starting gossip: %w", err)
	}
	p := &Pool{
		name:    c.Name,
		join:    slices.Clone(c.Join),
		retry:   c.RetryInterval,
		log:     c.Logger,
		meta:    c.Meta,
		rawMeta: raw,
		members: map[string]Member{},
		subs:    map[*Subscription]struct{}{},
	}
	if p.retry <= 0 {
		p.retry = 15 * time.Second
	}
	mc, err := p.configure(c)
	if err != nil {
		return nil, fmt.Errorf("starting gossip: %w", err)
	}
	p.encrypted = mc.SecretKey != nil
	p.queue = &memberlist.TransmitLimitedQueue{RetransmitMult: 2 * mc.RetransmitMult, NumNodes: p.count}
	if p.ml, err = memberlist.Create(mc); err != nil {
		return nil, errors.Join(fmt.Errorf("starting gossip on %s: %w", net.JoinHostPort(c.BindAddr, strconv.Itoa(c.BindPort)), err), p.transport.Shutdown())
	}
	p.pinger = p.ml.Ping
	p.mu.Lock()
	p.addr = p.members[p.name].Addr
	p.mu.Unlock()
	return p, nil
}

// configure also opens the sockets.
func (p *Pool) configure(c Config) (*memberlist.Config, error) {
	mc := memberlist.DefaultLANConfig()
	if c.Loopback {
		mc = memberlist.DefaultLocalConfig()
	}
	mc.Name = c.Name
	mc.HandoffQueueDepth = 4096
	mc.EnableCompression = false // a packet is a few hundred bytes, and a compressor a megabyte of memory each time; what comes compressed is read
	// A dead member's name may come back at another address at once: a
	// restarted worker may have another port.
	mc.DeadNodeReclaimTime = time.Millisecond
	mc.Delegate, mc.Events, mc.Conflict, mc.Merge, mc.Alive = delegate{p}, delegate{p}, delegate{p}, delegate{p}, delegate{p}
	mc.LogOutput = nil
	mc.Logger = c.Logger.StandardLogger(&hclog.StandardLoggerOptions{InferLevels: true})
	if c.tune != nil {
		c.tune(mc)
	}
	var err error
	if mc.SecretKey, err = DecodeKey(c.EncryptionKey); err != nil {
		return nil, err
	}
	if p.bindAddr, err = resolveIP(c.BindAddr); err != nil {
		return nil, fmt.Errorf("bind address: %w", err)
	}
	host, port := c.AdvertiseAddr, ""
	if h, pt, err := net.SplitHostPort(c.AdvertiseAddr); err == nil {
		host, port = h, pt
	}
	if host != "" {
		ip, err := resolveIP(host)
		if err != nil {
			return nil, fmt.Errorf("advertise address: %w", err)
		}
		mc.AdvertiseAddr = ip.String()
	}
	if c.Transport != nil {
		p.transport, p.bindPort = &transport{NodeAwareTransport: c.Transport}, c.BindPort
	} else if p.transport, p.bindPort, err = listen(p.bindAddr.String(), c.BindPort, mc.Logger); err != nil {
		return nil, err
	}
	mc.Transport, mc.BindAddr, mc.BindPort, mc.AdvertisePort = p.transport, p.bindAddr.String(), p.bindPort, p.bindPort
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return nil, errors.Join(fmt.Errorf("advertise address %q: bad port", c.AdvertiseAddr), p.transport.Shutdown())
		}
		mc.AdvertisePort = int(n)
	}
	return mc, nil
}

// IsLoopback says whether an address is of the loopback interface (see
// Config.Loopback).
func IsLoopback(addr string) bool {
	ip := net.ParseIP(addr)
	return ip != nil && ip.IsLoopback()
}

// DecodeKey reads a gossip key. An empty one is no key.
func DecodeKey(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	key, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("the gossip encryption key is not base64: %w", err)
	}
	if err := memberlist.ValidateKey(key); err != nil {
		return nil, fmt.Errorf("the gossip encryption key has %d bytes: it must have 16, 24 or 32", len(key))
	}
	return key, nil
}

// resolveIP accepts a name too: memberlist would take one that is no IP address
// for "all interfaces".
func resolveIP(host string) (net.IP, error) {
	if host == "" {
		return net.IPv4zero, nil
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip, nil
	}
	ips, err := net.LookupIP(host)
	if err != nil {
		return nil, fmt.Errorf("%q is no address of this machine: %w", host, err)
	}
	// IPv4 first, as memberlist's own default is.
	for _, ip := range ips {
		if ip.To4() != nil {
			return ip, nil
		}
	}
	return ips[0], nil
}

// Name is this member's own.
func (p *Pool) Name() string { return p.name }

// Addr is the gossip address that others reach this member at.
func (p *Pool) Addr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addr
}

// RefusedStreams is how many connections were closed because there were too many that say nothing.
func (p *Pool) RefusedStreams() int64 {
	if p.transport.gate == nil {
		return 0
	}
	return p.transport.gate.Refused()
}

// Meta is what this member tells of itself now.
func (p *Pool) Meta() Meta {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.meta
}

// Members lists everybody heard of, this one and those gone for less than a day
// too, sorted by name.
func (p *Pool) Members() []Member {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.list(func(Member) bool { return true })
}

// Servers lists the live servers, sorted by name.
func (p *Pool) Servers() []Member {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.list(func(m Member) bool { return m.Role == RoleServer && m.Status == StatusAlive })
}

// Get is one member.
func (p *Pool) Get(name string) (Member, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.members[name]
	return m, ok
}

// count is how many members are known, at least 1.
func (p *Pool) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(len(p.members), 1)
}

// list wants p.mu held.
func (p *Pool) list(keep func(Member) bool) []Member {
	out := make([]Member, 0, len(p.members))
	for _, m := range p.members {
		if keep(m) {
			out = append(out, m)
		}
	}
	sortMembers(out)
	return out
}

// Subscribe returns the members of this moment and every later event.
func (p *Pool) Subscribe() ([]Member, *Subscription) {
	s := &Subscription{pool: p, wake: make(chan struct{}, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.subs == nil {
		s.closed = true
	} else {
		p.subs[s] = struct{}{}
	}
	return p.list(func(Member) bool { return true }), s
}

// Advertise changes what this member tells of itself. An error other than one
// of size means that the change was not spread in time; it still will be.
func (p *Pool) Advertise(ctx context.Context, change func(*Meta)) error {
	p.advertiseMu.Lock()
	defer p.advertiseMu.Unlock()
	p.mu.Lock()
	meta := p.meta
	p.mu.Unlock()
	instance := meta.Instance
	change(&meta)
	meta.Instance = instance
	raw, err := encodeMeta(meta)
	if err == nil {
		_, err = decodeMeta(raw)
	}
	if err != nil {
		return fmt.Errorf("advertising: %w", err)
	}
	p.mu.Lock()
	closed := p.subs == nil
	p.meta, p.rawMeta = meta, raw
	p.mu.Unlock()
	if closed {
		return fmt.Errorf("advertising: %w", ErrClosed)
	}
	if err := p.ml.UpdateNode(waitOf(ctx)); err != nil {
		return fmt.Errorf("advertising: %w", err)
	}
	return nil
}

func waitOf(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return max(time.Until(d), time.Millisecond)
	}
	return defaultWait
}

// Shutdown stops gossip at once and closes the subscriptions. Without Leave
// before it, others see a failure.
func (p *Pool) Shutdown() error {
	p.endMu.Lock()
	defer p.endMu.Unlock()
	if p.ended {
		return nil
	}
	p.ended = true
	err := p.ml.Shutdown()
	p.mu.Lock()
	subs := p.subs
	p.subs = nil
	p.mu.Unlock()
	for s := range subs {
		s.finish()
	}
	if err != nil {
		return fmt.Errorf("stopping gossip: %w", err)
	}
	return nil
}
