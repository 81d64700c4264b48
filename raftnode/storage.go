package raftnode

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// durable is what keeps the log and Raft's own few values.
type durable interface {
	raft.LogStore
	raft.StableStore
	io.Closer
}

type memoryStore struct{ *raft.InmemStore }

func (memoryStore) Close() error { return nil }

const (
	raftDir           = "raft"
	logFile           = "log.db"
	retainedSnapshots = 2
	cachedEntries     = 256
	lockTimeout       = time.Second
)

// openStorage opens the log and the snapshots under the data directory.
func openStorage(c Config, logger hclog.Logger) (durable, raft.SnapshotStore, error) {
	if c.InMemory {
		return memoryStore{raft.NewInmemStore()}, raft.NewInmemSnapshotStore(), nil
	}
	dir := filepath.Join(c.DataDir, raftDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("data directory: %w", err)
	}
	if err := probeDisk(dir, c.MaxEntryBytes); err != nil {
		return nil, nil, fmt.Errorf("data directory %s can not keep a log entry: %w", c.DataDir, err)
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path:   filepath.Join(dir, logFile),
		NoSync: c.NoFsync,
		// The freelist of a log that is trimmed at one end is large and
		// would be written with every entry; as a map it is found fast.
		BoltOptions:             &bbolt.Options{Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
		MsgpackUseNewTimeFormat: true,
	})
	if errors.Is(err, bbolt.ErrTimeout) {
		return nil, nil, fmt.Errorf("data directory %s is in use by another process", c.DataDir)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open the log in %s: %w", dir, err)
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, retainedSnapshots, logger.Named("snapshot"))
	if err != nil {
		_ = bolt.Close()
		return nil, nil, fmt.Errorf("open the snapshots in %s: %w", dir, err)
	}
	return bolt, snaps, nil
}

// probeDisk finds out before the start whether an entry could be kept: a full
// or read-only disk is better told at once than at the first entry.
func probeDisk(dir string, size int) (err error) {
	f, err := os.CreateTemp(dir, "probe-")
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close(), os.Remove(f.Name()))
	}()
	if _, err := f.Write(make([]byte, size)); err != nil {
		return err
	}
	return f.Sync()
}

// guard stands between Raft and the disk. After a failed write nobody knows
// what the disk holds, and a second attempt that seems to succeed proves
// nothing; so the first failure is the last write, and stops the node.
type guard struct {
	durable
	fail func(error)
	// live is set while Raft's own goroutines use the guard.
	live    atomic.Bool
	stored  atomic.Pointer[func([]*raft.Log)] // told after every write of entries, also a failed one
	metrics *metrics

	mu     sync.Mutex
	broken error
}

func newGuard(d durable, fail func(error), m *metrics) *guard {
	return &guard{durable: d, fail: fail, metrics: m}
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
	err = fmt.Errorf("%s: %w", what, err)
	g.mu.Lock()
	first := g.broken == nil
	if first {
		g.broken = err
	}
	g.mu.Unlock()
	if first {
		g.fail(fmt.Errorf("the disk failed, and this server stops rather than acknowledge what it may not have kept: %w", err))
	}
	return err
}

func (g *guard) GetLog(index uint64, l *raft.Log) error {
	err := g.durable.GetLog(index, l)
	if err == nil || errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	err = g.check(fmt.Sprintf("read log entry %d", index), err)
	g.exit()
	return err
}

func (g *guard) StoreLog(l *raft.Log) error { return g.StoreLogs([]*raft.Log{l}) }

func (g *guard) StoreLogs(logs []*raft.Log) error {
	if err := g.err(); err != nil {
		return err
	}
	start := time.Now()
	err := g.check("write log entries", g.durable.StoreLogs(logs))
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
	return g.check(fmt.Sprintf("delete log entries %d to %d", from, to), g.durable.DeleteRange(from, to))
}

// keyCurrentTerm is the value that Raft panics for when it can not be kept.
const keyCurrentTerm = "CurrentTerm"

func (g *guard) Set(key, val []byte) error {
	if err := g.err(); err != nil {
		return err
	}
	return g.check(fmt.Sprintf("keep %s", key), g.durable.Set(key, val))
}

func (g *guard) SetUint64(key []byte, val uint64) error {
	err := g.err()
	if err == nil {
		err = g.check(fmt.Sprintf("keep %s", key), g.durable.SetUint64(key, val))
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
