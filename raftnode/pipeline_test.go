package raftnode

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// fullPipeline has no room until it is closed.
type fullPipeline struct {
	answers chan raft.AppendFuture
	closed  chan struct{}
}

func (p *fullPipeline) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	<-p.closed
	return nil, raft.ErrPipelineShutdown
}

func (p *fullPipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

func (p *fullPipeline) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

type appendAnswer struct {
	err  error
	resp raft.AppendEntriesResponse
}

func (a *appendAnswer) Error() error     { return a.err }
func (a *appendAnswer) Start() time.Time { return time.Time{} }
func (a *appendAnswer) Request() *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{Term: 2}
}
func (a *appendAnswer) Response() *raft.AppendEntriesResponse { return &a.resp }

// Raft looks at no answer after one that is none, a no, or of a higher term. A sender
// that waits for room must come back all the same.
func TestNobodyWaitsInAPipelineThatIsGivenUp(t *testing.T) {
	for name, answer := range map[string]*appendAnswer{
		"the connection has ended": {err: errors.New("broken")},
		"a no":                     {resp: raft.AppendEntriesResponse{Term: 2}},
		"a higher term":            {resp: raft.AppendEntriesResponse{Term: 3, Success: true}},
	} {
		synctest.Test(t, func(t *testing.T) {
			inner := &fullPipeline{answers: make(chan raft.AppendFuture, 4), closed: make(chan struct{})}
			p := newPipeline(inner, func(*raft.AppendEntriesRequest) {})
			sent := make(chan error, 1)
			go func() { _, err := p.AppendEntries(nil, nil); sent <- err }()
			inner.answers <- &appendAnswer{resp: raft.AppendEntriesResponse{Term: 2, Success: true}}
			<-p.Consumer()
			synctest.Wait()
			if len(sent) != 0 {
				t.Fatalf("%s: it ended with an answer that was a yes", name)
			}
			inner.answers <- answer
			if got := <-p.Consumer(); got != raft.AppendFuture(answer) {
				t.Errorf("%s: Raft is not told of it", name)
			}
			synctest.Wait()
			if len(sent) != 1 {
				t.Errorf("%s: who sends still waits", name)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
