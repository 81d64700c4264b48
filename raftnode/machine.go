package raftnode

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// machine is the adapter between Raft and the state: it hands over entries in
// order and tells who waits for one.
type machine struct {
	state   *fsm.State
	fail    func(error) // must not block
	logger  hclog.Logger
	metrics *metrics
	// empty is an entry without commands. It is applied in the place of a
	// configuration entry, so that the state's index is always that of the
	// last entry seen here, and with it a snapshot's is Raft's.
	empty      []byte
	onSnapshot func()
	// damaged says what to do about a log that can not be read.
	damaged func(error) error
	// follow is told the state's time after every entry and restore, and whether the
	// entry came while this process lived: those up to lay were in the log before.
	follow func(unixNano int64, live bool)
	lay    uint64
	// restored is told how far a snapshot reaches, once the state is that of it.
	restored func(position)
	// tidy removes, after that, what the snapshot has made wrong on the disk.
	tidy func(position) error
	// skipped is how many revisions a snapshot leaves out after the state's.
	skipped int64

	mu      sync.Mutex
	broken  error  // why nothing is applied any more
	applied uint64 // index of the last entry applied or restored
	waiters waiterHeap
}

// applied is the outcome of an entry, as Raft's future carries it.
type applied struct {
	results []fsm.Result
	term    uint64
}

func newMachine(state *fsm.State, fail func(error), logger hclog.Logger, m *metrics) (*machine, error) {
	empty, err := store.JoinEntry(fsm.Header{}, nil)
	if err != nil {
		return nil, err
	}
	return &machine{state: state, fail: fail, logger: logger, metrics: m, empty: empty, onSnapshot: func() {}, damaged: func(err error) error { return err },
		follow: func(int64, bool) {}, lay: math.MaxUint64, restored: func(position) {}, tidy: func(position) error { return nil }}, nil
}

// Apply implements raft.FSM. Raft calls it only to recover a cluster.
func (m *machine) Apply(l *raft.Log) any { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	for i, l := range logs {
		out[i] = m.applyOne(l)
	}
	return out
}

func (m *machine) applyOne(l *raft.Log) (outcome any) {
	if err := m.err(); err != nil {
		return err
	}
	if err := checkSeal(l); err != nil {
		m.breakDown(m.damaged(err))
		return err
	}
	data := m.empty
	if l.Type == raft.LogCommand {
		data = l.Data
	}
	start := time.Now()
	defer func() {
		if r := recover(); r != nil {
			// Not in the entry, which would have been refused: what this server has of it is not known.
			m.logger.Error("to apply an entry panicked", "index", l.Index, "term", l.Term, "panic", r, "stack", string(debug.Stack()))
			err := fmt.Errorf("this server can not go on at log entry %d: it panicked: %v", l.Index, r)
			m.breakDown(err)
			outcome = err
		}
	}()
	results, err := m.state.Apply(l.Index, l.Term, data)
	if err != nil {
		err = fmt.Errorf("this server can not go on at log entry %d: %w", l.Index, err)
		m.breakDown(err)
		return err
	}
	for _, f := range m.state.Faults() {
		m.metrics.failedApplies.WithLabelValues(f.Command).Inc()
		what := "a command made the state machine panic; it was undone and refused, as on every server"
		switch {
		case f.Shown:
			what = "what an entry has done could not be shown as it should be: it is done, and who follows the changes begins anew"
		case f.Once:
			what = "an entry made the state machine of this server panic, and did not when it was carried out again: it is done. " +
				"Compare the servers' states (berth operator verify)"
		}
		m.logger.Error(what, "index", f.Index, "command", f.Command, "part", f.Part, "user", f.User, "panic", f.Value, "stack", string(f.Stack))
	}
	m.metrics.applied(len(results), time.Since(start))
	m.follow(m.state.View().TimeUnixNano(), l.Index > m.lay)
	m.advance(l.Index)
	return applied{results: results, term: l.Term}
}

func (m *machine) err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.broken
}

func (m *machine) breakDown(err error) {
	m.mu.Lock()
	m.broken = err
	m.mu.Unlock()
	m.fail(err)
}

// Snapshot implements raft.FSM. It costs the same whatever the size of the
// state.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.err(); err != nil {
		// The state stands before the index that Raft believes it to be at.
		return nil, err
	}
	m.onSnapshot()
	return &snapshot{view: m.state.View(), skipped: m.skipped, metrics: m.metrics}, nil
}

// Restore implements raft.FSM.
func (m *machine) Restore(r io.ReadCloser) error {
	if err := m.err(); err != nil {
		return err
	}
	at, err := placeOf(r)
	if err != nil {
		return fmt.Errorf("restore the state: %w", err)
	}
	start := time.Now()
	if err := m.state.Restore(r); err != nil {
		if errors.Is(err, fsm.ErrRestoreBroke) {
			m.metrics.failedApplies.WithLabelValues("Restore").Inc()
		}
		return fmt.Errorf("restore the state: %w", err) // it is what it was
	}
	m.metrics.restored(time.Since(start))
	m.follow(m.state.View().TimeUnixNano(), false)
	m.advance(m.state.View().Index())
	m.restored(at)
	if err := m.tidy(at); err != nil {
		m.breakDown(err)
		return err
	}
	return nil
}

type snapshot struct {
	view    *fsm.View
	skipped int64
	metrics *metrics
}

func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	start := time.Now()
	if err := s.view.WriteAt(sink, s.view.Revision()+s.skipped); err != nil {
		_ = sink.Cancel() // the write's error says more
		s.metrics.snapshotFailed()
		return fmt.Errorf("persist snapshot %s: %w", sink.ID(), err)
	}
	if err := sink.Close(); err != nil {
		s.metrics.snapshotFailed()
		return fmt.Errorf("persist snapshot %s: %w", sink.ID(), err)
	}
	s.metrics.snapshotted(time.Since(start))
	return nil
}

func (s *snapshot) Release() {}

type waiter struct {
	index uint64
	at    int // place in the heap; -1 when it has left
	done  chan struct{}
}

// waiterHeap has the waiter for the lowest index first.
type waiterHeap []*waiter

func (h waiterHeap) Len() int           { return len(h) }
func (h waiterHeap) Less(i, j int) bool { return h[i].index < h[j].index }
func (h waiterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *waiterHeap) Push(x any) {
	w := x.(*waiter)
	w.at = len(*h)
	*h = append(*h, w)
}
func (h *waiterHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.at = -1
	return w
}

// advance wakes everybody who waits for an index up to this one. It is before the last one where a snapshot of less was restored:
// a cluster that goes on without what one of its servers had gives those indexes to other entries.
func (m *machine) advance(index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applied = index
	for len(m.waiters) > 0 && m.waiters[0].index <= m.applied {
		close(heap.Pop(&m.waiters).(*waiter).done)
	}
}

func (m *machine) appliedIndex() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.applied
}

// wait returns once the entry at index has been applied here.
func (m *machine) wait(ctx context.Context, index uint64, dead <-chan struct{}) error {
	m.mu.Lock()
	if m.applied >= index {
		m.mu.Unlock()
		return nil
	}
	w := &waiter{index: index, done: make(chan struct{})}
	heap.Push(&m.waiters, w)
	m.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		m.forget(w)
		return fmt.Errorf("wait for log entry %d: %w", index, ctx.Err())
	case <-dead:
		m.forget(w)
		return ErrShutdown
	}
}

// forget takes a waiter out that gave up: whoever waits for an entry that
// never comes must not stay here for ever.
func (m *machine) forget(w *waiter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.at >= 0 {
		heap.Remove(&m.waiters, w.at)
	}
}
