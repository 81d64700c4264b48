package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/handshake"
	"github.com/berth-dev/berth/pki"
)

// TestWorkerSendsTooMuch: a worker's message is refused by its length, which a
// server's is not.
func TestWorkerSendsTooMuch(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	cc := dialAs(t, s, pki.Worker, "n1")
	desc := bothWays("Connect", nil)
	st, err := cc.NewStream(t.Context(), &desc, methodConnect)
	if err != nil {
		t.Fatal(err)
	}
	_ = st.SendMsg(&WorkerMessage{Hello: &Hello{Name: "n1", Node: make([]byte, MaxWorkerMessageBytes)}}) // how it ends is told below
	if err := st.RecvMsg(new(ServerMessage)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a worker's large message: %v", err)
	}
	if _, err := startPool(t, nil).Forward(t.Context(), s.addr, make([]byte, 2*MaxWorkerMessageBytes)); err != nil {
		t.Errorf("a server's: %v", err)
	}
}

// TestRefusedUnread: whoever may not call a method is refused by its header. What
// it announces and sends after that is neither read nor kept.
func TestRefusedUnread(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	for name, src := range map[string]*pki.Source{
		"a worker": oneCA(t).source(pki.Worker, "n1"), "a client": oneCA(t).source(pki.Client, "ann"),
	} {
		raw := rawHTTP2(t, s.addr, src)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for id := uint32(1); id < 80; id += 2 {
			raw.call(id, methodForward)
			var head [5]byte // a message of 64 MiB follows
			binary.BigEndian.PutUint32(head[1:], MaxMessageBytes)
			raw.must(raw.framer.WriteData(id, false, head[:]))
		}
		for range 40 {
			if code := raw.grpcStatus(); code != "7" {
				t.Fatalf("%s: grpc-status %s, want PermissionDenied", name, code)
			}
		}
		runtime.ReadMemStats(&after)
		if grew := after.TotalAlloc - before.TotalAlloc; grew > 16<<20 {
			t.Errorf("%s: 40 refused calls cost %d bytes", name, grew)
		}
	}
}

// rawConn speaks HTTP/2 by hand.
type rawConn struct {
	t      *testing.T
	framer *http2.Framer
	enc    *hpack.Encoder
	buf    *writer
}

type writer struct{ b []byte }

func (w *writer) Write(b []byte) (int, error) { w.b = append(w.b, b...); return len(b), nil }

func rawHTTP2(t *testing.T, addr string, src *pki.Source) *rawConn {
	t.Helper()
	plain, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := clientCredentials(src)
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := creds.ClientHandshake(t.Context(), pki.ServerDNSName, plain)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	r := &rawConn{t: t, framer: http2.NewFramer(conn, conn), buf: &writer{}}
	r.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	r.enc = hpack.NewEncoder(r.buf)
	r.must(r.framer.WriteSettings())
	return r
}

func (r *rawConn) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rawConn) call(id uint32, method string) {
	r.t.Helper()
	r.buf.b = nil
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", pki.ServerDNSName},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		r.must(r.enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
	}
	r.must(r.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.buf.b, EndHeaders: true}))
}

// grpcStatus is that of the next call that ends.
func (r *rawConn) grpcStatus() string {
	r.t.Helper()
	for {
		f, err := r.framer.ReadFrame()
		r.must(err)
		if s, ok := f.(*http2.SettingsFrame); ok && !s.IsAck() {
			r.must(r.framer.WriteSettingsAck())
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			for _, field := range h.RegularFields() {
				if field.Name == "grpc-status" {
					return field.Value
				}
			}
		}
	}
}

// TestConnectionsAreCounted: an identity has a bounded number of connections, and
// one that ends makes room; others are not concerned.
func TestConnectionsAreCounted(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	open := func(name string) (net.Conn, error) {
		plain, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		creds, err := clientCredentials(oneCA(t).source(pki.Worker, name))
		if err != nil {
			t.Fatal(err)
		}
		conn, _, err := creds.ClientHandshake(t.Context(), pki.ServerDNSName, plain)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = conn.Close() }) // the test is over
		// The server speaks first: its settings, or the end.
		_, err = http2.NewFramer(io.Discard, conn).ReadFrame()
		return conn, err
	}
	var first net.Conn
	for i := range workerLimits().connections {
		c, err := open("n1")
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if first == nil {
			first = c
		}
	}
	if _, err := open("n1"); err == nil {
		t.Error("one more than it may")
	}
	if _, err := open("n2"); err != nil {
		t.Errorf("another worker: %v", err)
	}
	_ = first.Close()
	eventually(t, "there is room again", func() bool { _, err := open("n1"); return err == nil })
}

