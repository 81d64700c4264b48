package raftnode

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/disk"
)

// hangingDisk does not come back from writes of one node, until it is released.
type hangingDisk struct {
	mu      sync.Mutex
	node    string
	release chan struct{}
}

func (d *hangingDisk) conf(dir string) func(*Config) {
	return func(c *Config) {
		onDisk(dir)(c)
		c.Disk = &onHanging{disk.OS{}, d, c.ID}
	}
}

func (d *hangingDisk) hang(node string) (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.node, d.release = node, make(chan struct{})
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.node = ""
		close(d.release)
	}
}

// onHanging is the disk as a node sees it.
type onHanging struct {
	disk.OS
	disk *hangingDisk
	id   string
}

func (d *onHanging) OpenFile(path string, flag int, mode fs.FileMode) (disk.File, error) {
	f, err := d.OS.OpenFile(path, flag, mode)
	return &hangingFile{f, d}, err
}

type hangingFile struct {
	disk.File
	on *onHanging
}

func (f *hangingFile) WriteAt(b []byte, at int64) (int, error) {
	f.on.disk.mu.Lock()
	hangs, release := f.on.disk.node == f.on.id, f.on.disk.release
	f.on.disk.mu.Unlock()
	if hangs {
		<-release
	}
	return f.File.WriteAt(b, at)
}

// TestAServerWhoseDiskHangsStops: a disk that does not come back is one that failed. Nobody is left to wait for the server, its leadership goes
// over, and what it had begun acknowledges nothing.
func TestAServerWhoseDiskHangsStops(t *testing.T) {
	for _, leads := range []bool{true, false} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			disk := &hangingDisk{}
			c := newCluster(t, 3, disk.conf(dir))
			c.must(namespace())
			c.must(create("m", "1"))
			victim := c.leader()
			if !leads {
				victim = c.followers()[0]
			}
			release := disk.hang(victim.ID())
			began := time.Now()
			waited := make(chan error, 1)
			if leads {
				ctx := c.ctx()
				go func() {
					_, _, err := victim.Propose(ctx, put("m", "2"))
					waited <- err
				}()
			} else {
				c.must(create("other", "1"))
				ctx, far := c.ctx(), c.leader().AppliedIndex()+100
				go func() { waited <- victim.WaitApplied(ctx, far) }()
			}
			var hung *HungError
			if err := <-victim.Fatal(); !errors.As(err, &hung) {
				t.Errorf("the node stopped because of %v", err)
			}
			if err := <-waited; leads && !errors.Is(err, ErrUnknownOutcome) || err == nil {
				t.Errorf("who waited for it is told %v", err)
			}
			if err := victim.Shutdown(); !errors.As(err, &hung) {
				t.Errorf("it ended with %v", err)
			}
			victim.stopped.Store(true)
			c.connect()
			next := c.leader()
			if took := time.Since(began); leads && took > hangSteps*hangStep+victim.c.HeartbeatTimeout {
				t.Errorf("the next leader was ready after %s", took)
			}
			if next.ID() == victim.ID() {
				t.Error("it leads on")
			}
			c.must(put("m", "3"))
			c.same()
			release()
			synctest.Wait()
		})
	}
}

// TestAServerThatIsStoppedWhileItsDiskHangs ends, although it is stopped before it is known that the disk hangs.
func TestAServerThatIsStoppedWhileItsDiskHangs(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		disk := &hangingDisk{}
		c := newCluster(t, 3, disk.conf(dir))
		c.must(namespace())
		c.must(create("m", "1"))
		victim := c.leader()
		release := disk.hang(victim.ID())
		ctx := c.ctx()
		go func() { _, _, _ = victim.Propose(ctx, put("m", "2")) }()
		<-time.After(hangStep)
		var hung *HungError
		if err := victim.Shutdown(); !errors.As(err, &hung) {
			t.Errorf("it ended with %v", err)
		}
		victim.stopped.Store(true)
		c.connect()
		if next := c.leader(); next.ID() == victim.ID() {
			t.Error("it leads on")
		}
		c.must(put("m", "3"))
		c.same()
		release()
		synctest.Wait()
	})
}

// lateDisk is a disk of which every call takes a while.
type lateDisk struct{ takes time.Duration }

func (d *lateDisk) late() error { <-time.After(d.takes); return nil }

func (d *lateDisk) OpenFile(string, int, fs.FileMode) (disk.File, error) {
	return &lateFile{disk: d}, d.late()
}
func (d *lateDisk) Mkdir(string, fs.FileMode) error       { return d.late() }
func (d *lateDisk) Remove(string) error                   { return d.late() }
func (d *lateDisk) Rename(string, string) error           { return d.late() }
func (d *lateDisk) Lstat(string) (fs.FileInfo, error)     { return nil, d.late() }
func (d *lateDisk) ReadDir(string) ([]fs.DirEntry, error) { return nil, d.late() }

