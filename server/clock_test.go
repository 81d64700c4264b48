package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/fsm"
)

// testClocks are a machine's clocks, which a test can put forward.
type testClocks struct {
	process clock.Source

	mu            sync.Mutex
	wall, elapsed time.Duration
}

func newTestClocks() *testClocks { return &testClocks{process: clock.Process()} }

func (c *testClocks) read() clock.Reading {
	r := c.process()
	c.mu.Lock()
	defer c.mu.Unlock()
	r.WallUnixNano += int64(c.wall)
	r.Elapsed += c.elapsed
	return r
}

// sleep is what a server finds that did not run for so long.
func (c *testClocks) sleep(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += d
	c.elapsed += d
}

// set sets the wall clock.
func (c *testClocks) set(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += by
}

func readyCondition(v *fsm.View, node string) (out corev1.NodeCondition) {
	n, ok := v.Nodes.Get(node)
	if !ok {
		return out
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out = c
		}
	}
	return out
}

// A server that slept counts its own sleep, and not the workers' silence: nobody
// is taken for lost, not even for a moment.
func TestASleepIsNotTheWorkersSilence(t *testing.T) {
	clocks := newTestClocks()
	c := newTestCluster(t)
	s := c.start("a", func(cfg *Config) { cfg.BootstrapExpect, cfg.Clock = 1, clocks.read })
	c.leader()
	_, stop := connect(t, "w", s)
	defer stop()
	heardSince := func(unixNano int64) func() bool {
		return func() bool {
			at, ok := s.beats.LastSeenUnixNano("w")
			return ok && at >= unixNano
		}
	}
	eventually(t, "the worker's stream to be reported", heardSince(0))
	before := readyCondition(s.View(), "w")
	for range 2 {
		clocks.sleep(264 * time.Second)
		awake := s.NowUnixNano()
		eventually(t, "the worker to be heard again", heardSince(awake))
	}
	// The entries since then are stamped with the time after the sleep.
	c.propose(s, namespace("after"))
	after := readyCondition(s.View(), "w")
	if after.Status != corev1.ConditionTrue || !after.LastTransitionTime.Equal(&before.LastTransitionTime) {
		t.Errorf("the node was %v, and is %v: it was taken for lost", before, after)
	}
	since := metav1.NewTime(time.Unix(0, s.View().TimeUnixNano()))
	if passed := since.Sub(before.LastTransitionTime.Time); passed < 2*264*time.Second {
		t.Errorf("the state's time did not pass with the sleep: %s", passed)
	}
}

// again starts a server that was stopped where it was reached for consensus.
func (c *testCluster) again(stopped *Server, change func(cfg *Config)) *Server {
	addr := stopped.config.RaftAddr
	return c.start(stopped.Name(), func(cfg *Config) {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			c.t.Fatal(err)
		}
		_ = cfg.Raft.Close()
		cfg.Raft, cfg.RaftAddr = l, addr
		change(cfg)
	})
}

// lockedBuffer is a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// After an outage of all servers the state's time is put forward to the time of day,
// and the log says from when to when and by how much.
func TestAnOutageOfAllIsMadeUpFor(t *testing.T) {
	c := newTestCluster(t)
	s := c.start("a", func(cfg *Config) { cfg.BootstrapExpect = 1 })
	c.leader()
	c.propose(s, namespace("before"))
	last := s.View().TimeUnixNano()
	c.stop(s)
	clocks, log := newTestClocks(), new(lockedBuffer)
	clocks.set(time.Hour) // so long it was away
	s = c.again(s, func(cfg *Config) {
		cfg.Clock, cfg.Logger = clocks.read, hclog.New(&hclog.LoggerOptions{Output: log})
	})
	eventually(t, "the state's time to be put forward", func() bool { return time.Duration(s.NowUnixNano()-last) > 59*time.Minute })
	for _, want := range []string{
		"no server was found that has lived with the state", "from=" + `"` + time.Unix(0, last).UTC().Format("2006-01-02 15:"), "to=", "by=1h0m",
	} {
		eventually(t, "the log to say "+want, func() bool { return strings.Contains(log.String(), want) })
	}
}

