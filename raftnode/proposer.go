package raftnode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// proposer turns the proposals of many callers into entries.
//
// Group commit without a timer: while an entry is being written to the disk,
// whatever is proposed gathers; when the write is done, all of that becomes
// the next entry. One caller alone is never delayed, and a thousand share a
// write. Entries that are written and not yet applied may be many.
//
// Two goroutines: gather makes entries, settle hands out their outcomes, both
// in the order of the log.
type proposer struct {
	c       Config
	raft    *raft.Raft
	leader  func() (id, addr string) // who leads, as far as is known
	state   *fsm.State
	clock   *clock.Clock
	metrics *metrics
	pace    *pace

	mu     sync.Mutex
	queue  []*Future
	len    int // commands waiting or in flight
	bytes  int // of them
	closed bool

	wake     chan struct{} // something was queued, or closed
	inFlight chan *entry
	// writing is the entry whose write gather waits for.
	writing  atomic.Pointer[entry]
	lastTime int64 // only gather's: the last entry's time
	done     sync.WaitGroup
	dead     chan struct{} // closed when no outcome will come any more
}

// Future is the outcome, to come, of proposals that were queued together.
type Future struct {
	p     *proposer
	parts []store.Encoded
	loads []load // of the parts
	bytes int
	taken atomic.Bool // by gather, or by a caller that gives up first

	next    int // only gather's: the first part that is in no entry yet
	done    chan struct{}
	results []fsm.Result // from here on only settle's, until done is closed
	index   uint64
	term    uint64
	err     error
}

// entry is one on its way.
type entry struct {
	data    []byte
	future  raft.ApplyFuture
	pieces  []piece
	started time.Time
	written chan struct{} // closed once it is on this disk, or failed
	once    sync.Once
}

// piece is the part of a Future that is in an entry: parts[from:to]. An entry
// has at most one of the same Future.
type piece struct {
	f        *Future
	from, to int
}

func (p piece) last() bool { return p.to == len(p.f.parts) }

func (e *entry) unblock() { e.once.Do(func() { close(e.written) }) }

func newProposer(c Config, r *raft.Raft, leader func() (id, addr string), state *fsm.State, now *clock.Clock, m *metrics) *proposer {
	p := &proposer{
		c: c, raft: r, leader: leader, state: state, clock: now, metrics: m, pace: newPace(),
		wake:     make(chan struct{}, 1),
		inFlight: make(chan *entry, c.MaxInFlight),
		dead:     make(chan struct{}),
	}
	p.done.Go(p.gather)
	p.done.Go(p.settle)
	return p
}

// submit queues proposals. The encoding is done here, by the caller.
func (p *proposer) submit(ps []fsm.Proposal) (*Future, error) {
	f := &Future{p: p, done: make(chan struct{}), parts: make([]store.Encoded, len(ps)), loads: make([]load, len(ps))}
	for i, proposal := range ps {
		if err := p.checkVersion(proposal.Command); err != nil {
			return nil, err
		}
		b, err := fsm.EncodeProposal(proposal)
		if err != nil {
			return nil, fmt.Errorf("propose %T: %w", proposal.Command, err)
		}
		if len(b) > p.c.MaxCommandBytes {
			return nil, fmt.Errorf("propose %T of %d bytes: %w", proposal.Command, len(b), ErrTooLarge)
		}
		f.parts[i], f.loads[i] = b, loadOf(proposal.Command)
		f.bytes += len(b)
	}
	return f, p.enqueue(f)
}

func (p *proposer) checkVersion(c fsm.Command) error {
	if has, needs := p.version(), fsm.Since(c); needs > has {
		return &VersionError{Command: fmt.Sprintf("%T", c), Needs: needs, ClusterHas: has}
	}
	return nil
}

// version is that of the rules which an entry is carried out by: the lowest that
// all voting servers know, and never less than before, for whoever follows the
// log knows that one.
func (p *proposer) version() int {
	lowest := fsm.LogVersion
	if p.c.MinServerVersion != nil {
		lowest = min(lowest, p.c.MinServerVersion())
	}
	return max(firstVersion, lowest, p.state.View().Version())
}

