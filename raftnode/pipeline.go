package raftnode

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// pipeline is Raft's way of sending entries ahead of the answers. Raft stops to
// look at the answers after the first that is none or a no, and ends the pipeline
// when its sender has come back; but a sender that waits for room comes back only
// when somebody looks. So the pipeline ends with such an answer, or that follower
// would get no entries for as long as this leader leads, and Raft would never stop.
// It ends with such an answer, too, when the sender is ended in the middle by the guard: whoever
// waits for answers would wait for ever, and Raft for him.
type pipeline struct {
	raft.AppendPipeline
	stored  func(*raft.AppendEntriesRequest) // told of every request whose entries were stored
	answers chan raft.AppendFuture
	done    chan struct{} // closed when no more is to be told
	told    chan struct{} // closed when no more is told
	once    sync.Once
	// closed says that the transport is closed; nil: it never is.
	closed <-chan struct{}
}

// AppendEntries implements raft.AppendPipeline. A server that is being left behind keeps no follower's ear (Node.abandon).
func (p *pipeline) AppendEntries(req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	select {
	case <-p.closed:
		return nil, raft.ErrPipelineShutdown
	default:
		return p.AppendPipeline.AppendEntries(req, resp)
	}
}

// noAnswer is the last answer of a pipeline that was closed.
type noAnswer struct{}

func (noAnswer) Error() error                          { return raft.ErrPipelineShutdown }
func (noAnswer) Start() time.Time                      { return time.Now() }
func (noAnswer) Request() *raft.AppendEntriesRequest   { return &raft.AppendEntriesRequest{} }
func (noAnswer) Response() *raft.AppendEntriesResponse { return &raft.AppendEntriesResponse{} }

func newPipeline(p raft.AppendPipeline, stored func(*raft.AppendEntriesRequest)) *pipeline {
	out := &pipeline{AppendPipeline: p, stored: stored, answers: make(chan raft.AppendFuture, 1), done: make(chan struct{}), told: make(chan struct{})}
	go out.run()
	return out
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() error {
	p.once.Do(func() {
		close(p.done)
		<-p.told
		select {
		case <-p.answers: // nobody has looked at it
		default:
		}
		p.answers <- noAnswer{}
	})
	return p.AppendPipeline.Close()
}

func (p *pipeline) run() {
	defer close(p.told)
	from := p.AppendPipeline.Consumer()
	for {
		var answer raft.AppendFuture
		select {
		case answer = <-from:
		case <-p.done:
			return
		}
		good := answer.Error() == nil && answer.Response().Success
		if good {
			p.stored(answer.Request())
		}
		select {
		case p.answers <- answer:
		case <-p.done:
			return
		}
		if !good || answer.Response().Term > answer.Request().Term {
			_ = p.AppendPipeline.Close() // Raft closes it too, and hears of what went wrong
			return
		}
	}
}

// AppendEntriesPipeline implements raft.Transport.
func (g *gate) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := g.Transport.AppendEntriesPipeline(id, to)
	if err != nil {
		return nil, err
	}
	out := newPipeline(p, func(req *raft.AppendEntriesRequest) { g.reach.noteEntries(string(id), req) })
	out.closed = g.done
	return out, nil
}
