package raftnode

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/raftlog"
)

// guard stands between Raft and the disk. After a failed write nobody knows
// what the disk holds, and a second attempt that seems to succeed proves
// nothing; so the first failure is the last write, and stops the node. So does an
// entry that is read and is not what was stored.
type guard struct {
	durable
	dir  string // the data directory
	fail func(error)
	// live is set while Raft's own goroutines use the guard.
	live    atomic.Bool
	stored  atomic.Pointer[func([]*raft.Log)] // told after every write of entries, also a failed one
	metrics *metrics

	mu     sync.Mutex
	broken error
	hung   atomic.Bool   // the disk has not come back from a call
	hangs  chan struct{} // closed when that is known
}

func newGuard(d durable, dir string, fail func(error), m *metrics) *guard {
	return &guard{durable: d, dir: dir, fail: fail, metrics: m, hangs: make(chan struct{})}
}

// IsMonotonic implements raft.MonotonicLogStore.
func (g *guard) IsMonotonic() bool {
	m, ok := g.durable.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

func (g *guard) err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.broken
}

// check records the first failure of a write and stops the node.
func (g *guard) check(what string, err error) error {
	if err == nil {
		return nil
	}
	return g.stop(fmt.Errorf("the disk failed, and this server stops rather than acknowledge what it may not have kept: %s: %w", what, err))
}

// stop records why the node stops, and returns that.
func (g *guard) stop(err error) error {
	if g.record(err) {
		g.fail(err)
	}
	return err
}

// record says whether it is the first reason.
func (g *guard) record(err error) (first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if first = g.broken == nil; first {
		g.broken = err
	}
	return first
}

// hang stops the node because the disk does not come back. Whoever hears of it finds the reason recorded.
func (g *guard) hang(err *HungError) {
	first := g.record(err)
	if !g.hung.Swap(true) {
		close(g.hangs)
	}
	if first {
		g.fail(err)
	}
}

// came is what a call has come to. What comes back later than the disk may counts for nothing.
func (g *guard) came(err error) error {
	if err == nil && g.hung.Load() {
		return g.err()
	}
	return err
}

func (g *guard) GetLog(index uint64, l *raft.Log) error {
	err := g.came(g.durable.GetLog(index, l))
	if err == nil || errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	var damage *raftlog.DamageError
	if errors.As(err, &damage) {
		return g.damage(err)
	}
	err = g.check(fmt.Sprintf("read log entry %d", index), err)
	g.exit()
	return err
}

// damage stops the node because of an entry that is not what was stored, and ends
// the calling goroutine of Raft. It does nothing without an error.
func (g *guard) damage(err error) error {
	if err == nil {
		return nil
	}
	err = g.stop(damagedLog(g.dir, err))
	g.exit()
	return err
}

func (g *guard) StoreLog(l *raft.Log) error { return g.StoreLogs([]*raft.Log{l}) }

func (g *guard) StoreLogs(logs []*raft.Log) error {
	if err := g.err(); err != nil {
		return err
	}
	start := time.Now()
	err := g.check("write log entries", g.came(g.durable.StoreLogs(logs)))
	g.metrics.wrote(logs, time.Since(start))
	if told := g.stored.Load(); told != nil {
		(*told)(logs)
	}
	return err
}

func (g *guard) DeleteRange(from, to uint64) error {
	if err := g.err(); err != nil {
		return err
	}
	return g.check(fmt.Sprintf("delete log entries %d to %d", from, to), g.came(g.durable.DeleteRange(from, to)))
}

func (g *guard) Set(key, val []byte) error {
	if err := g.err(); err != nil {
		return err
	}
	err := g.came(g.durable.Set(key, val))
	if errors.Is(err, errNoVote) {
		return err // the disk has nothing to do with it
	}
	return g.check(fmt.Sprintf("keep %s", key), err)
}

func (g *guard) SetUint64(key []byte, val uint64) error {
	err := g.err()
	if err == nil {
		err = g.check(fmt.Sprintf("keep %s", key), g.came(g.durable.SetUint64(key, val)))
	}
	if err != nil && string(key) == keyCurrentTerm {
		g.exit()
	}
	return err
}

// exit ends the calling goroutine of Raft, which would otherwise panic and
// take the process with it before anybody could say why. Its deferred calls
// run: they answer requests with a refusal and release who waits. What is left
// of this Raft is shut down by the node, which has been told to fail.
func (g *guard) exit() {
	if g.live.Load() {
		runtime.Goexit()
	}
}

func (g *guard) setStored(f func([]*raft.Log)) { g.stored.Store(&f) }
