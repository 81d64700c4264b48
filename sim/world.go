package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/disk/platter"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/server"
	"github.com/berth-dev/berth/worker"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// Config says what a world is made of.
type Config struct {
	Seed     uint64
	Dir      string // where the machines' files are
	Servers  int
	Pace     pace
	Earlier  bool        // half of the servers are of earlier versions, until they are upgraded
	Restores bool        // the operator restores snapshots
	Forgets  bool        // a server loses its log, once for certain
	Recovers bool        // a quorum is lost for good, and the operator goes on with what is left
	Level    hclog.Level // of what servers and workers log into the story
}

// The ports of every server.
const (
	httpPort = 6443
	rpcPort  = 4646
	raftPort = 4647
)

// World is a cluster, its machines and its clients.
type World struct {
	config  Config
	rand    *rand.Rand
	story   *story
	checker *checker
	dark    time.Duration // until then no server is started
	network *network
	ca      *pki.CA
	logger  hclog.Logger

	servers []*machine
	workers []*node
	faults  int
	losing  bool             // one is about to lose its log
	quiet   time.Duration    // until then no fault happens
	then    *platter.Platter // the disk of who went on alone, when it was alone
	// operator takes servers out of the cluster.
	operator *user
	tasks    []task
	// doomed is for how long whoever leads is away that acknowledges a write next; 0: nobody is.
	doomed atomic.Int64
}

// machine is one that a server runs on, now and then.
type machine struct {
	world *World
	name  string
	ip    string
	tls   *pki.Source
	lives int
	began time.Time // the present life
	dying bool      // its end has begun

	led    leadership
	wrong  time.Time              // when clocks were wrong last
	strays map[endpoint]time.Time // of the service, since when; nil: it does not lead
	term   uint64                 // the newest that it was seen in
	knows  int                    // the newest version of the log's rules that its binary knows
	goes   int                    // that of the binary of its last life
	rotten string                 // the file of which a bit has flipped while it did not run

	early bool // its disk was put back to when it was alone, a while ago

	awaits atomic.Bool   // it loses its power when it comes into another term
	calm   atomic.Bool   // it does so no more
	fell   atomic.Bool   // it has, and the world has not seen it yet
	fallen time.Duration // for so long
	dark   bool          // with its power

	platter *platter.Platter

	mu     sync.Mutex
	skew   time.Duration // of its wall clock, when it was set last
	set    time.Time
	drift  time.Duration // by how much it goes ahead in a second
	failed error         // why the present life has given up

	host   *host
	disk   *platter.Mounted
	server *server.Server // nil: it does not run
	cancel context.CancelFunc
}

// New makes a world. It must be called in a bubble of testing/synctest, as must
// everything else.
func New(c Config, s *story) (*World, error) {
	ca, err := pki.NewCA(time.Now(), 0)
	if err != nil {
		return nil, err
	}
	w := &World{config: c, rand: rand.New(rand.NewPCG(c.Seed, 2)), story: s, checker: newChecker(s), network: newNetwork(c.Seed, s), ca: ca}
	w.logger = hclog.New(&hclog.LoggerOptions{Level: c.Level, Output: s, DisableTime: true})
	for i := range c.Servers {
		m := &machine{world: w, name: string(rune('a' + i)), ip: fmt.Sprintf("10.0.0.%d", i+1), platter: w.newPlatter(10 + i), knows: fsm.LogVersion}
		if c.Earlier && i%2 == 0 {
			m.knows = 1 + w.rand.IntN(fsm.LogVersion-1)
		}
		if m.tls, err = w.issue(pki.Server, m.name); err != nil {
			return nil, err
		}
		w.servers = append(w.servers, m)
	}
	for i := range c.Pace.workers {
		n, err := w.newNode(i)
		if err != nil {
			return nil, err
		}
		w.workers = append(w.workers, n)
	}
	return w, nil
}

func (w *World) issue(kind pki.Kind, name string, groups ...string) (*pki.Source, error) {
	r := pki.Request{Kind: kind, Name: name, Groups: groups}
	if kind == pki.Server {
		for _, ip := range w.addresses() {
			r.IPs = append(r.IPs, net.ParseIP(ip))
		}
	}
	pair, err := w.ca.Issue(time.Now(), r)
	if err != nil {
		return nil, err
	}
	return pki.FromPEM(w.ca.CertPEM(), pair)
}