// Two of three come back with clocks that are an hour ahead. They agree, and one of
// them leads; but one server has lived on, and knows how long it was.
func TestAServerThatLivedOnIsBelieved(t *testing.T) {
	c := newTestCluster(t)
	for _, name := range []string{"a", "b", "c"} {
		c.start(name, func(cfg *Config) { cfg.BootstrapExpect = 3 })
	}
	c.propose(c.leader(), namespace("before"))
	wrong := c.followers()
	lived := c.leader()
	before := lived.NowUnixNano()
	for _, s := range wrong {
		c.stop(s)
	}
	for _, s := range wrong {
		clocks := newTestClocks()
		clocks.set(time.Hour)
		c.again(s, func(cfg *Config) { cfg.Clock = clocks.read })
	}
	eventually(t, "one of the others to lead", func() bool { return c.leader() != lived })
	leader := c.leader()
	eventually(t, "it to know the state's time", func() bool { _, ok := leader.node.Clock().Followed(); return ok })
	c.propose(leader, namespace("after"))
	if passed := time.Duration(leader.View().TimeUnixNano() - before); passed < 0 || passed > 30*time.Minute {
		t.Errorf("meanwhile the state's time went on by %s", passed)
	}
}

// What goes by a server's wall clock is begun when that was compared with the others',
// and ends at once when it is set far off.
func TestWhatGoesByTheWallClock(t *testing.T) {
	c := newTestCluster(t)
	clocks := map[string]*testClocks{}
	for _, name := range []string{"a", "b", "c"} {
		clocks[name] = newTestClocks()
		c.start(name, func(cfg *Config) { cfg.BootstrapExpect, cfg.Clock = 3, clocks[name].read })
	}
	s := c.followers()[0]
	if !s.awaitClock(t.Context()) {
		t.Fatal("its clock is right, and is not gone by")
	}
	running := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- s.whileClockIsRight(t.Context(), func(ctx context.Context) error {
			close(running)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	<-running
	clocks[s.Name()].set(time.Hour)
	if _, _, err := s.newFence(s.begin(t.Context())).enter(t.Context()); !errors.Is(err, errAstray) {
		t.Errorf("as soon as its clock is set, a write is let through: %v", err)
	}
	if err := <-ended; !errors.Is(err, errAstray) {
		t.Errorf("what ran by it ended with %v", err)
	}
	waiting, giveUp := context.WithCancel(t.Context())
	begun := make(chan bool, 1)
	go func() { begun <- s.awaitClock(waiting) }()
	eventually(t, "its clock to be compared", func() bool { f := s.standing.Load(); return f.astray && f.compared })
	giveUp()
	if <-begun {
		t.Error("with a clock that is an hour ahead it begins")
	}
	clocks[s.Name()].set(-time.Hour)
	if !s.awaitClock(t.Context()) {
		t.Error("its clock was put right, and is not gone by")
	}
	if alone := c.start("d", nil); alone.compared() {
		t.Error("one that has not compared its clock with anybody's begins")
	}
}

// compared: as awaitClock finds it.
func (s *Server) compared() bool {
	s.compareClock()
	return s.standing.Load().compared
}

const jobWithDeadline = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":%q},"spec":{"activeDeadlineSeconds":600,
"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"main","image":"none"}]}}}}`

// A leader whose clock is set an hour ahead fails no Job before it hands over.
func TestAWrongClockFailsNoJob(t *testing.T) {
	c := newTestCluster(t)
	clocks := map[string]*testClocks{}
	for _, name := range []string{"a", "b", "c"} {
		clocks[name] = newTestClocks()
		c.start(name, func(cfg *Config) { cfg.BootstrapExpect, cfg.Clock = 3, clocks[name].read })
	}
	const path = "/apis/batch/v1/namespaces/default/jobs"
	job := func(v *fsm.View, name string) *batchv1.Job {
		o, ok := v.Objects.Get(fsm.ObjectKey("jobs", "default", name))
		if !ok {
			return new(batchv1.Job)
		}
		return o.Value.(*batchv1.Job)
	}
	create := func(s *Server, name string) {
		if code, body := c.call(s, http.MethodPost, path, fmt.Sprintf(jobWithDeadline, name), true); code != http.StatusCreated {
			t.Fatalf("%d %s", code, body)
		}
		await(t, s, "Job "+name+" to be begun", func(v *fsm.View) bool { return job(v, name).Status.StartTime != nil && job(v, name).Status.Active > 0 })
	}
	wrong := c.leader()
	create(wrong, "first")
	clocks[wrong.Name()].set(time.Hour)
	eventually(t, "another leader", func() bool { return c.leader() != wrong })
	create(c.leader(), "second")
	if conditions := job(c.leader().View(), "first").Status.Conditions; len(conditions) > 0 {
		t.Errorf("the first Job has %+v", conditions)
	}
}
