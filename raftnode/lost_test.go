package raftnode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/disk/platter"
	"github.com/berth-dev/berth/raftlog"
)

// lastSegment is the newest file of a server's log.
func lastSegment(t testing.TB, dataDir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dataDir, raftDir, logDir, "*.log"))
	if err != nil || len(found) == 0 {
		t.Fatalf("%v, %v", found, err)
	}
	return found[len(found)-1]
}

// cutLog takes away the entries of a log from one on.
func cutLog(t testing.TB, dataDir string, from uint64) {
	t.Helper()
	log, err := raftlog.Open(filepath.Join(dataDir, raftDir, logDir), raftlog.Options{})
	must(t, err)
	must(t, errors.Join(log.DeleteRange(from, 1<<40), log.Close()))
}

// TestServerThatLostItsLogHasNoVote: whatever part of the log a server has lost,
// it does not help one to lead that has not everything that was acknowledged; and
// once such a one leads it gets everything back, and its vote.
func TestServerThatLostItsLogHasNoVote(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, dir string){
		"the log, and the snapshots are there": func(t *testing.T, dir string) {
			must(t, os.RemoveAll(filepath.Join(dir, raftDir, logDir)))
		},
		"the log and the snapshots": func(t *testing.T, dir string) {
			must(t, os.RemoveAll(filepath.Join(dir, raftDir)))
		},
		"what is in the log": func(t *testing.T, dir string) {
			cutLog(t, dir, 1)
		},
		"the last entry": func(t *testing.T, dir string) {
			log, err := raftlog.Open(filepath.Join(dir, raftDir, logDir), raftlog.Options{})
			must(t, err)
			last, err := log.LastIndex()
			must(t, errors.Join(err, log.DeleteRange(last, last), log.Close()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) { testLost(t, dir, lose) })
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testLost(t *testing.T, dir string, lose func(*testing.T, string)) {
	c := newCluster(t, 3, func(c *Config) {
		onDisk(dir)(c)
		c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = 50*time.Millisecond, 10, 1000
	})
	c.must(namespace())
	for i := range 20 {
		c.must(create(fmt.Sprint("old", i), "1"))
	}
	<-time.After(time.Second) // a snapshot
	away := c.followers()[0].ID()
	c.isolate(away)
	for i := range 8 {
		c.must(create(fmt.Sprint("new", i), "1"))
	}
	leader, loser := c.leader().ID(), ""
	for id := range c.nodes {
		if id != leader && id != away {
			loser = id
		}
	}
	for id := range c.nodes {
		c.kill(id)
	}
	lose(t, filepath.Join(dir, loser))
	clear(c.cut)
	c.start(away)
	lost := c.start(loser)
	if err := lost.promises.mayVote(); !errors.Is(err, errNoVote) {
		t.Fatalf("a server votes that has lost a part of its log: %v", err)
	}
	<-time.After(time.Minute)
	for _, id := range []string{away, loser} {
		if c.nodes[id].Leadership().Leader {
			t.Fatalf("%s leads without what was acknowledged", id)
		}
	}
	c.start(leader)
	c.same()
	for i := range 8 {
		if value(lost.state, fmt.Sprint("new", i)) != "1" {
			t.Errorf("new%d was acknowledged and is gone", i)
		}
	}
	if err := lost.promises.mayVote(); err != nil {
		t.Errorf("no vote though everything is there again: %v", err)
	}
	c.kill(leader)
	c.must(create("after", "1"))
	c.same()
}

// TestOnlyServerThatLostItsLogDoesNotStart: there is nobody to get it from.
func TestOnlyServerThatLostItsLogDoesNotStart(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, onDisk(dir))
		c.must(namespace())
		c.must(create("m", "1"))
		c.kill("a")
		path := filepath.Join(dir, "a", raftDir, logDir)
		log, err := raftlog.Open(path, raftlog.Options{})
		must(t, err)
		last, err := log.LastIndex()
		must(t, errors.Join(err, log.DeleteRange(last, last), log.Close()))
		_, err = c.open("a")
		var damage *DamagedFileError
		if !errors.As(err, &damage) || !strings.Contains(err.Error(), "has lost entries") {
			t.Fatalf("started: %v", err)
		}
		// The operator decides to go on.
		peers := filepath.Join(dir, "a", raftDir, "peers.json")
		must(t, os.WriteFile(peers, []byte(`[{"id": "a", "address": "a"}]`), 0o600))
		c.start("a")
		c.kill("a") // before its first entry: its snapshot is all that it has
		c.start("a")
		c.must(create("m2", "1"))
	})
}