// newPlatter makes an empty disk, the fate of which follows from a number.
func (w *World) newPlatter(number int) *platter.Platter {
	return platter.New(rand.New(rand.NewPCG(w.config.Seed, uint64(number))), dataDir[1:])
}

func (w *World) addresses() []string {
	var ips []string
	for i := range w.config.Servers {
		ips = append(ips, fmt.Sprintf("10.0.0.%d", i+1))
	}
	return ips
}

// Start starts everybody.
func (w *World) Start() error {
	for _, m := range w.servers {
		if err := m.start(); err != nil {
			return err
		}
	}
	for _, n := range w.workers {
		if err := n.start(); err != nil {
			return err
		}
	}
	return nil
}

// start begins a life of a server.
func (m *machine) start() error {
	w := m.world
	m.host, m.disk = w.network.start(m.ip), m.platter.Mount()
	m.lives++
	g, err := m.host.openGossip()
	if err != nil {
		return err
	}
	c := server.Config{
		Name: m.name, Version: "sim", DataDir: dataDir, Disk: m.disk,
		HTTPAddr: address(m.ip, httpPort), RPCAddr: address(m.ip, rpcPort), RaftAddr: address(m.ip, raftPort),
		Dial: m.host.dial, TLS: m.tls, APICA: w.ca.CertPEM(), BootstrapExpect: w.config.Servers,
		Gossip:        server.Gossip{BindAddr: m.ip, BindPort: gossipPort, AdvertiseAddr: m.ip, Transport: g, RetryInterval: time.Second},
		Consensus:     server.Consensus{HeartbeatTimeout: w.config.Pace.beat, CommitTimeout: w.config.Pace.beat / 20, SnapshotThreshold: uint64(w.config.Pace.entries), SnapshotInterval: 30 * time.Second, TrailingLogs: uint64(w.config.Pace.entries / 4)},
		MaxLogVersion: m.knows, Clock: m.clock(), Logger: w.logger.With("life", m.lives),
	}
	for _, o := range w.servers {
		if o != m {
			c.Gossip.Join = append(c.Gossip.Join, address(o.ip, gossipPort))
		}
	}
	for _, l := range []struct {
		port int
		to   *net.Listener
	}{{httpPort, &c.HTTP}, {rpcPort, &c.RPC}, {raftPort, &c.Raft}} {
		if *l.to, err = m.host.listen(l.port); err != nil {
			return err
		}
	}
	s, err := server.Start(context.Background(), c)
	if err != nil {
		w.network.end(m.host, false)
		m.disk.End()
		return fmt.Errorf("server %s, life %d: %w", m.name, m.lives, err)
	}
	m.server, m.began, m.goes = s, time.Now(), m.knows
	w.lookAtTerm(m) // before others tell it theirs
	w.story.tell(m.name, "starts, life %d", m.lives)
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.setFailed(nil)
	go w.checker.follow(ctx, m.name, s.Feed(), s.View)
	go func() {
		select {
		case err := <-s.Fatal():
			m.setFailed(err)
		case <-ctx.Done():
		}
	}()
	return nil
}

// dataDir is that of every server, on a disk of its own.
const dataDir = "/data"

func (m *machine) setFailed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = err
}

func (m *machine) hasFailed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed
}

// setClock sets the machine's wall clock, which goes ahead by drift every second from then on.
func (m *machine) setClock(skew, drift time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.skew, m.drift, m.set = skew, drift, time.Now()
}

// isFarOff: the wall clock shows another time than any that "set clock" sets.
func (m *machine) isFarOff() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.skewAt(time.Now()).Abs() > 2*time.Minute
}

// farOff is by how much a server's clock differs from those of a majority when it does not lead by it.
const farOff = 30 * time.Second

// isWrong: the wall clock shows a time that may be taken for one that is far off, by a server whose clock is wrong as well.
func (m *machine) isWrong() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.skewAt(time.Now()).Abs() > farOff/2
}

