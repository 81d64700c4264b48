package server

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/berth-dev/berth/rpc"
)

// What a worker may make of the log's time and room: a rate, and how much at
// once after it was quiet. An honest worker starts and ends all its pods within
// these; one that lies takes no more from the others.
const (
	workerBytesPerSecond, workerBytesAtOnce = 512 << 10, 8 << 20
	workerHellosPerMinute, workerHellos     = 30, 10
	workerEventsPerSecond, workerEvents     = 16, 1024
	workerTokensPerSecond, workerTokens     = 32, 1024
	workerMirrorsPerSecond, workerMirrors   = 2, 512
	workerSamplesPerSecond, workerSamples   = 1, 8
	workerDropsPerSecond, workerDrops       = 4, 256 // that are told in the log; all are counted

	// workerFetchesPerSecond and workerFetches are of its questions for objects, workerFetchedPerSecond and workerFetched of their bytes.
	workerFetchesPerSecond, workerFetches = 128, 4096
	workerFetchedPerSecond, workerFetched = 4 << 20, 64 << 20

	// idleShares is how many shares are kept before those that are whole are
	// forgotten: a whole one is what a new one would be.
	idleShares = 16 << 10
)

// maxWaiting is how many of a worker's requests of one sort are held up at a time: what it has sent lies in this server's memory meanwhile.
// An honest worker that is refused asks again.
const maxWaiting = 4

// share is what is left to one worker.
type share struct {
	bytes, hellos, events, tokens, mirrors, samples, fetches, fetched, drops *rate.Limiter

	// helloing and mirroring are those that are under way, wanting the tokens that wait.
	helloing, mirroring, wanting atomic.Int32
	// fetching has a place for each question for an object that is being answered.
	fetching chan struct{}
}

func newShare() *share {
	return &share{
		bytes:  rate.NewLimiter(workerBytesPerSecond, workerBytesAtOnce),
		hellos: rate.NewLimiter(rate.Limit(workerHellosPerMinute)/60, workerHellos),
		events: rate.NewLimiter(workerEventsPerSecond, workerEvents),
		tokens: rate.NewLimiter(workerTokensPerSecond, workerTokens),

		mirrors: rate.NewLimiter(workerMirrorsPerSecond, workerMirrors),
		drops:   rate.NewLimiter(workerDropsPerSecond, workerDrops),
		samples: rate.NewLimiter(workerSamplesPerSecond, workerSamples),
		fetches: rate.NewLimiter(workerFetchesPerSecond, workerFetches),
		fetched: rate.NewLimiter(workerFetchedPerSecond, workerFetched),

		fetching: make(chan struct{}, maxFetching),
	}
}

// whole says that nothing has been taken that is not back.
func (s *share) whole() bool {
	if len(s.fetching) > 0 || s.helloing.Load()+s.mirroring.Load()+s.wanting.Load() > 0 {
		return false
	}
	for _, l := range []*rate.Limiter{s.bytes, s.hellos, s.events, s.tokens, s.mirrors, s.samples, s.fetches, s.fetched, s.drops} {
		if l.Tokens() < float64(l.Burst()) {
			return false
		}
	}
	return true
}

// shares are those of the workers that came lately. They outlive their streams,
// or a new stream would be a new share.
type shares struct {
	mu sync.Mutex
	of map[string]*share
}

func newShares() *shares { return &shares{of: map[string]*share{}} }

func (s *shares) get(node string) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.of[node]; one != nil {
		return one
	}
	if len(s.of) >= idleShares {
		for name, one := range s.of {
			if one.whole() {
				delete(s.of, name)
			}
		}
	}
	one := newShare()
	s.of[node] = one
	return one
}

// within has one more of a worker's requests under way, until leave is called; false: there are as many as may be.
func within(underWay *atomic.Int32) (leave func(), ok bool) {
	leave = func() { underWay.Add(-1) }
	if underWay.Add(1) > maxWaiting {
		leave()
		return nil, false
	}
	return leave, true
}

// begin has one more stream of a worker about to begin, until leave is called.
func (s *shares) begin(node string) (leave func(), err error) {
	leave, ok := within(&s.get(node).helloing)
	if !ok {
		return nil, fmt.Errorf("%w: %d streams of worker %s are about to begin", rpc.ErrBusy, maxWaiting, node)
	}
	return leave, nil
}

// waitHello holds up a worker that comes again and again: each time costs an
// entry of the log.
func (s *shares) waitHello(ctx context.Context, node string) error {
	if err := s.get(node).hellos.Wait(ctx); err != nil {
		return fmt.Errorf("%w: worker %s connects too often: %w", rpc.ErrBusy, node, err)
	}
	return nil
}

