package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	resolverPort = 53
	// queriesAtOnce bounds the queries under way, queriesOfOne those of one address that others' resolvers are
	// asked. What is beyond is answered with SERVFAIL, and asked again by its client.
	queriesAtOnce = 1024
	queriesOfOne  = 128
	// connectionsAtOnce bounds the connections over TCP, which last for connectionIdle without a query, and connectionsOfOne those of one address.
	connectionsAtOnce = 256
	connectionsOfOne  = 32
	connectionIdle    = 8 * time.Second
	// payloadBytes is the longest answer over UDP to a client that takes as much.
	payloadBytes = 1232
	// maxAliases is how many names that stand for others are followed.
	maxAliases = 8
)

// ResolverConfig says what a Resolver needs.
type ResolverConfig struct {
	Table *Table
	// Domain is the cluster's, "cluster.local".
	Domain string
	// Admit says whether an address may ask: those of this node and of its pods. Whoever else reaches
	// the port is not answered.
	Admit func(netip.Addr) bool
	// Upstream answers for the names of others.
	Upstream Upstream
	Registry prometheus.Registerer // nil: nobody counts
	Logger   hclog.Logger
}

// Upstream asks others' resolvers.
type Upstream interface {
	// Ask returns their answer to a question, of any length. The message is the caller's.
	Ask(ctx context.Context, q *dns.Msg) (*dns.Msg, error)
}

// Resolver answers for the names of services, and asks others for all other names.
type Resolver struct {
	config  ResolverConfig
	log     hclog.Logger
	records records
	queries *prometheus.CounterVec

	mu      sync.Mutex
	all     int
	of      map[netip.Addr]int
	conns   int
	connsOf map[netip.Addr]int
}

// NewResolver makes one that does not listen yet.
func NewResolver(c ResolverConfig) (*Resolver, error) {
	r := &Resolver{config: c, log: c.Logger, records: records{c.Table, dns.Fqdn(strings.ToLower(c.Domain))}, of: map[netip.Addr]int{}, connsOf: map[netip.Addr]int{}}
	r.queries = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_dns_queries_total", Help: "Queries that this node's resolver has answered, by whose name it was and by the answer.",
	}, []string{"name", "answer"})
	if c.Registry != nil {
		if err := c.Registry.Register(r.queries); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Serve answers at an address until ctx ends, by UDP and TCP.
func (r *Resolver) Serve(ctx context.Context, address netip.AddrPort) error {
	packets, err := net.ListenPacket("udp", address.String())
	if err != nil {
		return fmt.Errorf("answering for names: %w", err)
	}
	streams, err := net.Listen("tcp", packets.LocalAddr().String())
	if err != nil {
		return errors.Join(fmt.Errorf("answering for names: %w", err), packets.Close())
	}
	return r.serve(ctx, packets, streams)
}

func (r *Resolver) serve(ctx context.Context, packets net.PacketConn, streams net.Listener) error {
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { r.answer(ctx, w, q) })
	servers := []*dns.Server{
		{PacketConn: packets, Handler: handler, UDPSize: dns.MinMsgSize * 2},
		{Listener: &bounded{Listener: streams, r: r}, Handler: handler, ReadTimeout: connectionIdle, MaxTCPQueries: 128,
			IdleTimeout: func() time.Duration { return connectionIdle }},
	}
	ended := make(chan error, len(servers))
	for _, s := range servers {
		go func() { ended <- s.ActivateAndServe() }()
	}
	var err error
	left := len(servers)
	select {
	case <-ctx.Done():
	case err = <-ended:
		left--
	}
	// What is not served any more is closed, whether or not its server had begun.
	err = errors.Join(err, ignoreClosed(packets.Close()), ignoreClosed(streams.Close()))
	for ; left > 0; left-- {
		<-ended
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// bounded accepts so many connections at a time, of those who may ask.
type bounded struct {
	net.Listener
	r *Resolver
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if from, ok := addressOf(conn.RemoteAddr()); ok && b.r.config.Admit(from) && b.r.enterConn(from) {
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { b.r.leaveConn(from) })}, nil
		}
		_ = conn.Close() // nothing was said on it
	}
}

type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}

func (r *Resolver) enterConn(from netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conns >= connectionsAtOnce || r.connsOf[from] >= connectionsOfOne {
		return false
	}
	r.conns++
	r.connsOf[from]++
	return true
}

func (r *Resolver) leaveConn(from netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns--
	if r.connsOf[from]--; r.connsOf[from] == 0 {
		delete(r.connsOf, from)
	}
}

func (r *Resolver) enter(from netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all >= queriesAtOnce || r.of[from] >= queriesOfOne {
		return false
	}
	r.all++
	r.of[from]++
	return true
}

func (r *Resolver) leave(from netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all--
	if r.of[from]--; r.of[from] == 0 {
		delete(r.of, from)
	}
}