// skewAt is by how much the wall clock differs. It is called with mu held.
func (m *machine) skewAt(now time.Time) time.Duration {
	return m.skew + time.Duration(now.Sub(m.set).Seconds()*float64(m.drift))
}

// clock is the machine's: real time passes everywhere, wall clocks are set.
func (m *machine) clock() clock.Source {
	began := time.Now()
	return func() clock.Reading {
		now := time.Now()
		m.mu.Lock()
		defer m.mu.Unlock()
		return clock.Reading{WallUnixNano: now.Add(m.skewAt(now)).UnixNano(), Elapsed: now.Sub(began)}
	}
}

func (m *machine) leads() bool { return m.server != nil && m.server.IsLeader() }

// kill ends a server's life at once. What remains of the process reaches nobody,
// and no disk; with the power goes what was not synced.
func (m *machine) kill(power bool) {
	s := m.server
	m.server = nil
	m.cancel()
	m.world.network.end(m.host, power)
	m.disk.End()
	if power {
		m.platter.LosePower()
	}
	m.world.story.tell(m.name, "is killed, with its power: %v", power)
	ended := make(chan struct{})
	go func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Stop(ctx) // it reaches nobody, and says so
		close(ended)
	}()
	go m.world.checker.ends(m.name, m.lives, m.host, ended)
}

// fall ends a server's life at once, in the middle of a step: the world does the rest after it.
func (m *machine) fall(power bool, down time.Duration) {
	m.dying, m.fallen, m.dark = true, down, power
	m.term = max(m.term, m.server.Term())
	m.world.network.end(m.host, power)
	m.disk.End()
	m.fell.Store(true)
}

// node is a machine with a worker.
type node struct {
	world      *World
	name, ip   string
	number     int
	tls        *pki.Source
	containers *fake.Runtime
	timeline   *fake.Timeline
	lives      int
	host       *host
	runtime    *containers
	addresses  *addresses    // of its pods, over all lives
	worker     *agent.Worker // nil: it does not run
	tie        tie
}

func (w *World) newNode(i int) (*node, error) {
	n := &node{world: w, number: i + 1, name: fmt.Sprintf("node-%02d", i), ip: fmt.Sprintf("10.0.1.%d", i+1), timeline: fake.NewTimeline(nil),
		addresses: &addresses{network: fmt.Sprintf("10.1.%d", i+1), of: map[types.UID]int{}}}
	n.containers = fake.New(n.timeline)
	go n.timeline.Run(context.Background())
	var err error
	n.tls, err = w.issue(pki.Worker, n.name)
	return n, err
}

func (n *node) start() error {
	n.host = n.world.network.start(n.ip)
	n.lives++
	n.runtime = &containers{Runtime: n.containers, checker: n.world.checker, node: n.name, addresses: n.addresses, rand: rand.New(rand.NewPCG(n.world.config.Seed, uint64(n.number)<<32|uint64(n.lives)))}
	w, err := agent.StartWorker(agent.WorkerConfig{
		Node: worker.NodeConfig{
			Name: n.name, Addresses: []string{n.ip}, Labels: map[string]string{corev1.LabelTopologyZone: "zone-" + string('a'+n.name[len(n.name)-1]%3)},
			Capacity: corev1.ResourceList{
				"cpu": resource.MustParse("8"), "memory": resource.MustParse("16Gi"), "ephemeral-storage": resource.MustParse("100Gi"), "pods": resource.MustParse("50"),
			},
		},
		DataDir: filepath.Join(n.world.config.Dir, n.name), Containers: n.runtime, TLS: n.tls, Dial: n.host.dial,
		Servers: func() []string {
			var out []string
			for _, ip := range n.world.addresses() {
				out = append(out, address(ip, rpcPort))
			}
			return out
		},
		Logger: n.world.logger,
	})
	if err != nil {
		return fmt.Errorf("worker %s: %w", n.name, err)
	}
	n.worker = w
	n.world.story.tell(n.name, "starts")
	return nil
}

// kill ends the worker; its containers go on.
func (n *node) kill() {
	n.world.network.end(n.host, false)
	n.runtime.end()
	w := n.worker
	n.worker = nil
	go w.Stop()
}
