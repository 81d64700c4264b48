package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/cri-streaming/pkg/streaming/portforward"

	"github.com/berth-dev/berth/fsm"
)

// fakeKubelet answers as a kubelet does, at an address of this machine's that is not its loopback interface.
type fakeKubelet struct {
	*httptest.Server
	t     *testing.T
	asked chan string
}

func startFakeKubelet(t *testing.T) *fakeKubelet {
	t.Helper()
	k := &fakeKubelet{t: t, asked: make(chan string, 16)}
	ip := ownAddress()
	if ip == "" {
		t.Skip("this machine has no address but that of its loopback interface")
	}
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey(ip, []net.IP{net.ParseIP(ip)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	k.Server = httptest.NewUnstartedServer(k)
	_ = k.Listener.Close() // the one that it would have had
	k.Listener = l
	k.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert}
	k.StartTLS()
	t.Cleanup(k.Close)
	return k
}

func ownAddress() string {
	addrs, _ := net.InterfaceAddrs() // none: nothing is found
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

func (k *fakeKubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if got := r.TLS.PeerCertificates[0].Subject.CommonName; got != "berth:server:s1" {
		k.t.Errorf("%s comes as %q", r.URL, got)
	}
	select {
	case k.asked <- r.Method + " " + r.URL.String():
	default:
	}
	switch {
	case r.URL.Path == "/portForward/default/p":
		portforward.ServePortForward(w, r, k, "p", "", &portforward.V4Options{}, time.Minute, time.Minute, portforward.SupportedProtocols)
	case r.URL.Path == "/containerLogs/default/p/main" && r.URL.Query().Get("previous") == "true":
		http.Error(w, "there was none before", http.StatusBadRequest)
	case r.URL.Path == "/containerLogs/default/p/main":
		_, _ = io.WriteString(w, "said\n")
	case r.URL.Path == "/stats/summary":
		_, _ = io.WriteString(w, "{}")
	default:
		http.NotFound(w, r)
	}
}

// PortForward implements portforward.PortForwarder: what listens at port 80 says hello, and nothing does elsewhere.
func (k *fakeKubelet) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	if port != 80 {
		return errors.New("connection refused")
	}
	if _, err := stream.Read(make([]byte, 1<<10)); err != nil {
		return err
	}
	_, err := io.WriteString(stream, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
	return err
}

// A node that has a port of its own is asked there, with the server's certificate.
func TestKubeletsAreAsked(t *testing.T) {
	k := startFakeKubelet(t)
	host, text, err := net.SplitHostPort(k.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	c := newTestCluster(t)
	s := c.start("s1", func(cfg *Config) { cfg.BootstrapExpect = 1 })
	c.leader()
	strict := newTestCluster(t)
	strictServer := strict.start("s1", func(cfg *Config) { cfg.BootstrapExpect, cfg.SignedKubelets = 1, true })
	strict.leader()
	node := func(c *testCluster, s *Server, name, address string, port int) {
		n := workerNode(name)
		n.UID, n.Status.DaemonEndpoints.KubeletEndpoint.Port = types.UID(name), int32(port)
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "nowhere.invalid"}}
		if address != "" {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		}
		c.propose(s, &fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: n}})
	}
	node(c, s, "k1", host, port)
	node(c, s, "own", "127.0.0.1", port)
	node(c, s, "far", "", port)
	nowhere := workerNode("nowhere")
	nowhere.UID, nowhere.Status.DaemonEndpoints.KubeletEndpoint.Port = "nowhere", 10250
	c.propose(s, &fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: nowhere}})
	pod := func(c *testCluster, s *Server, name, node string) {
		c.propose(s, admit(name, node))
		status := &corev1.PodStatus{PodIP: "10.9.9.9", PodIPs: []corev1.PodIP{{IP: "10.9.9.9"}}}
		c.propose(s, &fsm.ReportPods{Node: node, Reports: []fsm.PodReport{{Key: "default/" + name, UID: "uid-" + name, Status: fsm.PodStatusWire{Object: status}}}})
	}
	pod(c, s, "p", "k1")
	node(strict, strictServer, "k1", host, port)
	pod(strict, strictServer, "p", "k1")
	pod(c, s, "q", "own")
	const pods = "/api/v1/namespaces/default/pods/"
	for _, tc := range []struct {
		path string
		code int
		says string
	}{
		{pods + "p/log", 200, "said\n"},
		{pods + "p/log?previous=true", 400, "there was none before"},
		{pods + "p:80/proxy/some/path", 200, "hello"},
		{pods + "p:81/proxy/", 503, "connection refused"},
		{"/api/v1/nodes/k1/proxy/stats/summary", 200, "{}"},
		{"/api/v1/nodes/k1:" + text + "/proxy/stats/summary", 200, "{}"},
		{"/api/v1/nodes/k1:10250/proxy/stats/summary", 400, "is not its kubelet's, which is " + text},
		{"/api/v1/nodes/k1/proxy/nothing", 404, "not found"},
		{pods + "q/log", 503, "address 127.0.0.1 is not allowed"},
		{pods + "q:80/proxy/", 503, "the kubelet of node own does not answer"},
		{"/api/v1/nodes/own/proxy/", 503, "the kubelet of node own does not answer"},
		{"/api/v1/nodes/nowhere/proxy/", 503, "its node has no address"},
		{"/api/v1/nodes/far/proxy/", 503, "the kubelet of node far does not answer"},
	} {
		if code, body := c.call(s, http.MethodGet, tc.path, "", true); code != tc.code || !strings.Contains(body, tc.says) {
			t.Errorf("%s: %d %s", tc.path, code, body)
		}
	}
	if code, body := c.call(s, http.MethodGet, pods+"p/log?tailLines=5&timestamps=true", "", true); code != 200 {
		t.Errorf("a part of a log: %d %s", code, body)
	}
	last := ""
	for len(k.asked) > 0 {
		last = <-k.asked
	}
	if want := "GET /containerLogs/default/p/main?tailLines=5&timestamps=true"; last != want {
		t.Errorf("the kubelet was asked %q, not %q", last, want)
	}
	if code, body := strict.call(strictServer, http.MethodGet, pods+"p/log", "", true); code != 503 || !strings.Contains(body, "its certificate is not from the cluster's CA") {
		t.Errorf("where it has to be signed: %d %s", code, body)
	}
	revokedKubeletIsLeft(t, c, s)
	k.Close()
	if code, body := c.call(s, http.MethodGet, pods+"p/log", "", true); code != 503 || !strings.Contains(body, "the kubelet of node k1 does not answer") {
		t.Errorf("when it is gone: %d %s", code, body)
	}
}

// revokedKubeletIsLeft: what is open to the kubelet of a node ends when the node is revoked.
func revokedKubeletIsLeft(t *testing.T, c *testCluster, s *Server) {
	t.Helper()
	k, err := s.kubeletOf("k1")
	if err != nil || k == nil {
		t.Fatal(k, err)
	}
	conn, err := s.dialKubelet(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	known := func() bool {
		return slices.Contains(s.kubelets.Of("k1"), conn.(*boundConn))
	}
	if !known() {
		t.Error("the connection is not known")
	}
	if code, body := c.call(s, http.MethodPost, "/berth/v1/revoked-nodes/k1", "", true); code != 200 {
		t.Fatalf("revoking it: %d %s", code, body)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("when its node is revoked: %v", err)
	}
	_ = conn.Close()
	if known() {
		t.Error("the connection is remembered")
	}
}
