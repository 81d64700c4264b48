package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/apiserver/users"
	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/ports"
	"github.com/berth-dev/berth/rpc"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Kubernetes' libraries start this once in a process.
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"), // /readyz's check of the log
		// A probe of gossip that is under way ends by itself, within seconds.
		goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"),
		// A request that came before admission's informers were ready waits for them for ten seconds, whether or not
		// its server is there still; and so does who asked.
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/admission.(*Handler).WaitForReady"),
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/endpoints/handlers/finisher.finishRequest"),
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/endpoints/handlers/finisher.finishRequest.func2.1"),
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/util/flowcontrol.(*configController).runWorker"),
	)
}

// patience is how long a condition may take on a busy machine.
const patience = 30 * time.Second

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, ctx.Err())
		case <-tick.C:
		}
	}
}

// await waits until a server's state satisfies a condition.
func await(t *testing.T, s *Server, what string, ok func(v *fsm.View) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		v := s.View()
		if ok(v) {
			return
		}
		if err := s.Feed().Wait(ctx, v.Revision()); err != nil {
			t.Fatalf("waiting on %s for %s: %v", s.Name(), what, err)
		}
	}
}

const token = "secret"

// authority is the CA of all tests.
var authority = sync.OnceValues(func() (*pki.CA, error) { return pki.NewCA(time.Now(), 0) })

func issue(t testing.TB, kind pki.Kind, name string) *pki.Source {
	t.Helper()
	ca, err := authority()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(time.Now(), pki.Request{Kind: kind, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	source, err := pki.FromPEM(ca.CertPEM(), pair)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// testCluster is a set of servers in this process.
type testCluster struct {
	t       *testing.T
	dir     string
	servers []*Server
	http    *http.Client
}

func newTestCluster(t *testing.T) *testCluster {
	c := &testCluster{t: t, dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(c.dir, "tokens"), []byte(token+",admin,1,\"system:masters\"\n"+joinToken+",joiner,2,\"system:bootstrappers\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Whom it reaches is not what these tests are about.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	c.http = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		for _, s := range slices.Clone(c.servers) {
			c.stop(s)
		}
	})
	return c
}

// start starts a server; change may alter its configuration.
func (c *testCluster) start(name string, change func(cfg *Config)) *Server {
	c.t.Helper()
	cfg := Config{
		Name: name, Version: "test", DataDir: filepath.Join(c.dir, name), Users: users.Sources{TokenFile: filepath.Join(c.dir, "tokens")},
		Gossip:    Gossip{BindAddr: "127.0.0.1", AdvertiseAddr: "127.0.0.1", RetryInterval: 100 * time.Millisecond},
		Consensus: Consensus{HeartbeatTimeout: time.Second, ElectionTimeout: time.Second, LeaderLeaseTimeout: 500 * time.Millisecond, NoFsync: true},
	}
	for _, s := range c.servers {
		cfg.Gossip.Join = append(cfg.Gossip.Join, s.GossipAddr())
	}
	cfg.HTTP, cfg.HTTPAddr = listen(c.t)
	cfg.RPC, cfg.RPCAddr = listen(c.t)
	cfg.Raft, cfg.RaftAddr = listen(c.t)
	cfg.TLS = issue(c.t, pki.Server, name)
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	s, err := Start(ctx, cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.servers = append(c.servers, s)
	return s
}

func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	claim, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(claim.Release) // whoever listens there again later finds it free
	l, err := net.Listen("tcp", claim.Addr(0))
	if err != nil {
		t.Fatal(err)
	}
	return l, l.Addr().String()
}

// stop ends a server in good order, and in time.
func (c *testCluster) stop(s *Server) {
	c.t.Helper()
	c.servers = slices.DeleteFunc(c.servers, func(o *Server) bool { return o == s })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		c.t.Errorf("stop %s: %v", s.Name(), err)
	}
	if ctx.Err() != nil {
		c.t.Errorf("%s took longer than %s to stop", s.Name(), patience)
	}
}

// leader waits for the server that leads and has furnished the state.
func (c *testCluster) leader() *Server {
	c.t.Helper()
	var leader *Server
	eventually(c.t, "a leader", func() bool {
		for _, s := range slices.Clone(c.servers) {
			if _, ok := s.View().Namespaces.Get("default"); ok && s.IsLeader() {
				leader = s
				return true
			}
		}
		return false
	})
	return leader
}

func (c *testCluster) followers() []*Server {
	leader := c.leader()
	var out []*Server
	for _, s := range c.servers {
		if s != leader {
			out = append(out, s)
		}
	}
	return out
}

// call makes a request with the administrator's token, or without.
func (c *testCluster) call(s *Server, method, path, body string, known bool) (int, string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, "https://"+s.HTTPAddr()+path, bytes.NewBufferString(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if known {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, string(b)
}

// propose carries out one command by way of a server, which must not refuse.
func (c *testCluster) propose(s *Server, command fsm.Command) {
	c.t.Helper()
	// One that has only just started is told who leads a moment later, and says until then that it knows nobody.
	eventually(c.t, "server "+s.Name()+" to know a leader", func() bool { id, _ := s.node.Leader(); return id != "" })
	rs, err := s.Propose(c.t.Context(), fsm.Proposal{User: "test", Groups: systemGroups, Command: command})
	if err == nil {
		err = rs[0].Err()
	}
	if err != nil {
		c.t.Fatalf("propose %T by way of %s: %v", command, s.Name(), err)
	}
}

func admit(name, node string) *fsm.AdmitPod {
	return &fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}}}
}

