package raftnode

import (
	"runtime"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
)

// beating is a transport of which only the heartbeats are asked for.
type beating struct {
	raft.Transport
	beat func(raft.RPC)
}

func (b *beating) SetHeartbeatHandler(f func(raft.RPC)) { b.beat = f }
func (b *beating) Consumer() <-chan raft.RPC            { return nil }

// TestHeartbeatsSetNoTermBack: a heartbeat passes beside Raft's main thread only in the term that Raft is in, no other
// term begins meanwhile, and one that is known already is not waited for.
func TestHeartbeatsSetNoTermBack(t *testing.T) {
	p, err := openPromises(atomicfile.Files{Disk: disk.OS{}}, t.TempDir(), "a", true, false)
	must(t, err)
	transport := &beating{}
	g := newGate(transport, p, newReach(&identity{}), hclog.NewNullLogger())
	handed, release := make(chan uint64), make(chan struct{})
	during := make(chan uint64, 1)
	g.SetHeartbeatHandler(func(rpc raft.RPC) {
		term := rpc.Command.(*raft.AppendEntriesRequest).Term
		if err := p.SetUint64([]byte(keyCurrentTerm), term); err != nil { // as Raft does where it is a candidate
			t.Error(err)
		}
		handed <- term
		<-release
		during <- p.record().Term
	})
	beat := func(term uint64) {
		go transport.beat(raft.RPC{Command: &raft.AppendEntriesRequest{Term: term}})
	}
	queued := func(term uint64) {
		t.Helper()
		select {
		case rpc := <-g.Consumer():
			if got := rpc.Command.(*raft.AppendEntriesRequest).Term; got != term {
				t.Fatalf("the main thread was given a heartbeat of term %d, not %d", got, term)
			}
		case got := <-handed:
			t.Fatalf("a heartbeat of term %d was handed over beside the main thread", got)
		}
	}
	must(t, p.SetUint64([]byte(keyCurrentTerm), 14))
	beat(15)
	queued(15)
	beat(14)
	if got := <-handed; got != 14 {
		t.Fatalf("a heartbeat of term %d was handed over", got)
	}
	next := make(chan error)
	go func() { next <- p.SetUint64([]byte(keyCurrentTerm), 15) }()
	for range 1000 {
		runtime.Gosched() // it would be done with it, if it did not wait
	}
	close(release)
	if got := <-during; got != 14 {
		t.Errorf("term %d began while a heartbeat of term 14 was under way", got)
	}
	must(t, <-next)
	beat(14)
	queued(14)
	if err := p.SetUint64([]byte(keyCurrentTerm), 14); err == nil {
		t.Error("a term was taken back")
	}
	must(t, p.close())
	close(g.done)
}
