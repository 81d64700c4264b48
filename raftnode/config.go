package raftnode

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/pki"
)

// Config says how a Node runs. Zero values mean the defaults.
type Config struct {
	// ID is the server's name in the cluster. It never changes.
	ID string
	// DataDir is where the log and the snapshots are. Exactly one of DataDir
	// and InMemory is given.
	DataDir  string
	InMemory bool // tests only: nothing is kept
	NoFsync  bool // tests only: a crash may lose what was acknowledged
	// Disk has the data directory; nil: the machine's.
	Disk disk.Disk

	// Transport replaces the network (tests). Otherwise the node listens on
	// BindAddr, or uses Listener in its place.
	Transport raft.Transport
	Listener  Listener
	BindAddr  string
	// AdvertiseAddr is where the other servers reach this one, host:port. It
	// must be given when BindAddr is a wildcard.
	AdvertiseAddr string
	// RPCAddr and HTTPAddr are where this server is reached for other things,
	// host:port. Servers tell them each other when they connect (Introduced).
	RPCAddr, HTTPAddr string
	// TLS, if given, makes every connection between servers mutual TLS, and
	// admits certificates of servers only.
	TLS *pki.Source

	HeartbeatTimeout   time.Duration // 1 s without a leader until an election
	ElectionTimeout    time.Duration // 1 s
	LeaderLeaseTimeout time.Duration // 500 ms without a quorum until a leader steps down
	CommitTimeout      time.Duration // 50 ms until an idle follower learns of a commit
	SnapshotInterval   time.Duration // 120 s between two looks
	SnapshotThreshold  uint64        // 8192 entries that make a snapshot worthwhile
	SnapshotLogBytes   int64         // 256 MiB of entries that do, however few they are
	TrailingLogs       uint64        // 10240 entries kept behind a snapshot

	MaxEntryBytes   int // 256 KiB, exceeded only by a single larger command
	MaxCommandBytes int // 32 MiB
	MaxBatch        int // 4096 commands an entry
	MaxInFlight     int // 64 entries written and not yet applied
	QueueLen        int // 65536 commands waiting or in flight, then ErrBusy
	QueueBytes      int // 64 MiB of them, then ErrBusy

	// MinServerVersion is the lowest fsm.LogVersion of all voting servers, as they
	// have told over RPC; 0 as long as one of them has not. nil: all are as
	// this one. It is asked often.
	MinServerVersion func() int
	// Clock is what the state's time runs by; nil: clock.Process.
	Clock clock.Source

	Logger     hclog.Logger
	Registerer prometheus.Registerer // nil: metrics are not shown

	// wrapLog lets tests make the log fail.
	wrapLog func(durable) durable
	// segmentBytes lets tests have a log of many files.
	segmentBytes int64
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	defInt := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&c.HeartbeatTimeout, time.Second)
	def(&c.ElectionTimeout, max(time.Second, c.HeartbeatTimeout))
	def(&c.LeaderLeaseTimeout, c.HeartbeatTimeout/2)
	def(&c.CommitTimeout, 50*time.Millisecond)
	def(&c.SnapshotInterval, 120*time.Second)
	if c.SnapshotThreshold == 0 {
		c.SnapshotThreshold = 8192
	}
	if c.SnapshotLogBytes == 0 {
		c.SnapshotLogBytes = 256 << 20
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = 10240
	}
	defInt(&c.MaxEntryBytes, 256<<10)
	defInt(&c.MaxCommandBytes, 32<<20)
	defInt(&c.MaxBatch, 4096)
	defInt(&c.MaxInFlight, 64)
	defInt(&c.QueueLen, 65536)
	defInt(&c.QueueBytes, 64<<20)
	if c.Disk == nil {
		c.Disk = disk.OS{}
	}
	if c.Clock == nil {
		c.Clock = clock.Process()
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}

// files are those of the data directory.
func (c Config) files() atomicfile.Files { return atomicfile.Files{Disk: c.Disk} }

func (c Config) check() error {
	switch {
	case c.ID == "":
		return errors.New("a server needs a name")
	case (c.DataDir == "") == !c.InMemory:
		return errors.New("exactly one of a data directory and in-memory mode must be given")
	case c.Transport == nil && c.Listener == nil && c.BindAddr == "":
		return errors.New("a server needs an address to listen on")
	}
	if err := raft.ValidateConfig(c.raft(hclog.NewNullLogger(), nil)); err != nil {
		return fmt.Errorf("consensus settings: %w", err)
	}
	return nil
}

func (c Config) raft(logger hclog.Logger, notify chan<- bool) *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(c.ID)
	rc.HeartbeatTimeout = c.HeartbeatTimeout
	rc.ElectionTimeout = c.ElectionTimeout
	rc.LeaderLeaseTimeout = c.LeaderLeaseTimeout
	rc.CommitTimeout = c.CommitTimeout
	rc.SnapshotInterval = c.SnapshotInterval
	rc.SnapshotThreshold = c.SnapshotThreshold
	rc.TrailingLogs = c.TrailingLogs
	// A removed server stays a silent follower: its process may still answer
	// who removed it, and may be added again.
	rc.ShutdownOnRemove = false
	rc.NoLegacyTelemetry = true
	// The state is restored before Raft begins (snapshotStore.restore).
	rc.NoSnapshotRestoreOnStart = true
	rc.NotifyCh = notify
	rc.Logger = logger
	return rc
}
