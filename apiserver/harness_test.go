package apiserver

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/apiserver/users"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/store"
)

// double is a Backend with a log of its own: every proposal is applied at once,
// through the bytes of its entry.
type double struct {
	state *fsm.State

	mu    sync.Mutex
	index uint64
	users []string     // who proposed, in order
	rules int          // the version by which entries are carried out
	ahead atomic.Int64 // nanoseconds that entries are later than they are

	failPropose, failRead atomic.Pointer[error]
	reads                 atomic.Int64
}

func newDouble(t testing.TB) *double {
	return newDoubleAt(t, fsm.LogVersion)
}

// newDoubleAt is a cluster of servers of which one knows a version of the rules and no
// newer one.
func newDoubleAt(t testing.TB, rules int) *double {
	d := &double{state: fsm.NewState(), rules: rules}
	ps := []fsm.Proposal{}
	add := func(c fsm.Command) { ps = append(ps, fsm.Proposal{User: "berth:server:s1", Command: c}) }
	for _, name := range fsm.SystemNamespaces() {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("ns-" + name), Labels: map[string]string{"kubernetes.io/metadata.name": name}}}
		add(&fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: ns}, Create: true, RootCA: "ca"})
	}
	for _, class := range model.SystemClasses() {
		class.UID = types.UID("pc-" + class.Name)
		add(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: class}})
	}
	b, err := json.Marshal(berthv1.Default())
	if err != nil {
		t.Fatal(err)
	}
	add(&fsm.ConfigureScheduler{JSON: b, OnlyIfAbsent: true})
	results, err := d.Propose(context.Background(), ps...)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
	return d
}

func (d *double) Propose(_ context.Context, ps ...fsm.Proposal) ([]fsm.Result, error) {
	if err := d.failPropose.Load(); err != nil {
		return nil, *err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	entry, err := fsm.EncodeEntry(fsm.Header{Version: d.rules, TimeUnixNano: time.Now().UnixNano() + d.ahead.Load(), Server: "s1"}, ps)
	if err != nil {
		return nil, err
	}
	d.index++
	for _, p := range ps {
		d.users = append(d.users, p.User)
	}
	return d.state.Apply(d.index, 1, entry)
}

func (d *double) View() *fsm.View   { return d.state.View() }
func (d *double) Feed() *store.Feed { return d.state.Feed() }

func (d *double) NowUnixNano() int64 { return time.Now().UnixNano() }

func (d *double) ReadIndex(context.Context) error {
	d.reads.Add(1)
	if err := d.failRead.Load(); err != nil {
		return *err
	}
	return nil
}

func (d *double) proposers() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.users...)
}

// must proposes commands that are expected to be carried out.
func (d *double) must(t testing.TB, cs ...fsm.Command) []fsm.Result {
	t.Helper()
	ps := make([]fsm.Proposal, len(cs))
	for i, c := range cs {
		ps[i] = fsm.Proposal{User: "test", Command: c}
	}
	rs, err := d.Propose(context.Background(), ps...)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return rs
}

// authority is the CA of all tests.
var authority = sync.OnceValues(func() (*pki.CA, error) { return pki.NewCA(time.Now(), 0) })

// tokenLines is what the tests' token file holds.
const tokenLines = `secret-of-robot,robot,7,"robots,night"` + "\n"

// testServer is a running API over a double.
type testServer struct {
	*Server
	double *double
	stop   func()
	caPEM  []byte
}

// start runs an API until the test ends; change may alter its configuration.
func start(t testing.TB, d *double, change func(*Config)) *testServer {
	t.Helper()
	s, err := startOn(d, "127.0.0.1:0", t.TempDir(), change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

func startOn(d *double, address, dir string, change func(*Config)) (*testServer, error) {
	ca, err := authority()
	if err != nil {
		return nil, err
	}
	pair, err := ca.Issue(time.Now(), pki.Request{Kind: pki.Server, Name: "s1"})
	if err != nil {
		return nil, err
	}
	source, err := pki.FromPEM(ca.CertPEM(), pair)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := source.ServerConfig(tls.VerifyClientCertIfGiven)
	if err != nil {
		return nil, err
	}
	tokenFile := dir + "/tokens.csv"
	if err := os.WriteFile(tokenFile, []byte(tokenLines), 0o600); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	config := Config{
		Backend: d, Listener: listener, TLS: tlsConfig, Users: users.Sources{TokenFile: tokenFile}, RootCA: string(ca.CertPEM()),
		Logger: hclog.New(&hclog.LoggerOptions{Name: "api", Level: hclog.Warn, Output: os.Stderr}),
	}
	if change != nil {
		change(&config)
	}
	server, err := New(config)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	var once sync.Once
	s := &testServer{Server: server, double: d, caPEM: ca.CertPEM(), stop: func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				fmt.Fprintln(os.Stderr, "stopping the API:", err)
			}
		})
	}}
	return s, s.ready()
}

