package server

import (
	"context"
	"fmt"
	"sync"

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

	// idleShares is how many shares are kept before those that are whole are
	// forgotten: a whole one is what a new one would be.
	idleShares = 16 << 10
)

// share is what is left to one worker.
type share struct{ bytes, hellos, events, tokens, mirrors *rate.Limiter }

func newShare() *share {
	return &share{
		bytes:  rate.NewLimiter(workerBytesPerSecond, workerBytesAtOnce),
		hellos: rate.NewLimiter(rate.Limit(workerHellosPerMinute)/60, workerHellos),
		events: rate.NewLimiter(workerEventsPerSecond, workerEvents),
		tokens: rate.NewLimiter(workerTokensPerSecond, workerTokens),

		mirrors: rate.NewLimiter(workerMirrorsPerSecond, workerMirrors),
	}
}

// whole says that nothing has been taken that is not back.
func (s *share) whole() bool {
	return s.bytes.Tokens() >= workerBytesAtOnce && s.hellos.Tokens() >= workerHellos && s.events.Tokens() >= workerEvents && s.tokens.Tokens() >= workerTokens &&
		s.mirrors.Tokens() >= workerMirrors
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

// waitHello holds up a worker that comes again and again: each time costs an
// entry of the log.
func (s *shares) waitHello(ctx context.Context, node string) error {
	if err := s.get(node).hellos.Wait(ctx); err != nil {
		return fmt.Errorf("%w: worker %s connects too often: %w", rpc.ErrBusy, node, err)
	}
	return nil
}

// waitBytes holds up a worker's next batch until what it has said lately has
// been paid. Only its own stream waits, and its heartbeats are heard.
func (s *shares) waitBytes(ctx context.Context, node string, b *rpc.StatusBatch) error {
	size := len(b.NodeStatus)
	for i := range b.Pods {
		size += len(b.Pods[i].Namespace) + len(b.Pods[i].Name) + len(b.Pods[i].UID) + len(b.Pods[i].Status)
	}
	if err := s.get(node).bytes.WaitN(ctx, min(size, workerBytesAtOnce)); err != nil {
		return fmt.Errorf("%w: worker %s reports too much: %w", rpc.ErrBusy, node, err)
	}
	return nil
}

// waitToken holds up a worker that asks for tokens again and again: each is a
// signature.
func (s *shares) waitToken(ctx context.Context, node string) error {
	if err := s.get(node).tokens.Wait(ctx); err != nil {
		return fmt.Errorf("%w: worker %s asks for too many tokens: %w", rpc.ErrBusy, node, err)
	}
	return nil
}

// waitMirror holds up a worker that has objects made and removed again and again.
func (s *shares) waitMirror(ctx context.Context, node string) error {
	if err := s.get(node).mirrors.Wait(ctx); err != nil {
		return fmt.Errorf("%w: worker %s changes too many mirrors of static pods: %w", rpc.ErrBusy, node, err)
	}
	return nil
}

// takeEvent says whether a worker may tell one more event. Those beyond are
// lost: events are told at most once.
func (s *shares) takeEvent(node string) bool { return s.get(node).events.Allow() }
