package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/guard"
)

const (
	// DefaultInterval is how often every server is asked.
	DefaultInterval = time.Second
	// askTimeout bounds one question.
	askTimeout = 2 * time.Second
	// noOffset: a question that took longer tells nothing of a clock.
	noOffset = time.Second
)

// Config is what a Room asks, and whom.
type Config struct {
	// Self is this server's ID.
	Self string
	// Configuration are the servers of Raft's configuration.
	Configuration func() []Server
	// Describe is what this server says of itself.
	Describe func() Answer
	// Ask asks the server at an RPC address.
	Ask func(ctx context.Context, addr string) (Answer, error)
	// Addresses are RPC addresses where a server may be reached, the most
	// trustworthy first.
	Addresses func(id string) []string
	// Introduce, if given, is called for a server of which no address is known
	// that answers. It may find one, to be given by Addresses later.
	Introduce func(id, raftAddr string)
	// Now is this machine's wall clock, and real time since some moment, both read at
	// once.
	Now func() (wallUnixNano int64, elapsed time.Duration)
	// Interval is how often every server is asked; 0: DefaultInterval.
	Interval time.Duration
	// Guard is about one question; nil: a panic in it ends the process.
	Guard guard.Func
}

// Room is where the servers are known. It is safe for concurrent use.
type Room struct {
	c Config

	lowest atomic.Pointer[lowest]

	mu    sync.Mutex
	known map[string]*record // by ID
}

// lowest is what LowestBehaviour and LeastState answer.
type lowest struct {
	version  int
	complete bool
	state    int64
}

// record is what is known of one server.
type record struct {
	answer   *Answer
	addr     string        // that answered last
	at       time.Duration // of the answer
	failures int
	err      error
	// day is its wall clock less this server's Elapsed, and so what this server's
	// wall clock is compared with whenever it is set.
	day         int64
	uncertainty time.Duration
	compared    bool // day is known
	// state is the state's time less this server's Elapsed, if it is told.
	state     int64
	stateTold bool
	asking    chan struct{} // closed when the question under way is over; nil: none is
}

// NewRoom makes a room in which nobody has said anything yet.
func NewRoom(c Config) *Room {
	if c.Interval <= 0 {
		c.Interval = DefaultInterval
	}
	c.Guard = c.Guard.Or()
	r := &Room{c: c, known: map[string]*record{}}
	r.lowest.Store(&lowest{})
	return r
}

