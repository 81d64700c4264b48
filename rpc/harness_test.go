package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("gave up waiting until %s", what)
		}
	}
}

// cluster is the state that fake servers share: a log of pod changes.
type cluster struct {
	mu      sync.Mutex
	pods    map[string]Update // by node/uid
	rev     int64
	samples []string
	status  map[string][]string // by UID, every status that was committed
	refuse  error               // of WorkerStatus
	out     string              // the node that is not heard any more
	onHello func()              // while a worker registers
	hellos  []Hello
	gone    []string
	reports map[string][]string
	deltas  int // resyncs that were answered with a delta
}

func newCluster() *cluster {
	return &cluster{pods: map[string]Update{}, status: map[string][]string{}, reports: map[string][]string{}}
}

// set changes a pod in the state and pushes the change through the servers.
func (c *cluster) set(node, uid string, pod []byte, servers ...*testServer) int64 {
	c.mu.Lock()
	c.rev++
	u := Update{UID: uid, Revision: c.rev, Pod: pod}
	c.pods[node+"/"+uid] = u
	rev := c.rev
	c.mu.Unlock()
	for _, s := range servers {
		s.Hub.Push(node, u)
		s.Hub.Advance(rev)
	}
	return rev
}

func (c *cluster) committed(uid string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.status[uid])
}

// handler is one fake server of a cluster.
type handler struct {
	follow func(node string, ref ObjectRef) bool
	*cluster
	onForward func(ctx context.Context, r *ForwardRequest) (*ForwardResponse, error)
}

func (h *handler) setForward(f func(ctx context.Context, r *ForwardRequest) (*ForwardResponse, error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onForward = f
}

var (
	_ ServerHandler = (*handler)(nil)
	_ WorkerHandler = (*handler)(nil)
)

func (h *handler) Forward(ctx context.Context, r *ForwardRequest) (*ForwardResponse, error) {
	h.mu.Lock()
	f := h.onForward
	h.mu.Unlock()
	if f != nil {
		return f(ctx, r)
	}
	return &ForwardResponse{Results: append([]byte("did "), r.Entries...), Index: 7}, nil
}

func (h *handler) ReadIndex(context.Context, *ReadIndexRequest) (*ReadIndexResponse, error) {
	return &ReadIndexResponse{Index: 42}, nil
}

func (h *handler) ReportStreams(_ context.Context, r *StreamReport) (*StreamReportResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reports[r.Server] = r.Nodes
	return &StreamReportResponse{}, nil
}

func (h *handler) Renewal(_ context.Context, r *RenewalRequest) (*RenewalResponse, error) {
	return &RenewalResponse{Taken: r.RenewedUnixMicro != 0, RenewedUnixMicro: r.RenewedUnixMicro}, nil
}

func (h *handler) Differs(context.Context, *DifferenceRequest) (*DifferenceResponse, error) {
	return &DifferenceResponse{}, nil
}

func (h *handler) Digest(_ context.Context, r *DigestRequest) (*DigestResponse, error) {
	return &DigestResponse{Index: r.Index, Digest: "d" + strconv.FormatUint(r.Index, 10)}, nil
}

func (h *handler) Status(context.Context, *StatusRequest) (*StatusResponse, error) {
	return &StatusResponse{Version: "v1", Raft: map[string]string{"state": "Leader"}}, nil
}

func (h *handler) WorkerHello(_ context.Context, hello *Hello) error {
	h.mu.Lock()
	h.hellos = append(h.hellos, *hello)
	during := h.onHello
	h.mu.Unlock()
	if during != nil {
		during()
	}
	return nil
}

// mayBeHeard is ServerConfig.Refuse.
func (h *handler) mayBeHeard(id *pki.Identity) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id.Name == h.out {
		return fmt.Errorf("%w: %s is out", ErrForbidden, id.Name)
	}
	return nil
}

// putOut has the servers hear a node no more.
func (c *cluster) putOut(node string, servers ...*testServer) {
	c.mu.Lock()
	c.out = node
	c.mu.Unlock()
	for _, s := range servers {
		s.AskAgain(node)
	}
}

func (h *handler) WorkerStatus(_ context.Context, _ string, b *StatusBatch) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		return h.refuse
	}
	for _, p := range b.Pods {
		h.status[p.UID] = append(h.status[p.UID], string(p.Status))
	}
	if len(b.NodeStatus) > 0 {
		h.status["node"] = append(h.status["node"], string(b.NodeStatus))
	}
	return nil
}

func (h *handler) WorkerAssignments(_ context.Context, node string, since int64, _ []byte) (*Assignments, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := &Assignments{Full: since == 0, Revision: h.rev}
	if !a.Full {
		h.deltas++
	}
	for key, u := range h.pods {
		n, uid, _ := strings.Cut(key, "/")
		switch {
		case n != node || u.Revision <= since:
		case u.Pod != nil:
			a.Pods = append(a.Pods, u.Pod)
		case !a.Full:
			a.Gone = append(a.Gone, uid)
		}
	}
	return a, nil
}

func (h *handler) WorkerToken(_ context.Context, r *TokenRequest) (*TokenResponse, error) {
	return &TokenResponse{Token: r.Node + " " + r.Pod}, nil
}

func (h *handler) WorkerMirror(_ context.Context, r *MirrorRequest) (*MirrorResponse, error) {
	if string(r.Pod) != "a pod of "+r.Node {
		return nil, ErrInvalid
	}
	return new(MirrorResponse), nil
}

func (h *handler) WorkerFetch(_ context.Context, r *FetchRequest) (*FetchResponse, error) {
	if r.Name == "missing" {
		return nil, ErrNotFound
	}
	if r.Follow {
		h.follow(r.Node, ObjectRef{r.Resource, r.Namespace, r.Name})
	}
	return &FetchResponse{Object: []byte(r.Resource + "/" + r.Namespace + "/" + r.Name)}, nil
}

