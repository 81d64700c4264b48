package raftnode

import (
	"sync"

	"github.com/hashicorp/raft"
)

// pipeline is Raft's way of sending entries ahead of the answers. Raft stops to
// look at the answers after the first that is none or a no, and ends the pipeline
// when its sender has come back; but a sender that waits for room comes back only
// when somebody looks. So the pipeline ends with such an answer, or that follower
// would get no entries for as long as this leader leads, and Raft would never stop.
type pipeline struct {
	raft.AppendPipeline
	stored  func(*raft.AppendEntriesRequest) // told of every request whose entries were stored
	answers chan raft.AppendFuture
	done    chan struct{}
	once    sync.Once
}

func newPipeline(p raft.AppendPipeline, stored func(*raft.AppendEntriesRequest)) *pipeline {
	out := &pipeline{AppendPipeline: p, stored: stored, answers: make(chan raft.AppendFuture), done: make(chan struct{})}
	go out.run()
	return out
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.done) })
	return p.AppendPipeline.Close()
}

func (p *pipeline) run() {
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
	return newPipeline(p, func(req *raft.AppendEntriesRequest) { g.reach.noteEntries(string(id), req) }), nil
}
