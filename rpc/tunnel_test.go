package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// tunnels is a worker n1 on s2, reached from s1 and s2.
func tunnels(t *testing.T, a *agent) map[string]*Tunneler {
	t.Helper()
	c := newCluster()
	s1, s2, s3 := startServer(t, c, "s1", nil), startServer(t, c, "s2", nil), startServer(t, c, "s3", nil)
	startWorker(t, "n1", nil, a, s2)
	eventually(t, "the worker is connected", func() bool { return s2.Hub.Holds("n1") })
	pool := startPool(t, nil)
	return map[string]*Tunneler{
		"here":      {Hub: s2.Hub, Pool: pool, Peers: func() []string { return []string{s1.addr, s3.addr} }},
		"elsewhere": {Hub: s1.Hub, Pool: pool, Peers: func() []string { return []string{s3.addr, s2.addr} }},
	}
}

func TestTunnelCarriesBytesBothWays(t *testing.T) {
	for name, tun := range tunnels(t, &agent{}) {
		conn, err := tun.Open(t.Context(), "n1", "echo", nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := bytes.Repeat([]byte("0123456789"), 1<<17)
		go func() {
			_, _ = conn.Write(want)
		}()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v, equal %v", name, err, bytes.Equal(got, want))
		}
		if err := conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Error(err)
		}
		if _, err := conn.Read(got); err == nil || !err.(net.Error).Timeout() {
			t.Errorf("%s: a deadline gives %v", name, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		<-conn.Done()
	}
}

func TestLogsAndTheirErrors(t *testing.T) {
	a := &agent{onTunel: func(_ context.Context, kind string, body []byte, conn net.Conn) error {
		r, err := DecodeLogsRequest(body)
		if err != nil || kind != KindLogs {
			return fmt.Errorf("%s: %w", kind, err)
		}
		if r.Container == "none" {
			return &TunnelError{Code: 404, Message: "no container none"}
		}
		_, err = fmt.Fprintf(conn, "tail %d of %s\n", *r.TailLines, r.Container)
		if r.Container == "broken" {
			return errors.New("disk on fire")
		}
		return err
	}}
	for name, tun := range tunnels(t, a) {
		for container, code := range map[string]int{"web": 0, "none": 404, "broken": 500} {
			tail := int64(5)
			body, err := (&LogsRequest{Container: container, TailLines: &tail}).Encode()
			if err != nil {
				t.Fatal(err)
			}
			conn, err := tun.Open(t.Context(), "n1", KindLogs, body)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			var te *TunnelError
			if errors.As(err, &te) != (code != 0) || te != nil && te.Code != code {
				t.Errorf("%s, %s: %v", name, container, err)
			}
			if want := "tail 5 of " + container + "\n"; code != 404 && string(got) != want {
				t.Errorf("%s, %s: got %q", name, container, got)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			<-conn.Done()
		}
	}
}

// A refusal may come before the opener has set a deadline for it: it is the refusal that is read all the same.
func TestDeadlinesOfATunnelThatWasClosed(t *testing.T) {
	a := &agent{onTunel: func(context.Context, string, []byte, net.Conn) error {
		return &TunnelError{Code: 400, Message: "it waits to start"}
	}}
	for name, tun := range tunnels(t, a) {
		conn, err := tun.Open(t.Context(), "n1", KindLogs, nil)
		if err != nil {
			t.Fatal(err)
		}
		<-conn.Done()
		for what, set := range map[string]func(time.Time) error{
			"reads": conn.SetReadDeadline, "writes": conn.SetWriteDeadline, "both": conn.SetDeadline,
		} {
			if err := set(time.Now().Add(time.Hour)); err != nil {
				t.Errorf("%s: a deadline for %s: %v", name, what, err)
			}
		}
		var refused *TunnelError
		if _, err := conn.Read(make([]byte, 1)); !errors.As(err, &refused) || refused.Code != 400 {
			t.Errorf("%s: got %v", name, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if err := conn.SetReadDeadline(time.Now()); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%s: a deadline for what the opener has closed: %v", name, err)
		}
	}
}

func TestTunnelEndsWithItsContext(t *testing.T) {
	ended := make(chan error, 1)
	a := &agent{onTunel: func(_ context.Context, _ string, _ []byte, conn net.Conn) error {
		_, err := io.Copy(io.Discard, conn)
		ended <- err
		return err
	}}
	for _, tun := range tunnels(t, a) {
		ctx, cancel := context.WithCancel(t.Context())
		conn, err := tun.Open(ctx, "n1", "sink", nil)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		<-conn.Done()
		<-ended
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
}

func TestTunnelToNobody(t *testing.T) {
	for name, tun := range tunnels(t, &agent{}) {
		if _, err := tun.Open(t.Context(), "n2", "echo", nil); !errors.Is(err, ErrNotHeld) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server that could not be reached a moment ago may hold the worker by now.
func TestTunnelThroughAServerThatCameLate(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	startWorker(t, "n1", nil, &agent{}, s)
	eventually(t, "the worker is connected", func() bool { return s.Hub.Holds("n1") })
	addr := nobodyAt(t)
	pool := startPool(t, nil)
	if _, err := pool.Status(t.Context(), addr); err == nil {
		t.Fatal("a server answers where none is")
	}
	elsewhere := &Tunneler{Hub: startServer(t, newCluster(), "s2", nil).Hub, Pool: pool, Peers: func() []string { return []string{addr} }}
	opened := make(chan error, 1)
	go func() {
		conn, err := elsewhere.Open(t.Context(), "n1", "echo", nil)
		if err == nil {
			err = conn.Close()
		}
		opened <- err
	}()
	forward(t, addr, s.addr)
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// forward listens at from and joins what connects with to, until the test ends.
func forward(t *testing.T, from, to string) {
	lis, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
			go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
		}
	}()
}

// TestTunnelIsAConnection runs HTTP through it, with a connection that is
// hijacked as for exec: what needs a connection finds its place here.
func TestTunnelIsAConnection(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	mux.HandleFunc("/exec", func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = buf.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
		_ = buf.Flush()
		line, _ := buf.ReadString('\n')
		_, _ = buf.WriteString(strings.ToUpper(line))
		_ = buf.Flush()
	})
	a := &agent{onTunel: func(_ context.Context, _ string, _ []byte, conn net.Conn) error {
		lis := &oneConn{conn: conn, done: make(chan struct{})}
		srv := &http.Server{Handler: mux}
		_ = srv.Serve(lis)
		return nil
	}}
	for name, tun := range tunnels(t, a) {
		tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return tun.Open(t.Context(), "n1", "http", nil)
		}}
		resp, err := (&http.Client{Transport: tr}).Post("http://worker/hello", "text/plain", strings.NewReader("hi"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(got) != "hi" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		req, _ := http.NewRequest("POST", "http://worker/exec", nil)
		req.Header.Set("Upgrade", "x")
		req.Header.Set("Connection", "Upgrade")
		resp, err = tr.RoundTrip(req)
		if err != nil || resp.StatusCode != 101 {
			t.Fatalf("%s: %v, %v", name, resp, err)
		}
		rw := resp.Body.(io.ReadWriteCloser)
		_, _ = io.WriteString(rw, "ls\n")
		if got, err = io.ReadAll(rw); err != nil || string(got) != "LS\n" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		_ = rw.Close()
		tr.CloseIdleConnections()
	}
}

// oneConn is a listener of one connection; it ends when that is closed.
type oneConn struct {
	mu   sync.Mutex
	conn net.Conn
	done chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	l.mu.Lock()
	conn := l.conn
	l.conn = nil
	l.mu.Unlock()
	if conn != nil {
		return &closeNotify{conn, sync.OnceFunc(func() { close(l.done) })}, nil
	}
	<-l.done
	return nil, io.EOF
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return tunnelAddr("one") }

type closeNotify struct {
	net.Conn
	closed func()
}

func (c *closeNotify) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

// A tunnel whose reader has stopped holds up neither the others nor the worker's own stream.
func TestStalledTunnelsHoldUpNobody(t *testing.T) {
	a := &agent{onTunel: func(_ context.Context, kind string, _ []byte, conn net.Conn) error {
		if kind == "echo" {
			_, err := io.Copy(conn, conn)
			return err
		}
		for {
			if _, err := conn.Write(make([]byte, frameBytes)); err != nil {
				return err
			}
		}
	}}
	for name, tun := range tunnels(t, a) {
		var stalled []*Tunnel
		for range 20 {
			conn, err := tun.Open(t.Context(), "n1", "flood", nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 4*frameBytes)); err != nil { // it floods, and nobody reads on
				t.Fatal(err)
			}
			stalled = append(stalled, conn)
		}
		var flows sync.WaitGroup
		for range 8 {
			flows.Go(func() { echoes(t, name, tun, 1<<20) })
		}
		flows.Wait()
		for _, conn := range stalled {
			_ = conn.Close()
		}
		for _, conn := range stalled {
			<-conn.Done()
		}
	}
}

// Many at a time, half of which end in the middle: the others do not notice.
func TestManyTunnelsEndAbruptly(t *testing.T) {
	for name, tun := range tunnels(t, &agent{}) {
		var all sync.WaitGroup
		for i := range maxTunnels / 2 { // the worker may still be closing those of before
			if i%2 == 0 {
				all.Go(func() { echoes(t, name, tun, 64<<10) })
				continue
			}
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				conn, err := tun.Open(ctx, "n1", "echo", nil)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				go func() { _, _ = conn.Write(make([]byte, 1<<20)) }()
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				cancel()
				<-conn.Done()
			})
		}
		all.Wait()
	}
}

// echoes sends so many bytes, and wants them back.
func echoes(t *testing.T, name string, tun *Tunneler, size int) {
	conn, err := tun.Open(t.Context(), "n1", "echo", nil)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	want := bytes.Repeat([]byte{7}, size)
	go func() { _, _ = conn.Write(want) }()
	got := make([]byte, size)
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %v, equal %v", name, err, bytes.Equal(got, want))
	}
	_ = conn.Close()
	<-conn.Done()
}