// TestTermIsKeptWithoutTheLog: a server without its log still refuses who leads in
// an older term.
func TestTermIsKeptWithoutTheLog(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, onDisk(dir))
		c.must(namespace())
		id, term := c.followers()[0].ID(), c.leader().Term()
		c.kill(id)
		must(t, os.RemoveAll(filepath.Join(dir, id, raftDir)))
		c.isolate(id)
		if n := c.start(id); n.Term() < term {
			t.Errorf("term %d after %d", n.Term(), term)
		}
		c.heal()
		c.same()
	})
}

// TestDamagedEntryStopsAndHeals: a flipped bit in an entry on the disk is found at
// the start, told with what to do, and done so the entry comes from the others.
func TestDamagedEntryStopsAndHeals(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, onDisk(dir))
		c.must(namespace())
		c.must(create("m", "the right value"))
		c.same()
		victim := c.leader().ID()
		c.kill(victim)
		file := lastSegment(t, filepath.Join(dir, victim))
		b, err := os.ReadFile(file)
		must(t, err)
		at := strings.Index(string(b), "the right value")
		b[at+4] ^= 1
		must(t, os.WriteFile(file, b, 0o600))
		_, err = c.open(victim)
		var damage *raftlog.DamageError
		if !errors.As(err, &damage) || damage.File != file || !strings.Contains(err.Error(), "remove "+filepath.Dir(file)+" and start") {
			t.Fatalf("opened a log with a wrong entry: %v", err)
		}
		must(t, os.RemoveAll(filepath.Dir(file)))
		c.start(victim)
		c.same()
		if got := value(c.nodes[victim].state, "m"); got != "the right value" {
			t.Errorf("the value is %q", got)
		}
	})
}

// rottenLog damages what it reads, once it is told to.
type rottenLog struct {
	durable
	rotten *atomic.Bool
}

func (r *rottenLog) GetLog(index uint64, l *raft.Log) error {
	err := r.durable.GetLog(index, l)
	switch {
	case err != nil || !r.rotten.Load():
	case len(l.Data) == 0:
		l.Term ^= 4
	default:
		data := []byte(string(l.Data))
		data[len(data)/2] ^= 4
		l.Data = data
	}
	return err
}

// TestLeaderSendsNoDamagedEntry: an entry that is not what was stored any more ends
// the leader, and reaches nobody.
func TestLeaderSendsNoDamagedEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rotten := map[string]*atomic.Bool{"a": {}, "b": {}, "c": {}}
		c := newCluster(t, 3, func(c *Config) {
			c.wrapLog = func(d durable) durable { return &rottenLog{d, rotten[c.ID]} }
		})
		c.must(namespace())
		away, leader := c.followers()[0], c.leader()
		c.isolate(away.ID())
		for i := range 5 {
			c.must(create(fmt.Sprint(i), "1"))
		}
		must(t, leader.log.cache.DeleteRange(1<<40, 1<<40)) // nothing is kept in memory
		rotten[leader.ID()].Store(true)
		c.heal()
		err := <-leader.Fatal()
		if !errors.Is(err, errSeal) {
			t.Errorf("the leader stopped because of %v", err)
		}
		must(t, leader.Shutdown())
		leader.stopped.Store(true)
		c.connect()
		c.must(create("after", "1"))
		c.same()
		if value(away.state, "4") != "1" {
			t.Error("an entry was lost")
		}
	})
}

// askedOf is what a server tells whom it meets, in a goroutine of its own that must not be ended by what it reads.
func askedOf(n *Node) (h host, told bool) {
	tells := make(chan host)
	go func() {
		defer close(tells)
		tells <- n.host()
	}()
	h, told = <-tells
	return h, told
}