func (h *handler) WorkerSample(node string, s *Sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.samples = append(h.samples, node+" "+string(s.Body))
}

func (h *handler) Samples(_ context.Context, r *SamplesRequest) (*SamplesResponse, error) {
	out := new(SamplesResponse)
	for _, node := range r.Nodes {
		out.Samples = append(out.Samples, NodeSample{Node: node, Sample: Sample{AgeNano: 7, Body: []byte("of " + node)}})
	}
	return out, nil
}

func (h *handler) WorkerGone(node string, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = append(h.gone, node)
}

type testServer struct {
	*Server
	*handler
	addr string
	stop func()
}

func startServer(t *testing.T, c *cluster, name string, tls *pki.Source) *testServer {
	t.Helper()
	return startServerAt(t, c, name, tls, nil)
}

// startServerAt is startServer with another wall clock than the machine's.
func startServerAt(t *testing.T, c *cluster, name string, tls *pki.Source, now func() time.Time) *testServer {
	t.Helper()
	if tls == nil {
		tls = oneCA(t).source(pki.Server, name)
	}
	h := &handler{cluster: c}
	s, err := NewServer(ServerConfig{Name: name, Servers: h, Workers: h, Refuse: h.mayBeHeard, TLS: tls, now: now, Heartbeat: time.Second, Services: &ServicesSource{
		Load: h.loadServices, Topology: func(node string) map[string]string { return map[string]string{"zone": "of-" + node} },
	}})
	if err != nil {
		t.Fatal(err)
	}
	h.follow = s.Hub.Follow
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(lis) }()
	stop := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		s.Stop(ctx)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return &testServer{s, h, lis.Addr().String(), stop}
}

// nobodyAt is an address at which connections are refused.
func nobodyAt(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	return addr
}

func startPool(t *testing.T, tls *pki.Source) *Pool {
	t.Helper()
	if tls == nil {
		tls = oneCA(t).source(pki.Server, "caller")
	}
	p, err := NewPool("caller", tls, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// agent is a worker whose pods are "uid=state" and that keeps what it was told.
type agent struct {
	mu      sync.Mutex
	resume  int64
	pods    map[string]string
	fulls   int
	server  string
	ended   []error
	changed []ObjectRef
	taken   []PodReport

	wantsServices bool
	services      servicesModel
	block         chan struct{} // Assign waits for it, if it is set
	onTunel       func(ctx context.Context, kind string, body []byte, conn net.Conn) error
}

func (a *agent) Hello() Hello {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Hello{Node: []byte("node"), ResumeRevision: a.resume, Version: "v1", Services: a.wantsServices, ServicesRevision: a.services.revision}
}

func (a *agent) Assign(ctx context.Context, as *Assignments) error {
	if a.block != nil {
		select {
		case <-a.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if as.More {
		return errors.New("a part was handed out")
	}
	if as.Revision < a.resume {
		return fmt.Errorf("went back from %d to %d", a.resume, as.Revision)
	}
	if as.Full {
		a.fulls++
		clear(a.pods)
	}
	for _, p := range as.Pods {
		uid, state, _ := strings.Cut(string(p), "=")
		a.pods[uid] = state
	}
	for _, uid := range as.Gone {
		delete(a.pods, uid)
	}
	a.resume = as.Revision
	return nil
}

func (a *agent) Tunnel(ctx context.Context, kind string, body []byte, conn net.Conn) error {
	if a.onTunel != nil {
		return a.onTunel(ctx, kind, body, conn)
	}
	_, err := io.Copy(conn, conn)
	return err
}

func (a *agent) Connected(server string, _ []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.server = server
}

func (a *agent) told() []ObjectRef {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.changed)
}

func (a *agent) Carry(s *Services) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.services.take(s)
	return nil
}

func (a *agent) Changed(refs []ObjectRef) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed = append(a.changed, refs...)
}

func (a *agent) Taken(reports []PodReport) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.taken = append(a.taken, reports...)
}

func (a *agent) Disconnected(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.server = ""
	a.ended = append(a.ended, err)
}

func (a *agent) on() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.server
}

func (a *agent) has() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for uid, state := range a.pods {
		out = append(out, uid+"="+state)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (a *agent) at() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.resume
}

func startWorker(t *testing.T, node string, tls *pki.Source, a *agent, servers ...*testServer) *WorkerClient {
	t.Helper()
	if a.pods == nil {
		a.pods = map[string]string{}
	}
	if tls == nil {
		tls = oneCA(t).source(pki.Worker, node)
	}
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.addr)
	}
	c, err := NewWorkerClient(WorkerConfig{Node: node, Agent: a, TLS: tls, Servers: func() []string { return addrs }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return c
}

// certs makes sources of one CA.
type certs struct {
	t  *testing.T
	ca *pki.CA
}

// sharedCA is that of the tests that are not about certificates.
var sharedCA = sync.OnceValues(func() (*pki.CA, error) { return pki.NewCA(time.Now(), 0) })

func oneCA(t *testing.T) certs {
	t.Helper()
	ca, err := sharedCA()
	if err != nil {
		t.Fatal(err)
	}
	return certs{t, ca}
}

func newCerts(t *testing.T) certs {
	t.Helper()
	ca, err := pki.NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return certs{t, ca}
}

func (c certs) source(kind pki.Kind, name string) *pki.Source {
	c.t.Helper()
	pair, err := c.ca.Issue(time.Now(), pki.Request{Kind: kind, Name: name})
	if err != nil {
		c.t.Fatal(err)
	}
	src, err := pki.FromPEM(c.ca.CertPEM(), pair)
	if err != nil {
		c.t.Fatal(err)
	}
	return src
}