type lateFile struct {
	disk.File
	disk *lateDisk
}

func (f *lateFile) Read([]byte) (int, error)           { return 0, f.disk.late() }
func (f *lateFile) ReadAt([]byte, int64) (int, error)  { return 0, f.disk.late() }
func (f *lateFile) Write([]byte) (int, error)          { return 0, f.disk.late() }
func (f *lateFile) WriteAt([]byte, int64) (int, error) { return 0, f.disk.late() }
func (f *lateFile) Stat() (fs.FileInfo, error)         { return nil, f.disk.late() }
func (f *lateFile) Chmod(fs.FileMode) error            { return f.disk.late() }
func (f *lateFile) Truncate(int64) error               { return f.disk.late() }
func (f *lateFile) Reserve(int64) error                { return f.disk.late() }
func (f *lateFile) Sync() error                        { return f.disk.late() }
func (f *lateFile) Close() error                       { return f.disk.late() }

// TestASlowDiskIsNoFailure: what comes back in time is told to nobody, however slow it was and however much of it there is; what does not, is
// once, by what it was.
func TestASlowDiskIsNoFailure(t *testing.T) {
	const most, path = hangSteps * hangStep, "/data/f"
	synctest.Test(t, func(t *testing.T) {
		var told []string
		began := time.Now()
		hangs := func(err *HungError) {
			if took := time.Since(began); took != most {
				t.Errorf("%v: after %s", err, took)
			}
			told = append(told, err.What+" "+err.Path)
		}
		late := &lateDisk{}
		d := watchDisk(late)
		d.hangs.Store(&hangs)
		f, err := d.OpenFile(path, 0, 0)
		must(t, err)
		for _, call := range []struct {
			what string
			call func() error
		}{
			{"open", func() error { _, err := d.OpenFile(path, 0, 0); return err }},
			{"make", func() error { return d.Mkdir(path, 0) }},
			{"remove", func() error { return d.Remove(path) }},
			{"rename", func() error { return d.Rename(path, "") }},
			{"look at", func() error { _, err := d.Lstat(path); return err }},
			{"list", func() error { _, err := d.ReadDir(path); return err }},
			{"read", func() error { _, err := f.Read(nil); return err }},
			{"read", func() error { _, err := f.ReadAt(nil, 0); return err }},
			{"write", func() error { _, err := f.Write(nil); return err }},
			{"write", func() error { _, err := f.WriteAt(nil, 0); return err }},
			{"look at", func() error { _, err := f.Stat(); return err }},
			{"change", func() error { return f.Chmod(0) }},
			{"cut", func() error { return f.Truncate(0) }},
			{"make room in", func() error { return f.Reserve(0) }},
			{"sync", f.Sync},
			{"close", f.Close},
		} {
			for _, takes := range []time.Duration{most - time.Second, most - time.Second, most + time.Second, 20 * most} {
				told, began, late.takes = nil, time.Now(), takes
				must(t, call.call())
				if want := []string{call.what + " " + path}; takes < most && told != nil || takes > most && !slices.Equal(told, want) {
					t.Errorf("%s that takes %s: told was %q", call.what, takes, told)
				}
			}
		}
	})
}

// comesLate is a log on a disk that hangs within every call, and comes back.
type comesLate struct {
	durable
	hang func()
}

func (l *comesLate) StoreLogs([]*raft.Log) error    { l.hang(); return nil }
func (l *comesLate) GetLog(uint64, *raft.Log) error { l.hang(); return nil }
func (l *comesLate) DeleteRange(_, _ uint64) error  { l.hang(); return nil }
func (l *comesLate) Set(_, _ []byte) error          { l.hang(); return nil }
func (l *comesLate) SetUint64([]byte, uint64) error { l.hang(); return nil }

// TestWhatComesBackLateCountsForNothing: neither it nor what would come after it.
func TestWhatComesBackLateCountsForNothing(t *testing.T) {
	m, err := newMetrics(nil)
	must(t, err)
	for what, call := range map[string]func(g *guard) error{
		"write":  func(g *guard) error { return g.StoreLogs([]*raft.Log{{Index: 1}}) },
		"read":   func(g *guard) error { return g.GetLog(1, new(raft.Log)) },
		"delete": func(g *guard) error { return g.DeleteRange(1, 2) },
		"vote":   func(g *guard) error { return g.Set([]byte(keyLastVoteCand), []byte("b")) },
		"term":   func(g *guard) error { return g.SetUint64([]byte(keyCurrentTerm), 2) },
	} {
		log, failed := &comesLate{}, 0
		g := newGuard(log, "", func(error) { failed++ }, m)
		log.hang = func() { g.hang(&HungError{"sync", "/data/f", hangSteps * hangStep}) }
		for range 2 {
			var hung *HungError
			if err := call(g); !errors.As(err, &hung) || failed != 1 {
				t.Errorf("%s ends with %v; the node was stopped %d times", what, err, failed)
			}
		}
	}
}