// Run asks every server again and again until ctx ends.
func (r *Room) Run(ctx context.Context) {
	ticker := time.NewTicker(r.c.Interval)
	defer ticker.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		for _, s := range r.others() {
			asking.Go(func() { r.c.Guard("room/ask", func() { r.ask(ctx, s) }) })
		}
		r.judge()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Refresh asks every server once, and returns when each has answered or failed
// to, or ctx ends.
func (r *Room) Refresh(ctx context.Context) {
	var asking sync.WaitGroup
	for _, s := range r.others() {
		asking.Go(func() { r.c.Guard("room/ask", func() { r.ask(ctx, s) }) })
	}
	asking.Wait()
}

// others also forgets those that are of the configuration no longer.
func (r *Room) others() []Server {
	all := r.c.Configuration()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.known {
		if !slices.ContainsFunc(all, func(s Server) bool { return s.ID == id }) {
			delete(r.known, id)
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(s Server) bool { return s.ID == r.c.Self })
}

// ask asks one server, unless it is being asked; then it waits for that.
func (r *Room) ask(ctx context.Context, s Server) {
	r.mu.Lock()
	k := r.known[s.ID]
	if k == nil {
		k = &record{}
		r.known[s.ID] = k
	}
	if under := k.asking; under != nil {
		r.mu.Unlock()
		select {
		case <-under:
		case <-ctx.Done():
		}
		return
	}
	done := make(chan struct{})
	k.asking = done
	last := k.addr
	r.mu.Unlock()

	err := r.askAt(ctx, s, k, last)
	if err != nil && r.c.Introduce != nil && ctx.Err() == nil {
		r.c.Introduce(s.ID, s.RaftAddr)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k.asking = nil
	close(done)
	if err != nil && ctx.Err() == nil {
		k.failures, k.err = k.failures+1, err
	}
}

// askAt tries the addresses of a server until one answers as that server.
func (r *Room) askAt(ctx context.Context, s Server, k *record, last string) error {
	addrs := r.c.Addresses(s.ID)
	if last != "" {
		addrs = append([]string{last}, addrs...)
	}
	var failures []error
	for i, addr := range addrs {
		if addr == "" || slices.Contains(addrs[:i], addr) {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		_, before := r.c.Now()
		a, err := r.c.Ask(asking, addr)
		cancel()
		if err == nil {
			err = r.check(s.ID, &a)
		}
		if err != nil {
			failures = append(failures, err)
			continue
		}
		r.note(k, addr, &a, before)
		r.judge()
		return nil
	}
	if len(failures) == 0 {
		return errors.New("no address of it is known")
	}
	return errors.Join(failures...)
}

// check: an answer is worth something only from whom was asked.
func (r *Room) check(id string, a *Answer) error {
	if a.Server != id {
		return fmt.Errorf("server %q answers in the place of %q", a.Server, id)
	}
	if mine := r.c.Describe().Cluster; mine != "" && a.Cluster != "" && a.Cluster != mine {
		return fmt.Errorf("server %q belongs to another cluster", id)
	}
	return nil
}

func (r *Room) note(k *record, addr string, a *Answer, before time.Duration) {
	_, after := r.c.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	k.answer, k.addr, k.at, k.failures, k.err = a, addr, after, 0, nil
	took := after - before
	k.stateTold = a.StateUnixNano != 0 && took < noOffset
	k.state = a.StateUnixNano + int64(took/2-after)
	if a.WallUnixNano != 0 && took < noOffset {
		k.day, k.uncertainty = a.WallUnixNano+int64(took/2-after), took/2
		k.compared = true
	}
}

// Peers are the servers of the configuration, this one among them, by ID.
func (r *Room) Peers() []Peer { return r.peersAt(r.c.Now()) }

// peersAt are the peers as of a moment of this server's clocks.
func (r *Room) peersAt(wall int64, now time.Duration) []Peer {
	all := r.c.Configuration()
	out := make([]Peer, 0, len(all))
	for _, s := range all {
		p := Peer{Server: s, Self: s.ID == r.c.Self}
		if p.Self {
			a := r.c.Describe()
			p.Answer = &a
		} else {
			r.fill(&p, wall, now)
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Peer) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (r *Room) fill(p *Peer, wall int64, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.known[p.ID]
	if k == nil {
		return
	}
	p.Answer, p.Failures, p.Error, p.Uncertainty = k.answer, k.failures, k.err, k.uncertainty
	p.State, p.StateTold = k.state, k.stateTold
	if k.compared {
		p.Compared, p.Offset = true, time.Duration(k.day+int64(now)-wall)
	}
	if k.answer != nil {
		p.Silent = now - k.at
	}
}

// Peer is one server of the configuration.
func (r *Room) Peer(id string) (Peer, bool) {
	for _, p := range r.Peers() {
		if p.ID == id {
			return p, true
		}
	}
	return Peer{}, false
}

// Address is where a server answered last over RPC, or else the first address
// that is worth trying; "" if none is known.
func (r *Room) Address(id string) string {
	r.mu.Lock()
	if k := r.known[id]; k != nil && k.addr != "" && k.failures == 0 {
		defer r.mu.Unlock()
		return k.addr
	}
	r.mu.Unlock()
	for _, addr := range r.c.Addresses(id) {
		if addr != "" {
			return addr
		}
	}
	return ""
}

// LowestBehaviour is the newest version of the log's entries that every server of
// the configuration can carry out, as they have told over RPC. One that has never
// said, since this process began, counts as 0: complete is false then. It costs
// nothing: it is what was found out within the last Interval.
func (r *Room) LowestBehaviour() (version int, complete bool) {
	l := r.lowest.Load()
	return l.version, l.complete
}

// LeastState is how many bytes of state the server of the configuration takes that takes the fewest, of those that
// have told; 0 if none has. It costs as little as LowestBehaviour.
func (r *Room) LeastState() int64 { return r.lowest.Load().state }

// judge finds out the lowest behaviour, and the least state.
func (r *Room) judge() {
	l := lowest{version: -1, complete: true}
	for _, p := range r.Peers() {
		said := 0
		if p.Answer != nil {
			said = p.Answer.Behaviour
			if most := p.Answer.MaxState; most > 0 && (l.state == 0 || most < l.state) {
				l.state = most
			}
		} else {
			l.complete = false
		}
		if l.version < 0 || said < l.version {
			l.version = said
		}
	}
	if l.version < 0 { // no configuration yet
		l = lowest{}
	}
	r.lowest.Store(&l)
}
