package raftnode

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftlog"
)

// Node is one server's part in the consensus.
type Node struct {
	c       Config
	logger  hclog.Logger
	state   *fsm.State
	id      *identity
	disk    *watchedDisk
	lock    disk.File // of the data directory
	clock   *clock.Clock
	metrics *metrics

	raft       *raft.Raft
	transport  raft.Transport
	stream     *stream // nil if the transport was given, as are the next two
	inlet      *inlet
	succession *succession
	promises   *promises
	reach      *reach
	guard      *guard
	log        *sealedLog // before the guard
	machine    *machine
	proposer   *proposer
	office     *office
	heard      *heard
	confirmer  *confirmer
	transfers  transfers

	fatal    chan error
	started  atomic.Bool
	waits    atomic.Bool   // for a leader, without a timeout (waiting.go)
	weighing chan struct{} // whether it waits is to be looked at again
	up       chan struct{} // closed when it has started
	failOnce sync.Once
	failed   atomic.Bool
	// condemned is set when the state was found to differ from the others'.
	condemned atomic.Pointer[Difference]
	// failedLeader: it led when it failed.
	failedLeader atomic.Bool
	// dead is closed once no outcome will come any more.
	dead     chan struct{}
	stopping atomic.Bool
	stopped  chan struct{} // closed once it has stopped
	stopErr  error
	tasks    sync.WaitGroup
	closing  chan struct{} // closed when the node begins to stop
	// logBytes are those written since the last snapshot.
	logBytes     atomic.Int64
	snapshotting atomic.Bool
	restocking   atomic.Bool
	founding     atomic.Bool // the log's first entry is being written
}

// Open starts a server's part in the consensus over a state, which must be
// empty and is from now on changed by the node alone.
//
// A *ForeignDataError says that the data directory is another server's.
func Open(c Config, state *fsm.State) (*Node, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	n := &Node{
		c: c, logger: c.Logger.Named("raft"), state: state, clock: clock.New(c.Clock),
		fatal: make(chan error, 1), dead: make(chan struct{}), closing: make(chan struct{}), stopped: make(chan struct{}),
		up: make(chan struct{}), weighing: make(chan struct{}, 1),
	}
	var err error
	if n.metrics, err = newMetrics(c.Registerer); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	store, err := n.openData()
	if err != nil {
		return nil, errors.Join(err, n.release())
	}
	if err := n.start(store); err != nil {
		return nil, errors.Join(err, store.Close(), n.release())
	}
	return n, nil
}

// openData opens the data directory, of which no other process may have a part.
func (n *Node) openData() (*storage, error) {
	dir := n.c.DataDir
	n.disk = watchDisk(n.c.Disk)
	if dir != "" {
		if err := disk.MkdirAll(n.c.Disk, dir, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		var err error
		n.lock, err = raftlog.Lock(n.disk, dir, false, lockTimeout)
		if errors.Is(err, raftlog.ErrInUse) {
			return nil, inUse(dir)
		}
		if err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
	}
	if err := setAside(n.c.files(), dir, n.logger); err != nil {
		return nil, err
	}
	id, fresh, err := openIdentity(atomicfile.Files{Disk: n.disk}, dir, n.c.ID)
	if err != nil {
		return nil, err
	}
	n.id, n.reach = id, newReach(id)
	store, err := openStorage(n.c, n.disk, fresh, n.logger, id.keepFirst)
	if err != nil {
		return nil, err
	}
	n.promises = store.promises
	return store, nil
}

// release gives the data directory back: from here on nothing of this node is
// written there, and another may open it.
func (n *Node) release() error {
	if n.id != nil {
		n.id.close() // a greeting may be under way
	}
	if n.lock == nil {
		return nil
	}
	return n.lock.Close()
}

// start brings up Raft over an open log. On an error the caller closes it.
func (n *Node) start(store *storage) (err error) {
	kept, snaps := durable(store), store.snapshots
	if n.c.wrapLog != nil {
		kept = n.c.wrapLog(kept)
	}
	n.guard = newGuard(kept, n.id.where(), n.fail, n.metrics)
	hang := n.guard.hang
	n.disk.hangs.Store(&hang)
	n.log = &sealedLog{cache: newCache(n.guard, cachedBytes), guard: n.guard, making: n.makesEntries, mayMake: n.mayLead}
	if n.machine, err = newMachine(n.state, n.fail, n.logger, n.metrics); err != nil {
		return err
	}
	n.machine.onSnapshot = func() { n.logBytes.Store(0) }
	n.machine.damaged = func(err error) error { return damagedLog(n.id.where(), err) }
	n.machine.follow = n.clock.Follow
	n.machine.restored = n.promises.holds
	if err := n.openTransport(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeTransport(n.transport))
		}
	}()
	if err := n.recoverQuorum(snaps); err != nil {
		return err
	}
	n.office, n.heard = newOffice(n), newHeard()
	if n.raft, err = n.newRaft(snaps); err != nil {
		return err
	}
	n.guard.live.Store(true)
	n.proposer = newProposer(n.c, n.raft, n.Leader, n.state, n.clock, n.metrics)
	n.confirmer = newConfirmer(n)
	n.guard.setStored(n.wrote)
	n.tasks.Go(n.office.run)
	n.tasks.Go(func() { n.heard.observe(n) })
	n.tasks.Go(n.weigh)
	if n.inlet != nil {
		n.tasks.Go(func() { n.inlet.run(n.dead) })
		n.tasks.Go(n.succession.run)
	}
	n.started.Store(true)
	close(n.up)
	n.reweigh() // as others may have told it something meanwhile
	followed := n.promises.follows(n.servers())
	if err := errors.Join(n.guard.err(), n.machine.err(), followed); err != nil {
		n.fail(err) // it happened while nobody could be told
	}
	if n.c.DataDir != "" {
		n.logger.Info("consensus is up", "cluster", n.id.cluster(), "applied", n.machine.appliedIndex(), "address", n.Addr())
	}
	return nil
}

