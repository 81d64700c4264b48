package raftnode

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/disk/platter"
)

// A server that was away for longer than the log reaches back gets a snapshot,
// and waits for an index work on it although the log there is empty.
func TestLaggingServerIsSentASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(c *Config) {
			c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = 100*time.Millisecond, 10, 1
		})
		c.must(namespace())
		away := c.followers()[0]
		c.isolate(away.ID())
		for i := range 50 {
			c.must(create(fmt.Sprint(i), "1"))
		}
		// The last entry is one that the state takes no part in.
		if err := c.leader().AddNonvoter(c.ctx(), "x", "x"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		first, err := c.leader().guard.FirstIndex()
		if err != nil || first < 40 {
			t.Fatalf("the log starts at %d (%v): there was no snapshot", first, err)
		}
		want := c.leader().AppliedIndex()
		c.heal()
		if err := away.WaitApplied(c.ctx(), want); err != nil {
			t.Fatal(err)
		}
		c.same()
	})
}

func TestLargeLogIsSnapshotted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(c *Config) { c.SnapshotLogBytes, c.TrailingLogs = 100<<10, 1 })
		c.must(namespace())
		for i := range 12 {
			c.must(create(fmt.Sprint(i), string(make([]byte, 10<<10))))
		}
		c.eventually("a snapshot", func() bool {
			first, err := c.leader().guard.FirstIndex()
			return err == nil && first > 5
		})
	})
}

// TestSnapshotsAreCutOffAnywhere: wherever a process ends while it writes a snapshot, removes older ones, or drops those that the cluster goes
// on without, the next one starts with what was finished before.
func TestSnapshotsAreCutOffAnywhere(t *testing.T) {
	cut := 0
	for _, drops := range []bool{false, true} {
		for changes := 1; changes < 60; changes++ {
			for seed := range uint64(8) {
				p := platter.New(rand.New(rand.NewPCG(seed, uint64(changes))), "snapshots")
				open := func() (m *platter.Mounted, s *snapshotStore) {
					m = p.Mount()
					files := atomicfile.Files{Disk: m}
					return m, &snapshotStore{SnapshotStore: &snapshotFiles{files: files, dir: "/snapshots", logger: hclog.NewNullLogger()}, files: files, dir: "/snapshots"}
				}
				write := func(s *snapshotStore, index uint64) error {
					sink, err := s.Create(raft.SnapshotVersionMax, index, 1, raft.Configuration{}, 1, nil)
					if err != nil {
						return err
					}
					if _, err := fmt.Fprintf(sink, "the state at %d", index); err != nil {
						return errors.Join(err, sink.Cancel())
					}
					return sink.Close()
				}
				m, s := open()
				for i := range uint64(retainedSnapshots) {
					must(t, write(s, i+1))
				}
				m.Light(changes, func() {})
				least, err := uint64(retainedSnapshots), error(nil)
				if drops {
					least, err = 1, s.dropBeyond(position{1, 1})
				} else if err = write(s, retainedSnapshots+1); err == nil {
					least++
				}
				if err != nil {
					cut++
				}
				m.End()
				if seed%2 == 1 {
					p.LosePower()
				}
				_, s = open()
				if err := s.check(); err != nil {
					t.Fatalf("after %d changes, power lost: %t, the next start: %v", changes, seed%2 == 1, err)
				}
				list, err := s.List()
				must(t, err)
				if len(list) == 0 || list[0].Index < least {
					t.Fatalf("after %d changes there is %v, and there were %d", changes, list, least)
				}
				_, r, err := s.Open(list[0].ID)
				must(t, err)
				must(t, r.Close())
			}
		}
	}
	if cut == 0 {
		t.Error("nothing was cut off")
	}
}

// stubborn is a disk that does not remove some files as long as it is told so.
type stubborn struct {
	disk.Disk
	keeps string // the end of their paths; empty: none
	below string // the part of the path that only those have
}

func (s *stubborn) Remove(path string) error {
	if s.keeps != "" && strings.HasSuffix(path, s.keeps) && strings.Contains(path, s.below) {
		return &fs.PathError{Op: "remove", Path: path, Err: syscall.EIO}
	}
	return s.Disk.Remove(path)
}

// TestRemovalsOfSnapshotsAreTriedAgain: a snapshot that an older one could not be removed for counts, and what is left of that is removed with
// the next; so is one that was begun and could not be cleared away. What is being written meanwhile stays.
func TestRemovalsOfSnapshotsAreTriedAgain(t *testing.T) {
	d := &stubborn{Disk: platter.New(rand.New(rand.NewPCG(1, 1)), "snapshots").Mount()}
	files := atomicfile.Files{Disk: d}
	s := &snapshotStore{SnapshotStore: &snapshotFiles{files: files, dir: "/snapshots", logger: hclog.NewNullLogger()}, files: files, dir: "/snapshots"}
	begin := func(index uint64) raft.SnapshotSink {
		sink, err := s.Create(raft.SnapshotVersionMax, index, 1, raft.Configuration{}, 1, nil)
		must(t, err)
		_, err = fmt.Fprintf(sink, "the state at %d", index)
		must(t, err)
		return sink
	}
	there := func() (names []string) {
		entries, err := files.ReadDir("/snapshots")
		must(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	for i := range uint64(retainedSnapshots) {
		must(t, begin(i+1).Close())
	}
	d.keeps, d.below = snapshotState, "1-1-"
	must(t, begin(retainedSnapshots+1).Close())
	d.keeps, d.below = snapshotState, unfinishedSuffix
	if err := begin(90).Cancel(); err == nil {
		t.Error("what was begun is gone")
	}
	if names := there(); len(names) != retainedSnapshots+2 {
		t.Errorf("nothing could be removed, and there is %q", names)
	}
	d.keeps = ""
	meanwhile := begin(100)
	must(t, begin(retainedSnapshots+2).Close())
	if names := there(); len(names) != retainedSnapshots+1 {
		t.Errorf("of all that was to be removed there is %q", names)
	}
	must(t, meanwhile.Close())
	list, err := s.List()
	must(t, err)
	if len(list) != retainedSnapshots || list[0].Index != 100 || len(there()) != retainedSnapshots {
		t.Errorf("there is %v, %q", list, there())
	}
	must(t, s.check())
}

// withoutFiles is a disk on which no file can be made any more.
type withoutFiles struct{ disk.Disk }

func (d withoutFiles) OpenFile(path string, flag int, mode fs.FileMode) (disk.File, error) {
	if flag&os.O_CREATE != 0 {
		return nil, syscall.ENOSPC
	}
	return d.Disk.OpenFile(path, flag, mode)
}

// TestASnapshotThatIsNotBegunLeavesNothing: each attempt would leave a directory until the next start.
func TestASnapshotThatIsNotBegunLeavesNothing(t *testing.T) {
	p := platter.New(rand.New(rand.NewPCG(1, 1)), "snapshots")
	m := p.Mount()
	defer m.End()
	files := &snapshotFiles{files: atomicfile.Files{Disk: withoutFiles{m}}, dir: "/snapshots", logger: hclog.NewNullLogger()}
	for i := range uint64(3) {
		if _, err := files.Create(raft.SnapshotVersionMax, i+1, 1, raft.Configuration{}, 1, nil); !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	left, err := m.ReadDir("/snapshots")
	must(t, err)
	if len(left) != 0 {
		t.Errorf("%d directories are left", len(left))
	}
}