// TestLeaderEndsWhoeverItSendsTo: an entry that is not what was stored is found by whoever sends
// new entries to a follower that keeps up, while another goroutine waits for the answers. The server ends all the same.
func TestLeaderEndsWhoeverItSendsTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rotten := map[string]*atomic.Bool{"a": {}, "b": {}, "c": {}}
		c := newCluster(t, 3, func(c *Config) {
			c.wrapLog = func(d durable) durable { return &rottenLog{d, rotten[c.ID]} }
		})
		c.must(namespace())
		c.must(create("m", "1"))
		leader := c.leader()
		if !leader.host().Founder {
			must(t, leader.TransferLeadership(c.ctx(), "a"))
			leader = c.leader()
		}
		synctest.Wait() // everybody has it, and waits for the next
		must(t, leader.log.cache.DeleteRange(1<<40, 1<<40))
		rotten[leader.ID()].Store(true)
		if h, told := askedOf(leader.Node); !told || h.second != 0 {
			t.Errorf("it is asked for its standing, and tells (%t) %+v", told, h)
		}
		_, _ = leader.ProposeAsync(create("n", "1")) // what becomes of it says the next leader
		if err := <-leader.Fatal(); !errors.Is(err, errSeal) {
			t.Errorf("the leader stopped because of %v", err)
		}
		must(t, leader.Shutdown())
		leader.stopped.Store(true)
		c.connect()
		c.must(create("after", "1"))
		c.same()
	})
}

// TestDamagedEntryFromAnotherServer is not stored, and does not end the one it is
// sent to.
func TestDamagedEntryFromAnotherServer(t *testing.T) {
	good := &raft.Log{Index: 7, Term: 2, Type: raft.LogCommand, Data: []byte("a command")}
	must(t, seal(good))
	for name, change := range map[string]func(*raft.Log){
		"index":    func(l *raft.Log) { l.Index++ },
		"term":     func(l *raft.Log) { l.Term++ },
		"type":     func(l *raft.Log) { l.Type = raft.LogNoop },
		"data":     func(l *raft.Log) { l.Data = []byte("a commanD") },
		"no data":  func(l *raft.Log) { l.Data = nil },
		"seal":     func(l *raft.Log) { l.Extensions = append([]byte{sealEntry}, make([]byte, 8)...) },
		"no seal":  func(l *raft.Log) { l.Extensions = nil },
		"no place": func(l *raft.Log) { l.Extensions = sealOfData(l.Data) },
		"":         func(*raft.Log) {},
	} {
		l := *good
		change(&l)
		g := &gate{mayVote: func() error { return nil }}
		_, err := g.refuse(&raft.AppendEntriesRequest{Entries: []*raft.Log{good, &l}})
		if errors.Is(err, errSeal) != (name != "") {
			t.Errorf("%s: %v", name, err)
		}
	}
	proposed := &raft.Log{Data: []byte("a commanD"), Extensions: sealOfData([]byte("a command"))}
	if err := seal(proposed); !errors.Is(err, errSeal) {
		t.Errorf("a proposal that changed on its way to the log: %v", err)
	}
}

// TestPromisesAreKept: whatever single slot is damaged, term and vote are there.
func TestPromisesAreKept(t *testing.T) {
	for slot := range 2 {
		dir := t.TempDir()
		p, err := openPromises(atomicfile.Files{Disk: disk.OS{}}, dir, "a", true, false)
		must(t, err)
		for term := uint64(1); term < 8; term++ {
			must(t, errors.Join(p.SetUint64([]byte(keyCurrentTerm), term), p.SetUint64([]byte(keyLastVoteTerm), term), p.Set([]byte(keyLastVoteCand), []byte("b"))))
			must(t, p.acknowledge([]*raft.Log{{Index: term * 10, Term: term}}))
		}
		must(t, p.close())
		path := filepath.Join(dir, promisesFile)
		b, err := os.ReadFile(path)
		must(t, err)
		b[slot*slotBytes+30] ^= 1
		must(t, os.WriteFile(path, b, 0o600))
		p, err = openPromises(atomicfile.Files{Disk: disk.OS{}}, dir, "a", false, false)
		must(t, err)
		if r := p.record(); r.Term != 7 || r.VoteTerm != 7 || string(r.Vote) != "b" || r.Acknowledged.Term < 6 {
			t.Errorf("with slot %d damaged: %+v", slot, r)
		}
		must(t, p.close())
		b[(1-slot)*slotBytes+30] ^= 1
		must(t, os.WriteFile(path, b, 0o600))
		var damage *DamagedFileError
		if _, err := openPromises(atomicfile.Files{Disk: disk.OS{}}, dir, "a", false, false); !errors.As(err, &damage) || damage.File != path {
			t.Errorf("with both slots damaged: %v", err)
		}
	}
}

