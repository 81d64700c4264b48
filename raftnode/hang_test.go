package raftnode

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// hangingDisk does not come back from writes of one node, until it is released.
type hangingDisk struct {
	mu      sync.Mutex
	node    string
	release chan struct{}
}

func (d *hangingDisk) conf(c *Config) {
	id := c.ID
	c.wrapLog = func(next durable) durable { return &hangingLog{durable: next, disk: d, id: id} }
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

type hangingLog struct {
	durable
	disk *hangingDisk
	id   string
}

func (l *hangingLog) StoreLogs(logs []*raft.Log) error {
	l.disk.mu.Lock()
	hangs, release := l.disk.node == l.id, l.disk.release
	l.disk.mu.Unlock()
	if hangs {
		<-release
	}
	return l.durable.StoreLogs(logs)
}

// TestAServerWhoseDiskHangsStops: a disk that does not come back is one that failed. Nobody is left to wait for the server, its leadership goes
// over, and what it had begun acknowledges nothing.
func TestAServerWhoseDiskHangsStops(t *testing.T) {
	for _, leads := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			disk := &hangingDisk{}
			c := newCluster(t, 3, disk.conf)
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
	synctest.Test(t, func(t *testing.T) {
		disk := &hangingDisk{}
		c := newCluster(t, 3, disk.conf)
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
type lateDisk struct {
	durable
	takes time.Duration
}

func (p *lateDisk) StoreLogs([]*raft.Log) error        { <-time.After(p.takes); return nil }
func (p *lateDisk) GetLog(uint64, *raft.Log) error     { <-time.After(p.takes); return nil }
func (p *lateDisk) DeleteRange(_, _ uint64) error      { <-time.After(p.takes); return nil }
func (p *lateDisk) Set(_, _ []byte) error              { <-time.After(p.takes); return nil }
func (p *lateDisk) SetUint64(_ []byte, _ uint64) error { <-time.After(p.takes); return nil }

// TestASlowDiskIsNoFailure: what comes back in time counts, however slow it was, and what comes back later is an error.
func TestASlowDiskIsNoFailure(t *testing.T) {
	const most, mostToDelete = hangSteps * hangStep, deleteSteps * hangStep
	for what, call := range map[string]struct {
		most time.Duration
		call func(g *guard) error
	}{
		"write":  {most, func(g *guard) error { return g.StoreLogs([]*raft.Log{{Index: 1}}) }},
		"read":   {most, func(g *guard) error { return g.GetLog(1, new(raft.Log)) }},
		"delete": {mostToDelete, func(g *guard) error { return g.DeleteRange(1, 2) }},
		"vote":   {most, func(g *guard) error { return g.Set([]byte(keyLastVoteCand), []byte("b")) }},
		"term":   {most, func(g *guard) error { return g.SetUint64([]byte(keyCurrentTerm), 2) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			m, err := newMetrics(nil)
			must(t, err)
			for more, hangs := range map[time.Duration]bool{-time.Second: false, time.Second: true} {
				began := time.Now()
				var after atomic.Int64
				g := newGuard(&lateDisk{takes: call.most + more}, "", func(error) { after.Store(int64(time.Since(began))) }, m)
				err := call.call(g)
				var hung *HungError
				failed := time.Duration(after.Load())
				if errors.As(err, &hung) != hangs || hangs && failed != call.most || !hangs && failed != 0 {
					t.Errorf("%s: one that takes %s ends with %v; the node was told to stop after %s", what, call.most+more, err, failed)
				}
				if hangs && call.call(g) == nil {
					t.Errorf("%s: another call counts", what)
				}
			}
		})
	}
}