// firstVersion is what every server knows that tells its version at all.
const firstVersion = 1

func (p *proposer) enqueue(f *Future) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return ErrShutdown
	case len(f.parts) == 0 || p.len == 0:
		// A barrier holds nothing. And what is larger than the bounds must
		// pass when nothing else waits, or it never would.
	case p.len+len(f.parts) > p.c.QueueLen, p.bytes+f.bytes > p.c.QueueBytes:
		p.metrics.refusedBusy.Inc()
		return ErrBusy
	}
	p.account(len(f.parts), f.bytes)
	p.queue = append(p.queue, f)
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return nil
}

// account is called with mu held.
func (p *proposer) account(commands, bytes int) {
	p.len += commands
	p.bytes += bytes
	p.metrics.queue(p.len, p.bytes)
}

// Wait returns the proposals' results, one each, and the index of the entry
// that holds the last of them. When the context ends first, the proposals are
// withdrawn if they can still be (ErrNotProposed), else it is ErrUnknownOutcome.
func (f *Future) Wait(ctx context.Context) ([]fsm.Result, uint64, error) {
	select {
	case <-f.done:
		return f.results, f.index, f.err
	default:
	}
	select {
	case <-f.done:
		return f.results, f.index, f.err
	case <-f.p.dead:
		select {
		case <-f.done:
			return f.results, f.index, f.err
		default:
			return nil, 0, unknown(ErrShutdown)
		}
	case <-ctx.Done():
		if f.taken.CompareAndSwap(false, true) {
			f.p.release(f)
			return nil, 0, fmt.Errorf("%w: %w", ErrNotProposed, ctx.Err())
		}
		return nil, 0, unknown(ctx.Err())
	}
}

// Done is closed when Wait will not block any more.
func (f *Future) Done() <-chan struct{} { return f.done }

// release gives back the room of what was withdrawn, and its bytes: it stays in the queue until gather finds it.
func (p *proposer) release(f *Future) {
	p.mu.Lock()
	p.account(-len(f.parts), -f.bytes)
	f.parts, f.loads, f.bytes = nil, nil, 0
	p.mu.Unlock()
}

// gather makes entries until the proposer is closed.
func (p *proposer) gather() {
	defer close(p.inFlight)
	for {
		e, closed := p.take()
		switch {
		case closed:
			e.future = settledFuture{ErrShutdown}
		case len(e.pieces) == 0:
			<-p.wake
			continue
		default:
			p.send(e)
		}
		select {
		case p.inFlight <- e:
		case <-p.dead:
			return
		}
		if closed {
			return
		}
		select {
		case <-e.written:
		case <-p.dead:
			return
		}
	}
}

// take makes an entry's pieces of what waits now. Once the proposer is closed
// that is all there is, and it is not to be proposed.
func (p *proposer) take() (e *entry, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e = &entry{written: make(chan struct{})}
	bytes, commands, work := store.EntryOverheadBytes, 0, int64(0)
	for len(p.queue) > 0 {
		f := p.queue[0]
		// A call's proposals stay in one entry if one entry can hold them.
		fits := bytes+f.bytes <= p.c.MaxEntryBytes && commands+len(f.parts) <= p.c.MaxBatch && work+p.pace.expect(f.loads[f.next:]...) <= entryWork
		if !fits && len(e.pieces) > 0 && !p.closed {
			break
		}
		if f.next == 0 && !f.taken.CompareAndSwap(false, true) {
			p.pop() // withdrawn
			continue
		}
		from := f.next
		for ; f.next < len(f.parts); f.next++ {
			size := len(f.parts[f.next])
			expected := p.pace.expect(f.loads[f.next])
			full := bytes+size > p.c.MaxEntryBytes || commands == p.c.MaxBatch || work+expected > entryWork
			if commands > 0 && full && !p.closed {
				break
			}
			bytes += size
			work += expected
			commands++
		}
		e.pieces = append(e.pieces, piece{f, from, f.next})
		if f.next < len(f.parts) {
			break
		}
		p.pop()
	}
	return e, p.closed
}