// ready waits until the server says that it is.
func (s *testServer) ready() error {
	config := s.anonymous()
	config.TLSClientConfig = restclient.TLSClientConfig{Insecure: true} // some tests serve another certificate
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		resp, err := client.Get("https://" + s.Addr().String() + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("the API did not become ready")
		case <-poll.C:
		}
	}
}

var shared struct {
	once   sync.Once
	server *testServer
	err    error
}

// share gives the server that most tests use, each in its own namespace.
func share(t testing.TB) *testServer {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "berth-api")
		if err != nil {
			shared.err = err
			return
		}
		d := newDouble(t)
		shared.server, shared.err = startOn(d, "127.0.0.1:0", dir, func(c *Config) {
			c.Logs = fakeLogs{}
			c.Streams = fakeStreams{}
			c.Usage, c.Nodes = fakeUsage{d}, fakeNodes{}
			c.Planner = fakePlanner{}
		})
		os.RemoveAll(dir)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		shared.server.stop()
	}
	os.Exit(code)
}

// config is a client's, with a certificate for a user.
func (s *testServer) config(t testing.TB, user string, groups ...string) *restclient.Config {
	t.Helper()
	return s.configOf(t, pki.Request{Kind: pki.Client, Name: user, Groups: groups})
}

// dynamic is a user's client for any kind.
func (s *testServer) dynamic(t testing.TB, user string, groups ...string) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(s.config(t, user, groups...))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// configOf is the same for a certificate of any kind.
func (s *testServer) configOf(t testing.TB, r pki.Request) *restclient.Config {
	t.Helper()
	c := s.anonymous()
	ca, err := authority()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(time.Now(), r)
	if err != nil {
		t.Fatal(err)
	}
	c.CertData, c.KeyData = pair.CertPEM, pair.KeyPEM
	return c
}

func (s *testServer) anonymous() *restclient.Config {
	return &restclient.Config{
		Host:            "https://" + s.Addr().String(),
		QPS:             -1,
		TLSClientConfig: restclient.TLSClientConfig{CAData: s.caPEM, ServerName: pki.ServerDNSName},
	}
}

func (s *testServer) client(t testing.TB) kubernetes.Interface {
	t.Helper()
	return s.clientOf(t, "root", "system:masters")
}

func (s *testServer) clientOf(t testing.TB, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	return clientFor(t, s.config(t, user, groups...))
}

func clientFor(t testing.TB, config *restclient.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// namespace makes a namespace for one test.
func (s *testServer) namespace(t testing.TB) string {
	t.Helper()
	prefix := strings.ToLower(strings.NewReplacer("/", "-", "_", "-", "=", "-", " ", "-", ",", "-").Replace(t.Name()))
	if len(prefix) > 40 {
		prefix = prefix[:40]
	}
	ns, err := s.client(t).CoreV1().Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: strings.Trim(prefix, "-") + "-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// node makes a node with room for much.
func (s *testServer) node(t testing.TB, name string) *corev1.Node {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Capacity:    corev1.ResourceList{"cpu": resource.MustParse("1000"), "memory": resource.MustParse("1000Gi"), "pods": resource.MustParse("10000")},
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse("1000"), "memory": resource.MustParse("1000Gi"), "pods": resource.MustParse("10000")},
		Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	out, err := s.client(t).CoreV1().Nodes().Create(context.Background(), n, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.client(t).CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return out
}

func testPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "busybox",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}},
		}}},
	}
}

// eventually waits for a condition with a deadline.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("it never came to: %s", what)
		case <-poll.C:
		}
	}
}

// wantStatus checks an error's code and, in part, its message.
func wantStatus(t testing.TB, err error, code int32, part string) {
	t.Helper()
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		t.Fatalf("got %v (%T), want a status with code %d", err, err, code)
	}
	if s := status.Status(); s.Code != code || !strings.Contains(s.Message, part) {
		t.Fatalf("got %d %q, want %d with %q", s.Code, s.Message, code, part)
	}
}
