package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/guard"
)

// Peer is a server of the founding set.
type Peer struct {
	Name     string
	RaftID   string
	RaftAddr string
}

// BootstrapStep is what a server does next on the way to a founded cluster.
type BootstrapStep int

// The steps.
const (
	// BootstrapWait: too few servers are seen, or some have not promised yet.
	BootstrapWait BootstrapStep = iota
	// BootstrapPromise: advertise Decision.Set as Meta.BootstrapSet.
	BootstrapPromise
	// BootstrapFound: give Decision.Peers to Raft as its first configuration.
	BootstrapFound
	// BootstrapJoin: a cluster exists; wait to be added by its leader.
	BootstrapJoin
)

// Decision is the outcome of DecideBootstrap.
type Decision struct {
	Step  BootstrapStep
	Set   string // identifies Peers
	Peers []Peer // sorted by name
}

// ErrBootstrap is wrapped by refusals that waiting alone does not cure.
var ErrBootstrap = errors.New("cannot bootstrap")

// DecideBootstrap decides from the members seen what the server called self
// does next. Two servers that come to BootstrapFound have the same peers, even
// if each sees other members: a server first promises itself to one set,
// for as long as it runs, and founds only once every server of the set has
// promised itself to the same one. Two sets that share a server thus cannot
// both be founded.
func DecideBootstrap(self string, members []Member) (Decision, error) {
	var me *Member
	var founders []Member
	for _, m := range members {
		if m.Role != RoleServer || m.Status != StatusAlive || m.Leaving {
			continue
		}
		if m.Bootstrapped {
			return Decision{Step: BootstrapJoin}, nil
		}
		if m.Name == self {
			me = &m
		}
		if m.BootstrapExpect > 0 && !m.NonVoter {
			founders = append(founders, m)
		}
	}
	if me == nil {
		return Decision{}, fmt.Errorf("%w: server %q is not among the members seen", ErrBootstrap, self)
	}
	if me.BootstrapExpect == 0 || me.NonVoter {
		return Decision{Step: BootstrapJoin}, nil
	}
	sortMembers(founders)
	for _, m := range founders {
		if m.BootstrapExpect != me.BootstrapExpect {
			return Decision{}, fmt.Errorf("%w: server %s has bootstrap_expect = %d and server %s has %d; give all the same",
				ErrBootstrap, m.Name, m.BootstrapExpect, me.Name, me.BootstrapExpect)
		}
	}
	// A set once promised stays the set, whoever comes later.
	if me.BootstrapSet == "" && len(founders) > me.BootstrapExpect {
		return Decision{}, fmt.Errorf("%w: %d servers are here and bootstrap_expect = %d (%s); set it to %d, or to 0 on those that come later",
			ErrBootstrap, len(founders), me.BootstrapExpect, names(founders), len(founders))
	}
	if len(founders) < me.BootstrapExpect {
		return Decision{Step: BootstrapWait}, nil
	}
	return agree(me, founders)
}

// agree looks for the set that me has promised, or makes it.
func agree(me *Member, founders []Member) (Decision, error) {
	if me.BootstrapSet == "" {
		for _, m := range founders {
			if m.RaftAddr == "" {
				return Decision{}, fmt.Errorf("%w: server %s advertises no Raft address", ErrBootstrap, m.Name)
			}
		}
		peers, set := makeSet(founders)
		return Decision{Step: BootstrapPromise, Set: set, Peers: peers}, nil
	}
	var same []Member
	for _, m := range founders {
		if m.BootstrapSet == me.BootstrapSet {
			same = append(same, m)
		}
	}
	if len(same) < me.BootstrapExpect {
		for _, m := range founders {
			if m.BootstrapSet != "" && m.BootstrapSet != me.BootstrapSet {
				return Decision{}, fmt.Errorf("%w: servers %s and %s saw different sets of servers (among %s) when they started; restart them with all %d running",
					ErrBootstrap, me.Name, m.Name, names(founders), me.BootstrapExpect)
			}
		}
		return Decision{Step: BootstrapWait}, nil
	}
	peers, set := makeSet(same)
	if set != me.BootstrapSet {
		return Decision{}, fmt.Errorf("%w: a server among %s has changed its Raft address since it was promised; restart them", ErrBootstrap, names(same))
	}
	return Decision{Step: BootstrapFound, Set: set, Peers: peers}, nil
}

// makeSet expects its members sorted.
func makeSet(ms []Member) ([]Peer, string) {
	h := sha256.New()
	peers := make([]Peer, 0, len(ms))
	for _, m := range ms {
		p := Peer{Name: m.Name, RaftID: m.RaftID, RaftAddr: m.RaftAddr}
		if p.RaftID == "" {
			p.RaftID = m.Name
		}
		peers = append(peers, p)
		fmt.Fprintf(h, "%q %q %q\n", p.Name, p.RaftID, p.RaftAddr)
	}
	return peers, hex.EncodeToString(h.Sum(nil)[:8])
}

// present says how many of the servers that a cluster is founded by are here.
func present(self string, members []Member) string {
	var here []Member
	expect := 0
	for _, m := range members {
		if m.Role != RoleServer || m.Status != StatusAlive || m.Leaving || m.BootstrapExpect == 0 || m.NonVoter {
			continue
		}
		if here = append(here, m); m.Name == self {
			expect = m.BootstrapExpect
		}
	}
	sortMembers(here)
	return fmt.Sprintf("%d of %d are here: %s", len(here), expect, names(here))
}

func names(ms []Member) string {
	out := make([]string, 0, len(ms))
	for _, m := range ms {
		out = append(out, m.Name)
	}
	return strings.Join(out, ", ")
}

