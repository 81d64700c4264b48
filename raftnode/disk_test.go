package raftnode

import (
	"errors"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/berth-dev/berth/store"
)

// slowDisk delays the writes of entries, and remembers their sizes.
type slowDisk struct {
	mu    sync.Mutex
	delay time.Duration
	max   int
}

func (d *slowDisk) conf(c *Config) {
	c.wrapLog = func(next durable) durable { return &slowLog{durable: next, disk: d} }
}

func (d *slowDisk) set(delay time.Duration) {
	d.mu.Lock()
	d.delay = delay
	d.mu.Unlock()
}

func (d *slowDisk) largest() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.max
}

type slowLog struct {
	durable
	disk *slowDisk
}

func (l *slowLog) StoreLogs(logs []*raft.Log) error {
	l.disk.mu.Lock()
	delay := l.disk.delay
	for _, one := range logs {
		l.disk.max = max(l.disk.max, len(one.Data))
	}
	l.disk.mu.Unlock()
	if delay > 0 {
		<-time.After(delay)
	}
	return l.durable.StoreLogs(logs)
}

// failingDisk fails every write of one node from a moment on.
type failingDisk struct {
	mu   sync.Mutex
	node string
	logs error
	term error
}

func (d *failingDisk) conf(c *Config) {
	id := c.ID
	c.wrapLog = func(next durable) durable { return &failingLog{durable: next, disk: d, id: id} }
}

func (d *failingDisk) fail(node string, logs, term error) {
	d.mu.Lock()
	d.node, d.logs, d.term = node, logs, term
	d.mu.Unlock()
}

func (d *failingDisk) errors(id string) (logs, term error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if id != d.node {
		return nil, nil
	}
	return d.logs, d.term
}

type failingLog struct {
	durable
	disk *failingDisk
	id   string
}

func (l *failingLog) StoreLogs(logs []*raft.Log) error {
	if err, _ := l.disk.errors(l.id); err != nil {
		return err
	}
	return l.durable.StoreLogs(logs)
}

func (l *failingLog) SetUint64(key []byte, val uint64) error {
	if _, err := l.disk.errors(l.id); err != nil {
		return err
	}
	return l.durable.SetUint64(key, val)
}

// A leader whose disk is full acknowledges nothing, says so, stops, and the
// others go on at once with everything that was acknowledged.
func TestLeaderWithFullDiskStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &failingDisk{}
		c := newCluster(t, 3, disk.conf)
		c.must(namespace())
		c.must(create("m", "1"))
		leader := c.leader()
		disk.fail(leader.ID(), syscall.ENOSPC, nil)
		began := time.Now()
		_, _, err := leader.Propose(c.ctx(), put("m", "2"))
		if !errors.Is(err, ErrUnknownOutcome) {
			t.Fatalf("the disk is full, and a proposal ends with %v", err)
		}
		if err := <-leader.Fatal(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("the node stopped because of %v", err)
		}
		if err := leader.Shutdown(); err != nil { // it stops on its own; this waits
			t.Error(err)
		}
		c.kill(leader.ID())
		next := c.leader()
		if took := time.Since(began); took > leader.c.HeartbeatTimeout {
			t.Errorf("the next leader was ready after %s: the leadership was not handed over", took)
		}
		if got := value(next.state, "m"); got != "1" {
			t.Errorf("the acknowledged value is %q", got)
		}
		c.must(put("m", "3"))
		c.same()
	})
}

func TestFollowerWithFailingDiskStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &failingDisk{}
		c := newCluster(t, 3, disk.conf)
		c.must(namespace())
		victim := c.followers()[0]
		disk.fail(victim.ID(), syscall.EIO, nil)
		c.must(create("m", "1"))
		if err := <-victim.Fatal(); !errors.Is(err, syscall.EIO) {
			t.Errorf("the node stopped because of %v", err)
		}
		c.kill(victim.ID())
		c.same()
	})
}

// Raft panics when it can not keep its term. The node stops in good order.
func TestTermThatCanNotBeKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &failingDisk{}
		c := newCluster(t, 3, disk.conf)
		c.must(namespace())
		leader, victim := c.leader(), c.followers()[0]
		disk.fail(victim.ID(), nil, syscall.EIO)
		if err := leader.TransferLeadership(c.ctx(), victim.ID()); err == nil && victim.IsLeader() {
			t.Error("a server leads whose disk does not keep its term")
		}
		if err := <-victim.Fatal(); !errors.Is(err, syscall.EIO) {
			t.Errorf("the node stopped because of %v", err)
		}
		c.kill(victim.ID())
		c.must(create("m", "1"))
		c.same()
	})
}

// unknownEntry holds a command of a future version.
func unknownEntry(t *testing.T) []byte {
	b, err := msgpack.Marshal(map[string]any{
		"format": 1, "time_unix_nano": 1,
		"commands": []any{map[string]any{"n": 65000, "command": map[string]any{}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What a server does not know it must not skip: it stops, and applies nothing
// from then on.
func TestUnknownCommandStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		leader := c.leader()
		revision := leader.state.View().Revision()
		bad := leader.raft.Apply(unknownEntry(t), 0)
		after, refused := leader.ProposeAsync(create("m", "1"))
		if refused != nil && !errors.Is(refused, ErrNoLeader) { // it has stopped already
			t.Fatal(refused)
		}
		if err := bad.Error(); err != nil {
			t.Fatal(err)
		}
		if _, ok := bad.Response().(error); !ok {
			t.Errorf("an unknown command was answered with %v", bad.Response())
		}
		if refused == nil {
			if _, _, err := after.Wait(c.ctx()); err == nil {
				t.Error("what follows an unknown command was acknowledged")
			}
		}
		// The next leader commits it too and stops; the last server may learn of
		// that or not.
		stopped := 0
		for id, n := range c.nodes {
			select {
			case err := <-n.Fatal():
				stopped++
				if !errors.Is(err, store.ErrUnknownCommand) {
					t.Errorf("%s stopped because of %v", id, err)
				}
				if _, err := n.machine.Snapshot(); err == nil {
					t.Errorf("%s gives out a snapshot of less than its log", id)
				}
			case <-time.After(10 * time.Second):
			}
			if got := n.state.View().Revision(); got != revision {
				t.Errorf("%s went on to revision %d from %d", id, got, revision)
			}
		}
		if stopped < 2 {
			t.Errorf("only %d servers stopped", stopped)
		}
	})
}
