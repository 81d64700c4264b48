package rpc

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/pki"
)

func TestWhoMay(t *testing.T) {
	ca := newCerts(t)
	s := startServer(t, newCluster(), "s1", ca.source(pki.Server, "s1"))
	for name, tc := range map[string]struct {
		src  *pki.Source
		want error // nil: allowed
	}{
		"a server":               {ca.source(pki.Server, "s2"), nil},
		"a worker":               {ca.source(pki.Worker, "w1"), ErrForbidden},
		"a client":               {ca.source(pki.Client, "ann"), ErrForbidden},
		"another CA":             {newCerts(t).source(pki.Server, "s2"), ErrNotSent},
		"a worker named like s1": {ca.source(pki.Worker, "s1"), ErrForbidden},
	} {
		p := startPool(t, tc.src)
		_, err := p.Forward(t.Context(), s.addr, []byte("x"))
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := p.Tunnel(t.Context(), s.addr, "w1", "x", nil); tc.want != nil && err == nil {
			t.Errorf("%s opens a tunnel", name)
		}
	}
}

// TestPlainConnection: who does not speak TLS is answered by nobody.
func TestPlainConnection(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	cc, err := newConn(s.addr, insecure.NewCredentials(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }() // the test is over
	if err := cc.Invoke(t.Context(), methodStatus, &StatusRequest{}, new(StatusResponse)); err == nil {
		t.Error("it was answered")
	}
	if _, err := NewPool("x", nil, nil); err == nil {
		t.Error("a pool without a certificate")
	}
	h := &handler{cluster: newCluster()}
	if _, err := NewServer(ServerConfig{Name: "s1", Servers: h, Workers: h}); err == nil {
		t.Error("a server without a certificate")
	}
	if _, err := NewWorkerClient(WorkerConfig{Node: "n1"}); err == nil {
		t.Error("a worker without a certificate")
	}
}

func TestWorkerSpeaksForItself(t *testing.T) {
	ca := newCerts(t)
	s := startServer(t, newCluster(), "s1", ca.source(pki.Server, "s1"))
	for name, tc := range map[string]struct {
		kind pki.Kind
		cert string
		want error
	}{
		"its own node":    {pki.Worker, "n1", nil},
		"another node":    {pki.Worker, "n2", ErrForbidden},
		"a server's own":  {pki.Server, "n1", nil},
		"another server":  {pki.Server, "s2", ErrForbidden},
		"a client's name": {pki.Client, "n1", ErrForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			a := &agent{pods: map[string]string{}}
			if tc.want == nil {
				startWorker(t, "n1", ca.source(tc.kind, tc.cert), a, s)
				eventually(t, "it is connected", func() bool { return a.on() == "s1" })
				conn, err := s.Hub.OpenTunnel(t.Context(), "n1", "echo", nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
				<-conn.Done()
				return
			}
			c, err := NewWorkerClient(WorkerConfig{Node: "n1", Agent: a, TLS: ca.source(tc.kind, tc.cert)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.stream(t.Context(), s.addr); !errors.Is(err, tc.want) {
				t.Errorf("got %v", err)
			}
		})
		eventually(t, "the stream has ended", func() bool { return s.Hub.Count() == 0 })
	}
}

func TestBadOwnCertificates(t *testing.T) {
	ca, other := newCerts(t), newCerts(t)
	pair, err := other.ca.Issue(time.Now(), pki.Request{Kind: pki.Server, Name: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := pki.FromPEM(ca.ca.CertPEM(), pair)
	if err != nil {
		t.Fatal(err)
	}
	h := &handler{cluster: newCluster()}
	for name, src := range map[string]*pki.Source{"foreign": foreign, "a worker's": ca.source(pki.Worker, "w")} {
		if _, err := NewServer(ServerConfig{Name: "s1", Servers: h, Workers: h, TLS: src}); err == nil {
			t.Errorf("%s certificate serves", name)
		}
	}
	if _, err := NewPool("s1", foreign, nil); err == nil {
		t.Error("a foreign certificate calls")
	}
}

// TestExpiredServer: the caller learns which certificate expired, and when.
func TestExpiredServer(t *testing.T) {
	then := time.Now().Add(-48 * time.Hour)
	ca, err := pki.NewCA(then, 0)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(at time.Time, name string, validity time.Duration) *pki.Source {
		pair, err := ca.Issue(at, pki.Request{Kind: pki.Server, Name: name, Validity: validity})
		if err != nil {
			t.Fatal(err)
		}
		src, err := pki.FromPEM(ca.CertPEM(), pair)
		if err != nil {
			t.Fatal(err)
		}
		return src
	}
	// It expires between the start of the server and the call.
	short := time.Now().Add(3 * time.Second)
	s := startServer(t, newCluster(), "s1", issue(then, "s1", short.Sub(then)))
	p := startPool(t, issue(time.Now(), "s2", 0))
	var last error
	eventually(t, "the certificate has expired", func() bool {
		p.Retain(nil) // each call shakes hands anew
		_, last = p.ReadIndex(t.Context(), s.addr)
		return last != nil
	})
	if !errors.Is(last, ErrNotSent) || !strings.Contains(last.Error(), "(berth:server:s1) expired on ") {
		t.Errorf("got %v", last)
	}
}

// TestMethodsAreInTheTable: every method that is served is somebody's, and the
// table names no other.
func TestMethodsAreInTheTable(t *testing.T) {
	h := &handler{cluster: newCluster()}
	s := &Server{config: ServerConfig{Servers: h, Workers: h}}
	served := map[string]bool{}
	for _, d := range []*grpc.ServiceDesc{s.serverDesc(), s.workerDesc()} {
		for _, m := range d.Methods {
			served["/"+d.ServiceName+"/"+m.MethodName] = true
		}
		for _, m := range d.Streams {
			served["/"+d.ServiceName+"/"+m.StreamName] = true
		}
	}
	named := map[string]bool{}
	for _, r := range access.Rules() {
		for _, m := range r.Methods {
			named[m] = true
			if !served[m] {
				t.Errorf("the table names %s, which is not served", m)
			}
		}
	}
	for m := range served {
		if !named[m] {
			t.Errorf("%s is served, and nobody may call it", m)
		}
	}
}