// TestCacheIsBoundedByBytes: however large entries are.
func TestCacheIsBoundedByBytes(t *testing.T) {
	c := newCache(raft.NewInmemStore(), 10_000)
	for i := uint64(1); i <= 200; i++ {
		size := int(i % 7 * 1000)
		must(t, c.StoreLog(&raft.Log{Index: i, Data: make([]byte, size)}))
		if c.bytes > c.limit {
			t.Fatalf("%d bytes are kept", c.bytes)
		}
		total := 0
		for _, l := range c.entries {
			total += cost(l)
		}
		var got raft.Log
		if err := c.GetLog(i, &got); total != c.bytes || err != nil || len(got.Data) != size {
			t.Fatalf("entry %d: %v, %d bytes; %d of %d counted", i, err, len(got.Data), c.bytes, total)
		}
		if _, index, ok := c.newest(); !ok || index != i {
			t.Fatalf("the newest entry is said to be %d, and is %d", index, i)
		}
	}
	must(t, c.StoreLog(&raft.Log{Index: 300, Data: make([]byte, 20_000)}))
	if len(c.entries) != 0 || c.bytes != 0 {
		t.Errorf("an entry beyond the bound is kept")
	}
	if _, index, ok := c.newest(); ok {
		t.Errorf("entry %d is said to be the newest, and 300 is", index)
	}
	must(t, c.DeleteRange(1, 300))
	if err := c.GetLog(300, new(raft.Log)); err == nil {
		t.Error("a deleted entry is given out")
	}
}

// TestSnapshotThatCanNotBeRestored: a server that has lost its log and is sent a snapshot that nobody can read has neither the
// data nor its vote.
func TestSnapshotThatCanNotBeRestored(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, onDiskWithSnapshots(dir, 10, 1, 4000))
		c.must(namespace())
		for i := range 30 {
			c.must(create(fmt.Sprint(i), "1"))
		}
		<-time.After(time.Second) // a snapshot
		c.same()
		id := c.followers()[0].ID()
		c.kill(id)
		must(t, os.RemoveAll(filepath.Join(dir, id, raftDir)))
		c.isolate(id)
		lost := c.start(id)
		list, err := c.leader().snapshots(t).List()
		must(t, err)
		meta, r, err := c.leader().snapshots(t).Open(list[0].ID)
		must(t, err)
		whole, err := io.ReadAll(r)
		must(t, errors.Join(err, r.Close()))
		send := func(state []byte) error {
			req := &raft.InstallSnapshotRequest{
				RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, SnapshotVersion: raft.SnapshotVersionMax,
				Term: lost.Term(), Leader: []byte(c.leader().ID()), LastLogIndex: meta.Index, LastLogTerm: meta.Term,
				Configuration: raft.EncodeConfiguration(meta.Configuration), ConfigurationIndex: meta.ConfigurationIndex, Size: int64(len(state)),
			}
			answer := make(chan raft.RPCResponse, 1)

			lost.Node.transport.(*gate).requests <- raft.RPC{Command: req, Reader: bytes.NewReader(state), RespChan: answer}
			return (<-answer).Error
		}
		spoilt := bytes.Clone(whole)
		spoilt[len(spoilt)/2] ^= 1
		if err := send(spoilt); err == nil {
			t.Fatal("a snapshot with a flipped bit was restored")
		}
		if have := lost.promises.position(); !errors.Is(lost.promises.mayVote(), errNoVote) || have != (position{}) {
			t.Errorf("it counts as having its log up to %s, and may vote: %v", have, lost.promises.mayVote())
		}
		<-time.After(time.Second) // a snapshot is named by its time
		must(t, send(whole))
		if have := lost.promises.position(); have != (position{meta.Term, meta.Index}) {
			t.Errorf("with the snapshot it has its log up to %s", have)
		}
		c.heal()
		c.same()
	})
}