// newRaft starts Raft. It panics where it can not read its log; here that is
// an error like any other.
func (n *Node) newRaft(snaps *snapshotStore) (r *raft.Raft, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the log in %s can not be read: %v", n.id.where(), p)
		}
		if damage := n.guard.err(); damage != nil {
			err = damage // it says more
		}
		if err != nil && r != nil { // it was found while Raft had begun
			n.raft = r
			close(n.up) // somebody in it may ask who makes entries (makesEntries)
			_ = r.Shutdown().Error()
		}
	}()
	if err := n.checkNoGap(snaps); err != nil {
		return nil, err
	}
	if err := snaps.restore(n.machine); err != nil {
		return nil, err
	}
	if err := n.checkLost(); err != nil {
		return nil, err
	}
	n.machine.restored, n.machine.tidy = n.installed, snaps.dropBeyond // from here on of snapshots that are sent
	last, err := n.guard.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	n.machine.lay = max(last, n.machine.appliedIndex())
	conf := n.c.raft(n.logger, n.office.notify)
	if n.waits.Load() {
		conf.HeartbeatTimeout, conf.ElectionTimeout = waitsFor, waitsFor
	}
	return raft.NewRaft(conf, n.machine, n.log, n.guard, snaps, n.transport)
}

// checkNoGap makes sure that the log goes on where the newest snapshot ends.
func (n *Node) checkNoGap(snaps raft.SnapshotStore) error {
	list, err := snaps.List()
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	first, err := n.guard.FirstIndex()
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	covered := uint64(0)
	if len(list) > 0 {
		covered = list[0].Index
	}
	if first > covered+1 {
		return &DamagedFileError{filepath.Join(n.id.where(), raftDir), fmt.Sprintf(
			"is damaged: the log begins at entry %d, and no snapshot reaches beyond entry %d", first, covered), startOver(n.id.where())}
	}
	return nil
}

// makesEntries reports whether what Raft stores now is of this server's own making.
func (n *Node) makesEntries() bool {
	<-n.up
	return n.founding.Load() || n.raft.State() == raft.Leader
}

func (n *Node) openTransport() error {
	if n.c.Transport != nil {
		n.transport = newGate(n.c.Transport, n.promises, n.reach, n.logger)
		return nil
	}
	l, addr, err := openListener(n.c)
	if err != nil {
		return err
	}
	n.succession = newSuccession(n)
	n.stream = newStream(l, addr, n)
	n.inlet = newInlet(raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: n.stream,
		Logger: n.logger.Named("transport"),
		// One connection each for heartbeats, replication, votes and the
		// confirmation of reads.
		MaxPool:                 4,
		Timeout:                 10 * time.Second,
		MsgpackUseNewTimeFormat: true,
	}))
	n.transport = newGate(n.inlet, n.promises, n.reach, n.logger)
	return nil
}

func closeTransport(t raft.Transport) error {
	if c, ok := t.(raft.WithClose); ok {
		return c.Close()
	}
	return nil
}