// pop is called with mu held.
func (p *proposer) pop() {
	p.queue[0] = nil
	p.queue = p.queue[1:]
	if len(p.queue) == 0 {
		p.queue = nil // or its memory would grow for ever
	}
}

// send gives an entry to Raft, which takes it as soon as it is not writing.
func (p *proposer) send(e *entry) {
	var parts []store.Encoded
	for _, piece := range e.pieces {
		parts = append(parts, piece.f.parts[piece.from:piece.to]...)
	}
	p.lastTime = max(p.lastTime, p.state.View().TimeUnixNano(), p.clock.NowUnixNano())
	data, err := store.JoinEntry(fsm.Header{Version: p.version(), TimeUnixNano: p.lastTime, Server: p.c.ID}, parts)
	if err != nil {
		e.future = settledFuture{fmt.Errorf("%w: %w", ErrNotProposed, err)}
		e.unblock()
		return
	}
	p.metrics.commandsPerEntry.Observe(float64(len(parts)))
	e.data, e.started = data, time.Now()
	p.writing.Store(e)
	e.future = p.raft.ApplyLog(raft.Log{Data: data, Extensions: sealOfData(data)}, 0)
}

// settledFuture is that of an entry that was never given to Raft.
type settledFuture struct{ err error }

func (f settledFuture) Error() error  { return f.err }
func (f settledFuture) Response() any { return nil }
func (f settledFuture) Index() uint64 { return 0 }

// wrote is told by the log of every write, so that gather goes on.
func (p *proposer) wrote(logs []*raft.Log) {
	e := p.writing.Load()
	if e == nil {
		return
	}
	for _, l := range logs {
		if len(l.Data) > 0 && &l.Data[0] == &e.data[0] {
			e.unblock()
			return
		}
	}
}

// settle hands out outcomes in the order of the log.
func (p *proposer) settle() {
	for e := range p.inFlight {
		err := e.future.Error()
		e.unblock()
		var out applied
		if err == nil {
			switch r := e.future.Response().(type) {
			case applied:
				out = r
				p.metrics.proposeSeconds.Observe(time.Since(e.started).Seconds())
			case error:
				// Committed, and this server could not apply it: others may.
				err = unknown(r)
			}
		} else {
			err = p.explain(e, err)
		}
		p.finish(e, out, err)
	}
}

func (p *proposer) finish(e *entry, out applied, err error) {
	commands, bytes := 0, 0
	var done []*Future
	for _, piece := range e.pieces {
		f := piece.f
		n := piece.to - piece.from
		for _, part := range f.parts[piece.from:piece.to] {
			bytes += len(part)
		}
		switch {
		case err == nil:
			for i, r := range out.results[commands : commands+n] {
				p.pace.learn(f.loads[piece.from+i], r)
			}
			f.results = append(f.results, out.results[commands:commands+n]...)
			f.index, f.term = e.future.Index(), out.term
		case f.err == nil && n < len(f.parts):
			f.err = unknown(err) // a part of it may be done
		case f.err == nil:
			f.err = err
		}
		commands += n
		if piece.last() {
			if f.err != nil {
				f.results, f.index = nil, 0
			}
			done = append(done, f)
		}
	}
	// Their room is free before they are told: whoever proposes again finds it.
	p.mu.Lock()
	p.account(-commands, -bytes)
	p.mu.Unlock()
	for _, f := range done {
		close(f.done)
	}
}

// explain says what Raft's error means for who proposed.
func (p *proposer) explain(e *entry, err error) error {
	_, never := e.future.(settledFuture)
	switch {
	case never:
		return err
	case errors.Is(err, raft.ErrNotLeader):
		return notLeader(p.leader)
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return &NotLeaderError{} // there is going to be one
	}
	return unknown(err)
}

func notLeader(leader func() (id, addr string)) error {
	id, addr := leader()
	return &NotLeaderError{LeaderID: id, LeaderAddr: addr}
}

// close stops taking proposals. What was not taken up yet was not proposed.
func (p *proposer) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