// maxBatchReports is more reports than a worker puts into a batch: each takes some bytes of a message's.
const maxBatchReports = 4096

// batchBytes is what a batch takes beside what is in it: an entry of the log, its commit, and an answer.
const batchBytes = 4 << 10

// costOf is what a batch takes of its worker's share, in bytes. Nothing is for nothing: what says nothing has to be read all the same.
func costOf(b *rpc.StatusBatch) int {
	cost := batchBytes + len(b.NodeStatus)
	for i := range b.Pods {
		cost += b.Pods[i].Size()
	}
	for _, e := range b.Events {
		cost += len(e)
	}
	return cost
}

// waitBytes holds up a worker's next batch until what it has said lately has
// been paid. Only its own stream waits, and its heartbeats are heard.
func (s *shares) waitBytes(ctx context.Context, node string, b *rpc.StatusBatch) error {
	if err := s.get(node).bytes.WaitN(ctx, min(costOf(b), workerBytesAtOnce)); err != nil {
		return fmt.Errorf("%w: worker %s reports too much: %w", rpc.ErrBusy, node, err)
	}
	if n := len(b.Pods); n > maxBatchReports {
		return fmt.Errorf("%w: worker %s reports %d pods at once, and may %d", rpc.ErrInvalid, node, n, maxBatchReports)
	}
	return nil
}

// waitToken holds up a worker that asks for tokens again and again: each is a
// signature.
func (s *shares) waitToken(ctx context.Context, node string) error {
	of := s.get(node)
	if of.tokens.Allow() {
		return nil
	}
	leave, ok := within(&of.wanting)
	if !ok {
		return fmt.Errorf("%w: worker %s asks for too many tokens: %d wait", rpc.ErrBusy, node, maxWaiting)
	}
	defer leave()
	if err := of.tokens.Wait(ctx); err != nil {
		return fmt.Errorf("%w: worker %s asks for too many tokens: %w", rpc.ErrBusy, node, err)
	}
	return nil
}

// waitMirror holds up a worker that has objects made and removed again and again. An honest one asks for one after the other; leave is called
// when that is done.
func (s *shares) waitMirror(ctx context.Context, node string) (leave func(), err error) {
	of := s.get(node)
	leave, ok := within(&of.mirroring)
	if !ok {
		return nil, fmt.Errorf("%w: worker %s changes %d mirrors of static pods at a time", rpc.ErrBusy, node, maxWaiting)
	}
	if err := of.mirrors.Wait(ctx); err != nil {
		leave()
		return nil, fmt.Errorf("%w: worker %s changes too many mirrors of static pods: %w", rpc.ErrBusy, node, err)
	}
	return leave, nil
}

const (
	// maxFetching is how many of a worker's questions for objects are answered at a time: twice as many as a worker asks of itself. The others
	// wait, each with a few names.
	maxFetching = 16
	// maxAskedBytes bounds the names in a question.
	maxAskedBytes = 1 << 10
)

// waitFetch holds up a worker that asks for objects again and again: each question costs a look at the pods of its node. leave is called
// when it is answered.
func (s *shares) waitFetch(ctx context.Context, r *rpc.FetchRequest) (leave func(), err error) {
	if n := len(r.Resource) + len(r.Namespace) + len(r.Name); n > maxAskedBytes {
		return nil, fmt.Errorf("%w: what worker %s asks for has a name of %d bytes", rpc.ErrInvalid, r.Node, n)
	}
	of := s.get(r.Node)
	select {
	case of.fetching <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: worker %s asks for %d objects at a time: %w", rpc.ErrBusy, r.Node, maxFetching, ctx.Err())
	}
	leave = func() { <-of.fetching }
	if err := of.fetches.Wait(ctx); err != nil {
		leave()
		return nil, fmt.Errorf("%w: worker %s asks for too many objects: %w", rpc.ErrBusy, r.Node, err)
	}
	return leave, nil
}

// waitFetched holds up an answer until those before it have been paid. They may lie in this server's memory, for who reads none.
func (s *shares) waitFetched(ctx context.Context, node string, bytes int) error {
	if err := s.get(node).fetched.WaitN(ctx, min(bytes, workerFetched)); err != nil {
		return fmt.Errorf("%w: worker %s is given too much: %w", rpc.ErrBusy, node, err)
	}
	return nil
}

// takeSample says whether a worker may tell what its node uses once more.
func (s *shares) takeSample(node string) bool { return s.get(node).samples.Allow() }

// takeEvent says whether a worker may tell one more event. Those beyond are
// lost: events are told at most once.
func (s *shares) takeEvent(node string) bool { return s.get(node).events.Allow() }