// TestSilentPeers: who connects and shows no certificate holds up nobody, and the
// server's end.
func TestSilentPeers(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	for range 50 {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }() // the test is over
	}
	if _, err := startPool(t, nil).ReadIndex(t.Context(), s.addr); err != nil {
		t.Error(err)
	}
	began := make(chan struct{})
	go func() { defer close(began); s.stop() }()
	ctx, cancel := context.WithTimeout(t.Context(), handshake.Timeout/2)
	defer cancel()
	select {
	case <-began:
	case <-ctx.Done():
		t.Error("the server waits for peers that say nothing")
	}
}

// TestWorkerCallsServers: a worker's certificate opens nothing of the servers'.
func TestWorkerCallsServers(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	cc := dialAs(t, s, pki.Worker, "s1")
	for _, m := range s.serverDesc().Methods {
		err := cc.Invoke(t.Context(), "/"+serverService+"/"+m.MethodName, &StatusRequest{}, new(StatusResponse))
		if err, _ = fromStatus(err); !errors.Is(err, ErrForbidden) {
			t.Errorf("%s: %v", m.MethodName, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := cc.Invoke(ctx, "/grpc.health.v1.Health/Check", &StatusRequest{}, new(StatusResponse)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a method of nobody: %v", err)
	}
}

// TestAWorkersMessageBecomesNoMore: what a worker sends within the bytes of a message does not become ten times as much when it is decoded; a
// batch of the smallest reports is taken.
func TestAWorkersMessageBecomesNoMore(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	send := func(raw []byte) error {
		cc := dialAs(t, s, pki.Worker, "n1")
		desc := bothWays("Connect", nil)
		st, err := cc.NewStream(t.Context(), &desc, methodConnect, grpc.ForceCodecV2(rawCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		_ = st.SendMsg(raw) // a refusal shows when receiving
		err, _ = fromStatus(st.RecvMsg(new([]byte)))
		return err
	}
	small := &StatusBatch{Pods: make([]PodReport, 2570)}
	for i := range small.Pods {
		small.Pods[i] = PodReport{Namespace: "n", Name: "p", UID: "u", Status: []byte{1}, Removed: true}
	}
	honest, err := encode(&WorkerMessage{Status: small})
	if err != nil {
		t.Fatal(err)
	}
	many := append([]byte("\x81\xa6status\x81\xa4pods\xdd\x00\x07\xf0\x00"), bytes.Repeat([]byte{0x80}, 0x7f000)...)
	// Both are no hello; one is refused before that is known.
	if err := send(honest); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "begins with its name") {
		t.Errorf("a batch: %v", err)
	}
	if err := send(many); err == nil || !strings.Contains(err.Error(), "too many elements") {
		t.Errorf("half a million reports: %v", err)
	}
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "raw" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

// counted is a stream that says again and again what it says, and counts how often it was read.
type counted struct {
	grpc.ServerStream
	say  WorkerMessage
	read atomic.Int32
	most int32 // after which it is silent
	done <-chan struct{}
}

func (c *counted) RecvMsg(m any) error {
	if c.read.Add(1) > c.most {
		<-c.done
		return io.EOF
	}
	*m.(*WorkerMessage) = c.say
	return nil
}

// TestNothingIsReadAhead: before a worker is welcome nothing but its hello is read, and then no batch but the one that it may send.
func TestNothingIsReadAhead(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	st := &counted{say: WorkerMessage{Status: new(StatusBatch)}, most: 100, done: ctx.Done()}
	call := func(_ string, f func()) bool { f(); return true }
	in := receiveWorker(ctx, call, cancel, st, newHeard())
	<-in.messages
	in.batch.Store(false)
	if n := st.read.Load(); n != 1 {
		t.Errorf("%d messages were read", n)
	}
	in.goOn()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, ErrInvalid) || st.read.Load() != 3 || len(in.messages) != 1 {
		t.Errorf("%d messages were read, %d wait: %v", st.read.Load(), len(in.messages), err)
	}
	heartbeats, end := context.WithCancelCause(t.Context())
	defer end(nil)
	beats := &counted{say: WorkerMessage{Heartbeat: true}, most: 10, done: heartbeats.Done()}
	in = receiveWorker(heartbeats, call, end, beats, newHeard())
	in.goOn()
	for range beats.most {
		<-in.messages
	}
}
