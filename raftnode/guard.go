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
	hung   atomic.Bool   // a call of the disk has not come back
	hangs  chan struct{} // closed when that is known
}

const (
	// hangSteps and hangStep say how long a call of the disk may take before the disk counts as one that failed: until then a leader goes on
	// with its heartbeats, nobody else is elected, and nothing is written. A pause of the whole machine is one step, however long.
	hangSteps, hangStep = 5, 3 * time.Second
	// deleteSteps is for deleting, which is a call for each of the log's files.
	deleteSteps = 20
)

// HungError: the disk has not come back from a call.
type HungError struct {
	What string // what was being done
	For  time.Duration
}

// Error implements error.
func (e *HungError) Error() string {
	return fmt.Sprintf("the disk hangs, and this server stops rather than lead or follow without it: to %s takes longer than %s", e.What, e.For)
}

// within calls the disk, and stops the node if it does not come back in time: Raft's own goroutine waits in it, and stops nothing. What comes
// back later counts for nothing.
func (g *guard) within(steps int, what string, call func() error) error {
	w := &watch{left: steps}
	w.timer = time.AfterFunc(time.Duration(1<<62), func() {
		if w.step() {
			if !g.hung.Swap(true) {
				close(g.hangs)
			}
			_ = g.stop(&HungError{what, time.Duration(steps) * hangStep}) // it is told by fail
		}
	})
	w.timer.Reset(hangStep)
	err := call()
	w.end()
	if late := g.err(); err == nil && g.hung.Load() {
		return late
	}
	return err
}

// watch is over one call of the disk.
type watch struct {
	timer *time.Timer

	mu   sync.Mutex
	left int // steps
	over bool
}

// step says whether the call has had its last step. One that comes back just as the timer fires, as after a pause of the machine, has had none.
func (w *watch) step() (last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false
	}
	if w.left--; w.left > 0 {
		w.timer.Reset(hangStep)
	}
	return w.left == 0
}

// end is for a call that has come back.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
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
	g.mu.Lock()
	first := g.broken == nil
	if first {
		g.broken = err
	}
	g.mu.Unlock()
	if first {
		g.fail(err)
	}
	return err
}

func (g *guard) GetLog(index uint64, l *raft.Log) error {
	err := g.within(hangSteps, "read a log entry", func() error { return g.durable.GetLog(index, l) })
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
	err := g.check("write log entries", g.within(hangSteps, "write log entries", func() error { return g.durable.StoreLogs(logs) }))
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
	what := fmt.Sprintf("delete log entries %d to %d", from, to)
	return g.check(what, g.within(deleteSteps, what, func() error { return g.durable.DeleteRange(from, to) }))
}

func (g *guard) Set(key, val []byte) error {
	if err := g.err(); err != nil {
		return err
	}
	what := fmt.Sprintf("keep %s", key)
	return g.check(what, g.within(hangSteps, what, func() error { return g.durable.Set(key, val) }))
}

func (g *guard) SetUint64(key []byte, val uint64) error {
	err := g.err()
	if err == nil {
		what := fmt.Sprintf("keep %s", key)
		err = g.check(what, g.within(hangSteps, what, func() error { return g.durable.SetUint64(key, val) }))
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