// snapshots are those of a server that runs.
func (n *testNode) snapshots(t testing.TB) *snapshotStore {
	t.Helper()
	dir := filepath.Join(n.c.DataDir, raftDir, snapshotsDir)
	return &snapshotStore{SnapshotStore: &snapshotFiles{files: n.c.files(), dir: dir, logger: n.logger}, files: n.c.files(), dir: dir}
}

// TestFurthestServerIsOutvoted: of the servers that are left after a lost quorum those lead that lack what the furthest has. It
// goes back to what they have, also when it starts again, and says of no entry of before that it was applied.
func TestFurthestServerIsOutvoted(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, onDiskWithSnapshots(dir, 10, 1, 4000))
		c.must(namespace())
		for i := range 15 {
			c.must(create(fmt.Sprint(i), "1"))
		}
		c.same()
		furthest := c.leader().ID()
		behind := []string{c.followers()[0].ID(), c.followers()[1].ID()}
		for _, id := range behind {
			c.isolate(id)
		}
		for i := range 60 {
			c.must(create(fmt.Sprint("lost", i), "1"))
			if i%20 == 0 {
				<-time.After(time.Second) // a snapshot
			}
		}
		for id := range c.nodes {
			c.kill(id)
		}
		reached := c.nodes[furthest].machine.appliedIndex()
		var peers []string
		left := append(behind, furthest)
		for _, id := range left {
			peers = append(peers, fmt.Sprintf(`{"id": %q, "address": %[1]q}`, id))
		}
		for id := range c.nodes {
			if slices.Contains(left, id) {
				must(t, os.WriteFile(filepath.Join(dir, id, raftDir, "peers.json"), []byte("["+strings.Join(peers, ",")+"]"), 0o600))
			} else {
				delete(c.nodes, id)
			}
		}
		clear(c.cut)
		c.start(behind[0])
		c.start(behind[1])
		c.must(create("after", "1"))
		n := c.start(furthest)
		c.eventually("the furthest to follow the others", func() bool { return value(n.state, "after") == "1" })
		c.same()
		if at, state := n.AppliedIndex(), n.state.View().Index(); at != state || at >= reached {
			t.Errorf("it says that entry %d was applied, and its state is that of %d; it had reached %d", at, state, reached)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.WaitApplied(ctx, n.AppliedIndex()+1); err == nil {
			t.Error("an entry counts as applied that is not there yet")
		}
		c.kill(furthest)
		c.must(create("later", "1"))
		n = c.start(furthest)
		c.same()
		if value(n.state, "lost59") != "" || value(n.state, "later") != "1" {
			t.Error("it goes on with what the cluster does not have")
		}
	})
}

// TestPromisesThatAreReadOutlastALossOfPower: what a process that was killed had written and maybe not synced, and the next one has read, is
// there also when the power goes then.
func TestPromisesThatAreReadOutlastALossOfPower(t *testing.T) {
	read := 0
	for changes := 1; changes < 4; changes++ {
		for seed := range uint64(40) {
			p := platter.New(rand.New(rand.NewPCG(seed, uint64(changes))), "data")
			open := func(fresh bool) (m *platter.Mounted, of *promises) {
				m = p.Mount()
				of, err := openPromises(atomicfile.Files{Disk: m}, "/data", "a", fresh, false)
				must(t, err)
				return m, of
			}
			m, of := open(true)
			must(t, of.SetUint64([]byte(keyCurrentTerm), 3))
			m.Light(changes, func() {})
			_ = of.SetUint64([]byte(keyCurrentTerm), 4)
			m.End()
			_ = of.close() // its disk is gone
			m, of = open(false)
			known := of.record().Term
			m.End()
			_ = of.close()
			p.LosePower()
			_, of = open(false)
			left := of.record().Term
			must(t, of.close())
			if left < known {
				t.Fatalf("after %d changes it was in term %d, and without power in term %d", changes, known, left)
			}
			if known == 4 {
				read++
			}
		}
	}
	if read == 0 {
		t.Error("nobody read what was written when he was killed")
	}
}
