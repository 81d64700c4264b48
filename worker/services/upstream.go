package services

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// askTimeout is how long one resolver may take; each is asked askRounds times.
	askTimeout = 2 * time.Second
	askRounds  = 2
	// resolverFileAge is for how long what is in the resolvers' file counts.
	resolverFileAge = 5 * time.Second
	// answersBytes bounds the answers that are kept, for answersLongest at most.
	answersBytes   = 4 << 20
	answersLongest = time.Hour
	nothingLongest = 30 * time.Second
)

// Host asks the resolvers of this machine.
type Host struct {
	// Files are like /etc/resolv.conf; the first that names a resolver counts.
	Files []string
	// Except are addresses that must not be asked: they come back here.
	Except func() []netip.Addr

	mu      sync.Mutex
	read    time.Time
	servers []string
	answers map[question]*kept
	bytes   int
}

type question struct {
	name  string
	kind  uint16
	do    bool
	check bool
}

type kept struct {
	m     *dns.Msg
	until time.Time
	since time.Time
	bytes int
}

var errNoResolvers = errors.New("this machine names no resolvers")

// Ask implements Upstream.
func (h *Host) Ask(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	id := question{name: q.Question[0].Name, kind: q.Question[0].Qtype, check: q.CheckingDisabled}
	if opt := q.IsEdns0(); opt != nil {
		id.do = opt.Do()
	}
	if m := h.kept(id, time.Now()); m != nil {
		return m, nil
	}
	servers := h.resolvers(time.Now())
	err := errNoResolvers
	for range askRounds {
		for _, server := range servers {
			var m *dns.Msg
			if m, err = ask(ctx, q, server); err == nil && m.Rcode != dns.RcodeServerFailure {
				h.keep(id, m, time.Now())
				return m, nil
			}
			if err == nil {
				err = errors.New("the resolver has failed: " + server)
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
	return nil, err
}

// ask asks one resolver, by TCP where its answer is too long for UDP. The message's ID is a new one, which nobody else knows.
func ask(ctx context.Context, q *dns.Msg, server string) (*dns.Msg, error) {
	q = q.Copy()
	q.Id, q.RecursionDesired = dns.Id(), true
	for _, network := range []string{"udp", "tcp"} {
		c := &dns.Client{Net: network, Timeout: askTimeout, UDPSize: payloadBytes}
		m, _, err := c.ExchangeContext(ctx, q, server)
		switch {
		case err != nil:
			return nil, err
		case len(m.Question) != 1 || m.Question[0].Qtype != q.Question[0].Qtype || !sameName(m.Question[0].Name, q.Question[0].Name):
			return nil, errors.New("the resolver answers another question: " + server)
		case !m.Truncated || network == "tcp":
			return m, nil
		}
	}
	return nil, errNoResolvers
}

func sameName(a, b string) bool { return dns.CanonicalName(a) == dns.CanonicalName(b) }

// resolvers are those that the machine names now.
func (h *Host) resolvers(now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.read.IsZero() && now.Sub(h.read) < resolverFileAge {
		return h.servers
	}
	h.read, h.servers = now, nil
	except := h.Except()
	for _, file := range h.Files {
		f, err := os.Open(file)
		if err != nil {
			continue
		}
		c, err := dns.ClientConfigFromReader(f)
		_ = f.Close() // it was read only
		if err != nil {
			continue
		}
		for _, server := range c.Servers {
			if ip, err := netip.ParseAddr(server); err == nil && !slices.Contains(except, ip) {
				h.servers = append(h.servers, hostPort(server, c.Port))
			}
		}
		if len(h.servers) > 0 {
			break
		}
	}
	return h.servers
}

// kept is an answer of before that is still good, with the time that it has left.
func (h *Host) kept(id question, now time.Time) *dns.Msg {
	h.mu.Lock()
	k := h.answers[id]
	if k != nil && !now.Before(k.until) {
		h.drop(id, k)
		k = nil
	}
	h.mu.Unlock()
	if k == nil {
		return nil
	}
	m := k.m.Copy()
	age := uint32(now.Sub(k.since) / time.Second)
	eachRecord(m, func(h *dns.RR_Header) { h.Ttl -= min(age, h.Ttl) })
	return m
}

func (h *Host) drop(id question, k *kept) {
	delete(h.answers, id)
	h.bytes -= k.bytes
}

func eachRecord(m *dns.Msg, f func(h *dns.RR_Header)) {
	for _, rrs := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range rrs {
			if rr.Header().Rrtype != dns.TypeOPT {
				f(rr.Header())
			}
		}
	}
}

// keep keeps an answer for as long as its records say. Where there are too many, those go that are good no more, and else all.
func (h *Host) keep(id question, m *dns.Msg, now time.Time) {
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return
	}
	life, some := answersLongest, false
	eachRecord(m, func(h *dns.RR_Header) {
		some = true
		life = min(life, time.Duration(h.Ttl)*time.Second)
	})
	if len(m.Answer) == 0 {
		life = min(life, nothingLongest)
	}
	if !some || life <= 0 {
		return
	}
	const overhead = 512 // of a message in memory
	k := &kept{m: m.Copy(), since: now, until: now.Add(life), bytes: 4*m.Len() + overhead}
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.answers[id]; old != nil {
		h.drop(id, old)
	}
	if h.bytes+k.bytes > answersBytes {
		for id, k := range h.answers {
			if !now.Before(k.until) {
				h.drop(id, k)
			}
		}
	}
	if h.answers == nil || h.bytes+k.bytes > answersBytes {
		h.answers, h.bytes = map[question]*kept{}, 0
	}
	h.answers[id] = k
	h.bytes += k.bytes
}