// Bootstrap follows the pool until this server knows the founding set, and
// returns it; or until a cluster exists that it shall be added to, and returns
// none. A refusal of DecideBootstrap is logged and waited out: the missing or
// surplus server may yet come or go. Gossip is not believed: who calls itself a
// server counts only while isServer finds it where it says that it is.
func (p *Pool) Bootstrap(ctx context.Context, isServer func(Member) error) ([]Peer, error) {
	_, sub := p.Subscribe()
	defer sub.Close()
	var said string
	seen := &witness{pool: p, isServer: isServer, proven: map[string]bool{}, asked: map[string]bool{}}
	defer seen.asking.Wait()
	for {
		members := seen.members()
		d, err := DecideBootstrap(p.name, members)
		switch {
		case err != nil:
			if err.Error() != said {
				said = err.Error()
				p.log.Error("waiting to bootstrap", "error", err)
			}
		case d.Step == BootstrapWait:
			if text := present(p.name, members); text != said {
				said = text
				p.log.Info("waiting for the servers that found the cluster", "bootstrap_expect", text)
			}
		case d.Step == BootstrapPromise:
			if err := p.promise(ctx, d.Set); err != nil {
				return nil, err
			}
		case d.Step == BootstrapFound:
			return d.Peers, nil
		case d.Step == BootstrapJoin:
			return nil, nil
		}
		next, cancel := context.WithTimeout(ctx, lookPause)
		_, err = sub.Next(next)
		cancel()
		switch {
		case err == nil:
		case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
			return nil, fmt.Errorf("waiting for bootstrap_expect servers: %w", err)
		default:
			p.exchange(ctx, seen)
		}
	}
}

// promise advertises a founding set. That nobody has heard of it in time is no
// failure: exchange tells it too.
func (p *Pool) promise(ctx context.Context, set string) error {
	wait, cancel := context.WithTimeout(ctx, lookPause)
	defer cancel()
	err := p.Advertise(wait, func(m *Meta) { m.BootstrapSet = set })
	switch {
	case err == nil:
	case ctx.Err() != nil || errors.Is(err, ErrClosed) || p.Meta().BootstrapSet != set:
		return fmt.Errorf("promising a founding set: %w", err)
	default:
		p.log.Debug("the promise of a founding set is not spread yet", "error", err)
	}
	return nil
}

// exchange tells the servers that were found to be such, and who is to be joined,
// all that is known here, and hears what they know. Rumours of so few members are
// sent to one or two of them only, and the next full exchange of gossip may be half
// a minute away: a cluster that is to be founded shall not wait for it.
func (p *Pool) exchange(ctx context.Context, seen *witness) {
	addrs := slices.Clone(p.join)
	for _, m := range p.Members() {
		if m.Status == StatusAlive && seen.isProven(m) && !slices.Contains(addrs, m.Addr) {
			addrs = append(addrs, m.Addr)
		}
	}
	if _, err := p.Join(ctx, addrs...); err != nil && !errors.Is(err, ErrNobody) {
		p.log.Debug("no other server was reached on the way to a cluster", "error", err)
	}
}

const (
	// lookPause is how soon the members are asked again, and one is looked at again
	// that could not be found to be the server that it says it is.
	lookPause = time.Second
	// answerPause is how long one look waits for answers.
	answerPause = 250 * time.Millisecond
	// maxDoubts bounds how many of them are looked at, at a time.
	maxDoubts = 32
)

// witness is who was found to be a server. Who does not answer is waited for by
// nobody else: it is asked beside the others, and once at a time.
type witness struct {
	pool     *Pool
	isServer func(Member) error
	asking   sync.WaitGroup

	mu     sync.Mutex
	proven map[string]bool // by name, process and address
	asked  map[string]bool // by the same: who has not answered yet
	next   int             // where the next look begins
}

// witnessed is what stays the same as long as a member need not be looked at again.
func witnessed(m Member) string { return m.Name + " " + m.Instance + " " + m.RaftAddr }

// members are the pool's, without those who call themselves servers and were not
// found to be.
func (w *witness) members() (out []Member) {
	all := w.pool.Members()
	w.look(all)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range all {
		if m.Role != RoleServer || m.Name == w.pool.name || w.proven[witnessed(m)] {
			out = append(out, m)
		}
	}
	return out
}

// look asks those who were not found to be servers yet, and gives them a moment to
// answer; the next look finds what they said later.
func (w *witness) look(all []Member) {
	w.mu.Lock()
	var doubts []Member
	for _, m := range all {
		if m.Role == RoleServer && m.Status == StatusAlive && m.Name != w.pool.name && !w.proven[witnessed(m)] && !w.asked[witnessed(m)] {
			doubts = append(doubts, m)
		}
	}
	n := min(len(doubts), maxDoubts-len(w.asked)) // of those who are asked there are never more than that
	answered := make(chan struct{}, n)
	for i := range n {
		m := doubts[(w.next+i)%len(doubts)]
		w.asked[witnessed(m)] = true
		w.asking.Go(func() { w.ask(m); answered <- struct{}{} })
	}
	w.next += n
	w.mu.Unlock()
	enough := time.After(answerPause)
	for range n {
		select {
		case <-answered:
		case <-enough:
			return
		}
	}
}

func (w *witness) ask(m Member) {
	err := guard.Caught(func() error { return w.isServer(m) })
	if err != nil {
		w.pool.log.Debug("a member calls itself a server and is not found to be one", "name", m.Name, "address", m.RaftAddr, "error", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.asked, witnessed(m))
	if err == nil {
		w.proven[witnessed(m)] = true
	}
}

func (w *witness) isProven(m Member) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.proven[witnessed(m)]
}
