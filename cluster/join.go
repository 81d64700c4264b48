package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"
)

const (
	// joinTimeout bounds the attempt on one address.
	joinTimeout = 10 * time.Second
	// firstRetry is the pause after the first attempt that found nobody; it
	// doubles up to Config.RetryInterval.
	firstRetry = 250 * time.Millisecond
	// hopelessAttempts are so many that a broken connection is not taken for
	// a wrong key.
	hopelessAttempts = 5
)

// NameTakenError says that another process already uses this member's name.
type NameTakenError struct {
	Name string
	Addr string // the other's gossip address
	// Live is true if the other has just answered: waiting will not help.
	Live bool
}

func (e *NameTakenError) Error() string {
	s := fmt.Sprintf("another member named %s at %s is already in the pool", e.Name, e.Addr)
	if !e.Live {
		s += " (it does not answer, so the name will be free once it is declared failed)"
	}
	return s
}

// OtherClusterError says that an address belongs to another cluster.
type OtherClusterError struct {
	Name, Addr   string
	Theirs, Ours string
}

func (e *OtherClusterError) Error() string {
	return fmt.Sprintf("member %s at %s belongs to cluster %s, and this one to cluster %s", e.Name, e.Addr, e.Theirs, e.Ours)
}

// UnreachableError says that nobody accepted a connection.
type UnreachableError struct {
	Addr string
	Err  error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no member can be reached at %s: %v", e.Addr, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// MismatchError says that somebody accepts connections but does not speak this
// member's gossip: the usual cause is another encryption key.
type MismatchError struct {
	Addr      string
	Encrypted bool // whether this member has a key
	Err       error
}

func (e *MismatchError) Error() string {
	hint := "it most likely uses another gossip encryption key"
	if !e.Encrypted {
		hint = "it most likely uses a gossip encryption key, and this member has none"
	}
	return fmt.Sprintf("%s answers, but not to us: %s (%v)", e.Addr, hint, e.Err)
}

func (e *MismatchError) Unwrap() error { return e.Err }

// ErrNobody is returned by Join when every address is this member's own.
var ErrNobody = errors.New("no other member's address is given")

// Join contacts the addresses and returns how many of them took this member up.
// It fails only if none did; the error joins one of the types above for
// each address.
func (p *Pool) Join(ctx context.Context, addrs ...string) (int, error) {
	p.joinMu.Lock()
	defer p.joinMu.Unlock()
	joined := 0
	var errs []error
	for _, addr := range addrs {
		targets, err := p.resolve(ctx, addr)
		if err != nil {
			errs = append(errs, &UnreachableError{Addr: addr, Err: err})
			continue
		}
		for _, t := range targets {
			if err := p.joinOne(ctx, t); err != nil {
				errs = append(errs, err)
				continue
			}
			joined++
		}
		if ctx.Err() != nil {
			break
		}
	}
	if joined > 0 {
		for _, err := range errs {
			p.log.Debug("joined, but not through every address", "error", err)
		}
		return joined, nil
	}
	if len(errs) == 0 {
		return 0, ErrNobody
	}
	return 0, fmt.Errorf("joining the gossip pool: %w", errors.Join(errs...))
}

// joinOne contacts one ip:port.
func (p *Pool) joinOne(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	p.mu.Lock()
	p.refused = nil
	p.mu.Unlock()
	done := p.transport.watch(ctx, addr)
	_, err := p.ml.Join([]string{addr})
	reached, dialErr := done()
	if err == nil {
		return nil
	}
	p.mu.Lock()
	refused := p.refused
	p.mu.Unlock()
	var taken *NameTakenError
	switch {
	case errors.As(refused, &taken):
		return p.probe(taken)
	case refused != nil:
		return refused
	case !reached && dialErr != nil:
		return &UnreachableError{Addr: addr, Err: dialErr}
	case ctx.Err() != nil:
		return &UnreachableError{Addr: addr, Err: ctx.Err()}
	default:
		return &MismatchError{Addr: addr, Encrypted: p.encrypted, Err: single(err)}
	}
}

// single takes the only error out of memberlist's list of one, which would be
// printed on several lines.
func single(err error) error {
	var list interface{ WrappedErrors() []error }
	if errors.As(err, &list) && len(list.WrappedErrors()) == 1 {
		return list.WrappedErrors()[0]
	}
	return err
}

// probe asks whether the namesake lives or only has not been declared failed.
func (p *Pool) probe(taken *NameTakenError) error {
	out := *taken
	if addr, err := net.ResolveUDPAddr("udp", taken.Addr); err == nil {
		_, err = p.pinger(taken.Name, addr)
		out.Live = err == nil
	}
	return &out
}

// resolve turns host[:port] into ip:port, without this member's own.
func (p *Pool) resolve(ctx context.Context, addr string) ([]string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host, port = addr, strconv.Itoa(p.bindPort)
	}
	var ips []net.IP
	if ip := net.ParseIP(host); ip != nil {
		ips = []net.IP{ip}
	} else if ips, err = net.DefaultResolver.LookupIP(ctx, "ip", host); err != nil {
		return nil, err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil, fmt.Errorf("bad port %q", port)
	}
	var out []string
	for _, ip := range ips {
		hp := net.JoinHostPort(ip.String(), port)
		if !p.isSelf(ip, hp) {
			out = append(out, hp)
		}
	}
	return out, nil
}

