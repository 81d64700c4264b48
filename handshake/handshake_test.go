package handshake

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/pki"
)

func TestGate(t *testing.T) {
	var g Gate
	from := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	take := func(ip string, n int) (done []func()) {
		t.Helper()
		for i := range n {
			d, ok := g.Begin(from(ip))
			if !ok {
				t.Fatalf("%s: no place after %d", ip, i)
			}
			done = append(done, d)
		}
		return done
	}
	refused := func(ip string) {
		t.Helper()
		if _, ok := g.Begin(from(ip)); ok {
			t.Fatalf("%s: one too many", ip)
		}
	}
	a := take("10.0.0.1", maxOfAddress)
	refused("10.0.0.1")
	refused("::ffff:10.0.0.1")
	all := append(take("10.0.0.2", 1), take("2001:db8::1", maxOfAddress)...)
	refused("2001:db8::2") // of the same network
	all = append(all, take("2001:db8:0:1::1", 1)...)
	all = append(all, take("127.0.0.1", maxLocal)...)
	refused("127.0.0.1")
	all = append(all, take("10.0.1.1", maxOfAddress)...)
	all = append(all, take("10.0.1.2", maxOfAddress-2)...)
	refused("10.0.0.3") // all together
	a[0]()
	all = append(all, take("10.0.0.1", 1)...)
	for _, done := range append(a[1:], all...) {
		done()
	}
	if g.all != 0 || len(g.of) != 0 || g.Refused() != 5 {
		t.Errorf("left: %d, %v; refused %d", g.all, g.of, g.Refused())
	}
}

func source(t *testing.T) *pki.Source {
	t.Helper()
	ca, err := pki.NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(time.Now(), pki.Request{Kind: pki.Server, Name: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := pki.FromPEM(ca.CertPEM(), pair)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestListener: who says nothing takes a place and nothing else, others come
// through meanwhile; who speaks plain HTTP is told; who is one too many is cut.
func TestListener(t *testing.T) {
	config, err := source(t).ServerConfig(tls.NoClientCert)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var gate Gate
	l := NewListener(raw, config, &gate, t.Logf)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })}
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Serve(l); err != http.ErrServerClosed {
			t.Errorf("serving ended with %v", err)
		}
	})
	dial := func() net.Conn {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	dial() // silent
	plain := dial()
	io.WriteString(plain, "GET / HTTP/1.1\r\n\r\n")
	if line, err := bufio.NewReader(plain).ReadString('\n'); err != nil || line != "HTTP/1.0 400 Bad Request\r\n" {
		t.Errorf("who speaks HTTP is told %q, %v", line, err)
	}
	ask := func() error {
		conn := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true})
		if err := conn.HandshakeContext(t.Context()); err != nil {
			return err
		}
		io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil && line != "HTTP/1.0 200 OK\r\n" {
			err = fmt.Errorf("got %q", line)
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	gate.mu.Lock()
	gate.all += maxUnderway
	gate.mu.Unlock()
	if err := ask(); err == nil || gate.Refused() != 1 {
		t.Errorf("one too many came in: %v, %d refused", err, gate.Refused())
	}
	gate.mu.Lock()
	gate.all -= maxUnderway
	gate.mu.Unlock()
	if err := ask(); err != nil {
		t.Error(err)
	}
	if err := server.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	running.Wait()
	<-l.ended
}