// installed is told of a snapshot that was sent and has taken the place of everything.
func (n *Node) installed(at position) {
	n.promises.holdsOnly(at)
	n.reweigh()
}

// wrote is told of every write of entries.
func (n *Node) wrote(logs []*raft.Log) {
	n.reweigh()
	n.proposer.wrote(logs)
	if n.logBytes.Add(sizeOf(logs)) < n.c.SnapshotLogBytes || !n.snapshotting.CompareAndSwap(false, true) {
		return
	}
	n.tasks.Go(func() {
		defer n.snapshotting.Store(false)
		if err := n.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrRaftShutdown) {
			n.logger.Warn("could not take a snapshot", "error", err)
		}
	})
}

// ID is the server's name.
func (n *Node) ID() string { return n.c.ID }

// Clock tells the state's time.
func (n *Node) Clock() *clock.Clock { return n.clock }

// Steer tells the clock what is known of the other servers' clocks.
func (n *Node) Steer(c clock.Counsel) { n.tellStep(n.clock.Steer(c)) }

// tellStep says that the state's time was put forward: every deadline in the state
// came nearer by as much.
func (n *Node) tellStep(s clock.Step, stepped bool) {
	if !stepped {
		return
	}
	from, to := time.Unix(0, s.From).UTC(), time.Unix(0, s.To).UTC()
	if s.Told {
		n.logger.Info("the state's time goes on as a server tells it that has lived with it", "from", from, "to", to, "by", to.Sub(from))
		return
	}
	n.logger.Warn("no server was found that has lived with the state: its time was put forward to the time of day as the majority's clocks have it",
		"from", from, "to", to, "by", to.Sub(from))
}

// Addr is where the other servers reach this one.
func (n *Node) Addr() string { return string(n.transport.LocalAddr()) }

// ClusterID is the cluster that this server belongs to, "" as long as it is
// none. A server that is to be added must have none or the same.
func (n *Node) ClusterID() string { return n.id.cluster() }

// HasExistingState reports whether this server has been part of a cluster.
func (n *Node) HasExistingState() bool {
	r := n.id.record()
	return n.raft.LastIndex() > 0 || n.raft.CurrentTerm() > 0 || r.Cluster != "" && !r.Founder
}

// Bootstrap makes a new cluster of the servers given, one of which must be
// this one. It is called on every one of them with the same list; the one
// whose ID sorts first begins the log and names the cluster, on the others
// nothing happens until it finds them. Where there is a log already it
// returns ErrAlreadyBootstrapped.
func (n *Node) Bootstrap(servers []Server) error {
	if n.HasExistingState() {
		return ErrAlreadyBootstrapped
	}
	servers = slices.Clone(servers)
	slices.SortFunc(servers, func(a, b Server) int { return compareIDs(a.ID, b.ID) })
	if !slices.ContainsFunc(servers, func(s Server) bool { return s.ID == n.c.ID }) {
		return fmt.Errorf("bootstrap: this server, %q, is not among the servers given", n.c.ID)
	}
	if servers[0].ID != n.c.ID {
		return nil
	}
	if err := n.id.found(uuid.NewString()); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	var conf raft.Configuration
	for _, s := range servers {
		conf.Servers = append(conf.Servers, s.raft())
	}
	// Raft's own goroutine writes now, and must be able to say that it failed.
	n.guard.live.Store(false)
	n.founding.Store(true)
	err := n.raft.BootstrapCluster(conf).Error()
	n.founding.Store(false)
	n.guard.live.Store(true)
	if errors.Is(err, raft.ErrCantBootstrap) {
		return ErrAlreadyBootstrapped
	}
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	n.logger.Info("began a new cluster", "cluster", n.id.cluster(), "servers", len(servers))
	return nil
}

// ProposeAsync puts commands into the log, those of one call in one entry where
// they fit, and does not wait: the Future has their results in the same order
// once this server has applied them, with the index of the (last) entry. The
// leader alone can do it: on another server it is a *NotLeaderError. Proposals of
// one caller are applied in the order of its calls.
//
// Only ErrUnknownOutcome leaves open whether the commands were or will be
// applied. After every other error they were not and will not be.
func (n *Node) ProposeAsync(ps ...fsm.Proposal) (*Future, error) {
	if len(ps) == 0 {
		return nil, errors.New("propose: no commands")
	}
	if !n.IsLeader() {
		return nil, notLeader(n.Leader)
	}
	if n.clock.NowUnixNano() == 0 {
		return nil, &NotLeaderError{} // it does not lead yet: there is no time to stamp an entry with
	}
	return n.proposer.submit(ps)
}