func (p *Pool) isSelf(ip net.IP, hostPort string) bool {
	if hostPort == p.Addr() {
		return true
	}
	if _, port, err := net.SplitHostPort(hostPort); err != nil || port != strconv.Itoa(p.bindPort) {
		return false
	}
	if !p.bindAddr.IsUnspecified() {
		return ip.Equal(p.bindAddr)
	}
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	local, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range local {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
			return true
		}
	}
	return false
}

// Run keeps this member in the pool until ctx ends: while it is alone it tries
// Config.Join; while others are lost it tries one of them, servers first, so
// that the halves of a split pool find each other again. It returns early where
// trying again can not help, and this process must end: with a *NameTakenError
// whose Live is set; and, for a member that has never met another, with the
// *MismatchError or *OtherClusterError that it has met several times in a row.
func (p *Pool) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	said := ""
	alonePause, hopeless := min(firstRetry, p.retry), 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		targets, alone := p.targets()
		if len(targets) > 0 {
			_, err := p.Join(ctx, targets...)
			var taken *NameTakenError
			if errors.As(err, &taken) && taken.Live {
				return fmt.Errorf("joining the gossip pool: %w", taken)
			}
			wrong := wrongPool(err)
			if wrong == nil || p.count() > 1 {
				hopeless = 0
			} else if hopeless++; hopeless == hopelessAttempts {
				return fmt.Errorf("joining the gossip pool: %w", wrong)
			}
			said = p.report(ctx, err, said)
		}
		// Who is alone most often started a moment before the others did.
		pause := p.retry
		if alone {
			pause, alonePause = alonePause, min(2*alonePause, p.retry)
		} else {
			alonePause = min(firstRetry, p.retry)
		}
		// Spread over the interval, so that a restarted fleet does not come in step.
		timer.Reset(pause/2 + rand.N(pause/2+1)) // #nosec G404 -- no secret: it only spreads what is asked over time, servers or places
	}
}

// wrongPool is the part of a failed attempt that says that the pool at the
// address is not this member's; nil if there is none.
func wrongPool(err error) error {
	var mismatch *MismatchError
	var other *OtherClusterError
	switch {
	case errors.As(err, &mismatch):
		return mismatch
	case errors.As(err, &other):
		return other
	}
	return nil
}

// report says an error once, not at each retry.
func (p *Pool) report(ctx context.Context, err error, said string) string {
	if err == nil || errors.Is(err, ErrNobody) || ctx.Err() != nil {
		return ""
	}
	if s := err.Error(); s != said {
		p.log.Warn("not joined yet; trying again", "error", err)
		return s
	}
	return said
}

// targets are the addresses that Run tries next, and whether this member knows
// nobody who is alive.
func (p *Pool) targets() (addrs []string, alone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	alive := 0
	var servers, workers []string
	for _, m := range p.members {
		switch {
		case m.Status == StatusAlive:
			alive++
		case m.Status == StatusFailed && m.Role == RoleServer:
			servers = append(servers, m.Addr)
		case m.Status == StatusFailed:
			workers = append(workers, m.Addr)
		}
	}
	var out []string
	if alive <= 1 {
		out = append(out, p.join...)
	}
	if len(servers) > 0 {
		out = append(out, servers[rand.IntN(len(servers))]) // #nosec G404 -- no secret: it only spreads what is asked over time, servers or places
	} else if len(workers) > 0 {
		out = append(out, workers[rand.IntN(len(workers))]) // #nosec G404 -- no secret: it only spreads what is asked over time, servers or places
	}
	return out, alive <= 1
}