func addressOf(a net.Addr) (netip.Addr, bool) {
	from, err := netip.ParseAddrPort(a.String())
	return from.Addr().Unmap().WithZone(""), err == nil
}

// answer answers one query.
func (r *Resolver) answer(ctx context.Context, w dns.ResponseWriter, q *dns.Msg) {
	from, ok := addressOf(w.RemoteAddr())
	if !ok || q.Response || !r.config.Admit(from) {
		_ = w.Close()
		return
	}
	var m *dns.Msg
	whose := "cluster"
	switch {
	case q.Opcode != dns.OpcodeQuery:
		m = new(dns.Msg).SetRcode(q, dns.RcodeNotImplemented)
	case len(q.Question) != 1 || q.Question[0].Qclass != dns.ClassINET:
		m = new(dns.Msg).SetRcode(q, dns.RcodeRefused)
	case q.Question[0].Qtype == dns.TypeAXFR || q.Question[0].Qtype == dns.TypeIXFR:
		m = new(dns.Msg).SetRcode(q, dns.RcodeRefused)
	case !r.enter(from):
		m = new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	default:
		m, whose = r.resolve(ctx, q)
		r.leave(from)
	}
	r.queries.WithLabelValues(whose, dns.RcodeToString[m.Rcode]).Inc()
	r.write(w, q, m)
}

// write sends an answer that the client can take.
func (r *Resolver) write(w dns.ResponseWriter, q, m *dns.Msg) {
	size := dns.MaxMsgSize
	opt := q.IsEdns0()
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
		size = dns.MinMsgSize
		if opt != nil {
			size = min(max(int(opt.UDPSize()), size), payloadBytes)
		}
	}
	if opt != nil && m.IsEdns0() == nil {
		m.SetEdns0(payloadBytes, opt.Do())
	}
	m.Compress = true
	m.Truncate(size)
	if err := w.WriteMsg(m); err != nil {
		r.log.Debug("an answer was not sent", "to", w.RemoteAddr().String(), "error", err)
	}
}

// resolve finds the answer, and says whose name it is.
func (r *Resolver) resolve(ctx context.Context, q *dns.Msg) (m *dns.Msg, whose string) {
	question := q.Question[0]
	name := strings.ToLower(question.Name)
	if strings.HasSuffix(name, ".arpa.") {
		if f, ok := r.records.reverse(name); ok {
			if question.Qtype != dns.TypePTR && question.Qtype != dns.TypeANY {
				f.answer = nil
			}
			return r.own(q, f), "cluster"
		}
	}
	if !r.records.about(name) {
		return r.others(ctx, q), "other"
	}
	select {
	case <-r.config.Table.Synced():
	default: // nobody has said yet what there is
		return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure), "cluster"
	}
	f := r.records.lookup(name, question.Qtype)
	return r.follow(ctx, q, name, f), "cluster"
}

// follow goes where names stand for others.
func (r *Resolver) follow(ctx context.Context, q *dns.Msg, name string, f found) *dns.Msg {
	if f.alias == "" {
		return r.own(q, f)
	}
	kind := q.Question[0].Qtype
	out := found{exists: true}
	for range maxAliases {
		out.answer = append(out.answer, &dns.CNAME{Hdr: r.records.header(name, dns.TypeCNAME), Target: f.alias})
		if name = f.alias; kind == dns.TypeCNAME {
			break
		}
		if !r.records.about(name) {
			sub := new(dns.Msg).SetQuestion(name, kind)
			if m := r.others(ctx, sub); m.Rcode == dns.RcodeSuccess {
				out.answer = append(out.answer, m.Answer...)
			}
			break
		}
		if f = r.records.lookup(name, kind); f.alias == "" {
			out.answer, out.extra = append(out.answer, f.answer...), f.extra
			break
		}
	}
	return r.own(q, out)
}

// own makes the answer for a name of the cluster.
func (r *Resolver) own(q *dns.Msg, f found) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.Authoritative, m.RecursionAvailable = true, true
	m.Answer, m.Extra = f.answer, f.extra
	if !f.exists {
		m.Rcode = dns.RcodeNameError
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{r.records.soa()}
	}
	return m
}

// others asks others' resolvers.
func (r *Resolver) others(ctx context.Context, q *dns.Msg) *dns.Msg {
	ask := q.Copy()
	m, err := r.config.Upstream.Ask(ctx, ask)
	if err != nil {
		r.log.Debug("others' resolvers do not answer", "name", q.Question[0].Name, "error", err)
		return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	}
	m = m.Copy()
	m.Id, m.Question, m.RecursionAvailable = q.Id, q.Question, true
	return m
}

// portOf is where the resolver listens at an address.
func portOf(ip netip.Addr) netip.AddrPort { return netip.AddrPortFrom(ip, resolverPort) }

func hostPort(server string, port string) string {
	if port == "" {
		port = strconv.Itoa(resolverPort)
	}
	return net.JoinHostPort(server, port)
}
