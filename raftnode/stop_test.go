package raftnode

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-dev/berth/disk"
)

// stuckDisk does not come back from one kind of call, on files whose path has a part, once it is armed.
type stuckDisk struct {
	disk.OS
	call, part string

	armed   atomic.Bool
	once    sync.Once
	stuck   chan struct{} // closed when a call is stuck
	release chan struct{}
}

func newStuckDisk(call, part string) *stuckDisk {
	return &stuckDisk{call: call, part: part, stuck: make(chan struct{}), release: make(chan struct{})}
}

func (d *stuckDisk) wait(call, path string) {
	named := filepath.Base(filepath.Dir(path)) + "/" + filepath.Base(path) // what is above is named by the test
	if d.armed.Load() && call == d.call && strings.Contains(named, d.part) {
		d.once.Do(func() { close(d.stuck) })
		<-d.release
	}
}

func (d *stuckDisk) OpenFile(path string, flag int, mode fs.FileMode) (disk.File, error) {
	f, err := d.OS.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	return &stuckFile{f, d, path}, nil
}

type stuckFile struct {
	disk.File
	on   *stuckDisk
	path string
}

func (f *stuckFile) Close() error { f.on.wait("close", f.path); return f.File.Close() }
func (f *stuckFile) Sync() error  { f.on.wait("sync", f.path); return f.File.Sync() }
func (f *stuckFile) Write(b []byte) (int, error) {
	f.on.wait("write", f.path)
	return f.File.Write(b)
}

// TestAStopThatHangsInItsEnd: a server that is stopped ends, also where the disk does not come back from the very last that it closes, or from what
// is written beside the log.
func TestAStopThatHangsInItsEnd(t *testing.T) {
	for _, c := range []struct {
		call, part string
		write      func(n *testNode)
	}{
		{"close", promisesFile, nil},
		{"close", logDir, nil},
		{"write", identityFile, func(n *testNode) { _ = n.id.change(func(*identityRecord) {}) }},
		{"sync", snapshotState, func(n *testNode) { _ = n.raft.Snapshot().Error() }},
	} {
		t.Run(c.call+" "+c.part, func(t *testing.T) {
			on, dir := newStuckDisk(c.call, c.part), t.TempDir()
			cl := newCluster(t, 1, func(conf *Config) {
				onDisk(dir)(conf)
				conf.Disk = on
			})
			cl.must(namespace())
			n := cl.nodes["a"]
			on.armed.Store(true)
			var writes sync.WaitGroup
			if c.write != nil {
				writes.Go(func() { c.write(n) })
				<-on.stuck
			}
			ended := make(chan error, 1)
			go func() { ended <- n.Shutdown() }()
			<-on.stuck
			// This is what the watch over the call tells when it takes too long.
			tell := n.disk.hangs.Load()
			(*tell)(&HungError{c.call, c.part, hangSteps * hangStep})
			var hung *HungError
			select {
			case err := <-ended:
				if !errors.As(err, &hung) {
					t.Errorf("it ended with %v", err)
				}
			case <-time.After(time.Minute):
				t.Error("it does not end")
			}
			close(on.release)
			writes.Wait()
			n.stopped.Store(true)
		})
	}
}

// TestNothingIsWrittenOnceItHasStopped: a greeting that is still under way then does not write over what the next process has in the directory.
func TestNothingIsWrittenOnceItHasStopped(t *testing.T) {
	dir := t.TempDir()
	c := newCluster(t, 1, onDisk(dir))
	n := c.nodes["a"]
	c.kill("a")
	if err := n.id.meet("b", copyOf{Incarnation: "of b"}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("it is kept: %v", err)
	}
	again := c.start("a")
	if peers := again.id.record().Peers; len(peers) > 0 {
		t.Errorf("it was written: %v", peers)
	}
}

// TestIdentityAndSnapshotsAreWatched: a disk that does not come back from them is told of; a snapshot may take longer.
func TestIdentityAndSnapshotsAreWatched(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			call, part string
			takes      time.Duration
			write      func(n *testNode) error
		}{
			{"write", identityFile, hangSteps * hangStep, func(n *testNode) error { return n.id.change(func(*identityRecord) {}) }},
			{"sync", snapshotState, patientSteps * hangStep, func(n *testNode) error { return n.raft.Snapshot().Error() }},
		} {
			on := newStuckDisk(c.call, c.part)
			cl := newCluster(t, 1, func(conf *Config) {
				onDisk(dir + c.call)(conf)
				conf.Disk = on
			})
			cl.must(namespace())
			n := cl.nodes["a"]
			on.armed.Store(true)
			began := time.Now()
			go func() { _ = c.write(n) }()
			var hung *HungError
			if err := <-n.Fatal(); !errors.As(err, &hung) || !strings.Contains(hung.Path, c.part) || time.Since(began) != c.takes {
				t.Errorf("%s: after %s it stopped because of %v", c.part, time.Since(began), err)
			}
			_ = n.Shutdown()
			n.stopped.Store(true)
			close(on.release)
			synctest.Wait()
		}
	})
}

// countedSyncs is a file of which only how often it is synced matters.
type countedSyncs struct {
	disk.File
	written, synced int
}

func (f *countedSyncs) Write(b []byte) (int, error) { f.written += len(b); return len(b), nil }
func (f *countedSyncs) Sync() error                 { f.synced++; return nil }

// TestSnapshotsAreSyncedInPieces: no single call of the disk has all of a large one to do.
func TestSnapshotsAreSyncedInPieces(t *testing.T) {
	f := &countedSyncs{}
	p, b := &pieces{to: f}, bytes.Repeat([]byte{1}, 1<<20)
	for range 200 {
		if n, err := p.Write(b); n != len(b) || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := 200 << 20 / snapshotPiece; f.synced != want || f.written != 200<<20 {
		t.Errorf("%d bytes were synced %d times, want %d", f.written, f.synced, want)
	}
}