// barrier commits an entry, so that all that was proposed before it is applied, and returns its term.
func (n *Node) barrier(ctx context.Context) (*Future, error) {
	f := &Future{p: n.proposer, done: make(chan struct{})}
	if err := n.proposer.enqueue(f); err != nil {
		return nil, err
	}
	_, _, err := f.Wait(ctx)
	return f, err
}

// WaitApplied returns once this server has applied the entry at index.
func (n *Node) WaitApplied(ctx context.Context, index uint64) error {
	return n.machine.wait(ctx, index, n.dead)
}

// AppliedIndex is the last entry that this server has applied.
func (n *Node) AppliedIndex() uint64 { return n.machine.appliedIndex() }

// Fatal tells why the node had to stop by itself: the disk failed, or the log
// holds what this version can not apply. The process should say so and exit.
func (n *Node) Fatal() <-chan error { return n.fatal }

// fail stops the node. It is called by Raft's goroutines and does not block.
// Before the node is open, Open finds the failure and returns it.
func (n *Node) fail(err error) {
	if !n.started.Load() {
		return
	}
	n.failOnce.Do(func() {
		n.logger.Error("this server stops", "error", err)
		// Asked now: Raft steps down as soon as this returns.
		n.failedLeader.Store(n.IsLeader())
		n.failed.Store(true)
		n.fatal <- err
		go n.stop()
	})
}

// Shutdown stops the node. What it has accepted is finished first, if the
// cluster lets it.
func (n *Node) Shutdown() error {
	n.stop()
	return n.stopErr
}

func (n *Node) stop() {
	if !n.stopping.CompareAndSwap(false, true) {
		<-n.stopped
		return
	}
	defer close(n.stopped)
	close(n.closing)
	n.confirmer.close()
	if n.failedLeader.Load() {
		n.handOver()
	}
	n.proposer.close()
	if n.guard.hung.Load() {
		n.abandon(n.endRaft())
		return
	}
	n.finishOutcomes()
	ended := n.endRaft()
	var err error
	select {
	case err = <-ended:
	case <-n.guard.hangs: // found only now, as whoever stops it was quicker
		n.abandon(ended)
		return
	}
	n.finishOutcomes()
	close(n.dead)
	close(n.proposer.dead)
	closed := make(chan error, 1)
	go func() { closed <- errors.Join(err, n.close()) }()
	select {
	case n.stopErr = <-closed:
	case <-n.guard.hangs: // nobody waits for the last of it, either: it is closed as the disk comes back, or by the end of the process
		n.stopErr = n.guard.err()
	}
}

// close closes what the disk keeps, when nobody of the node writes there any more.
func (n *Node) close() error {
	n.tasks.Wait()
	return errors.Join(n.guard.durable.Close(), n.release())
}

// endRaft has Raft end, and says when it has.
func (n *Node) endRaft() <-chan error {
	future, ended := n.raft.Shutdown(), make(chan error, 1)
	go func() { ended <- future.Error() }()
	return ended
}

// abandon stops a node whose disk hangs, and Raft's own goroutine in it: nobody hears of this server any more, whoever waits for it is
// released, and what the disk keeps is closed when Raft has ended, as the disk comes back, or by the end of the process.
func (n *Node) abandon(ended <-chan error) {
	n.stopErr = n.guard.err()
	if err := closeTransport(n.transport); err != nil {
		n.logger.Warn("the transport was not closed", "error", err)
	}
	close(n.dead)
	close(n.proposer.dead)
	go func() {
		err := <-ended
		if err = errors.Join(err, n.close()); err != nil {
			n.logger.Warn("what the disk keeps was not closed in order", "error", err)
		}
	}()
}

// finishOutcomes waits until every proposal that was given to Raft has its
// outcome. While Raft runs, that takes no longer than a leader needs to notice
// that it has lost its quorum.
func (n *Node) finishOutcomes() {
	finished := make(chan struct{})
	go func() {
		n.proposer.done.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-time.After(2*n.c.LeaderLeaseTimeout + time.Second):
	}
}

// peersFile is read at the start to recover from a lost quorum.
func (n *Node) peersFile() string { return filepath.Join(n.c.DataDir, raftDir, "peers.json") }

// lostRevisions are skipped when a quorum is lost: the servers that are gone may
// have handed out revisions that this one never saw, to watches and workers that
// go on from them. None must mean two things. It is far more than a cluster
// makes between one contact of a server and the next.
const lostRevisions = 1 << 32