func workerNode(name string) *corev1.Node {
	room := corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("100")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room, NodeInfo: corev1.NodeSystemInfo{SystemUUID: "machine-" + name},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}}},
	}
}

// runningClock is the clock of a leader, here in the time of the present bubble.
func runningClock() *clock.Clock {
	c := clock.New(clock.Process())
	c.Lead()
	c.Begin()
	return c
}

// testWorker records what its server tells it (rpc.WorkerAgent).
type testWorker struct {
	client *rpc.WorkerClient
	node   []byte

	mu      sync.Mutex
	got     []*rpc.Assignments
	resume  int64
	servers []string // to which it was connected
}

// connect starts a worker that knows one server.
func connect(t *testing.T, name string, s *Server) (w *testWorker, stop func()) {
	t.Helper()
	raw, err := workerNode(name).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	w = &testWorker{node: raw}
	w.client, err = rpc.NewWorkerClient(rpc.WorkerConfig{Node: name, Agent: w, TLS: issue(t, pki.Worker, name), Servers: func() []string { return []string{s.RPCAddr()} }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() { w.client.Run(ctx) })
	return w, func() { cancel(); loop.Wait() }
}

func (w *testWorker) Hello() rpc.Hello {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rpc.Hello{Node: w.node, ResumeRevision: w.resume}
}

func (w *testWorker) Carry(*rpc.Services) error { return nil }

func (w *testWorker) Assign(_ context.Context, a *rpc.Assignments) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = append(w.got, a)
	w.resume = a.Revision
	return nil
}

func (w *testWorker) Tunnel(context.Context, string, []byte, net.Conn) error { return nil }

func (w *testWorker) Connected(server string, _ []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers = append(w.servers, server)
}

func (w *testWorker) Changed([]rpc.ObjectRef) {}

func (w *testWorker) Taken([]rpc.PodReport) {}

func (w *testWorker) Disconnected(error) {}

// pods decodes the pods of all assignments so far, oldest first.
func (w *testWorker) pods(t *testing.T) []*corev1.Pod {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*corev1.Pod
	for _, a := range w.got {
		for _, raw := range a.Pods {
			pod := new(corev1.Pod)
			if err := pod.Unmarshal(raw); err != nil {
				t.Fatal(err)
			}
			out = append(out, pod)
		}
	}
	return out
}

// labels are those that the worker was told last of its node.
func (w *testWorker) labels(t *testing.T) map[string]string {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	n := new(corev1.Node)
	for _, a := range w.got {
		if len(a.Node) == 0 {
			continue
		}
		n.Reset()
		if err := n.Unmarshal(a.Node); err != nil {
			t.Fatal(err)
		}
	}
	return n.Labels
}

func (w *testWorker) full() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, a := range w.got {
		if a.Full {
			n++
		}
	}
	return n
}
