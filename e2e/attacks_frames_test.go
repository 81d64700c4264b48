package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/rpc"
)

// mostHeaders is how much of a header that has no end a server is sent at the most, before it should have ended the connection.
const mostHeaders = 64 << 20

// opened is what every client of the RPC says first.
func opened(w io.Writer) *http2.Framer {
	_, _ = io.WriteString(w, http2.ClientPreface) // how the connection ends is told by what is read
	f := http2.NewFramer(w, nil)
	f.AllowIllegalWrites = true
	_ = f.WriteSettings() // as above
	return f
}

// callHeaders begin a call of a worker's.
func callHeaders() []byte {
	var out bytes.Buffer
	e := hpack.NewEncoder(&out)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", "/berth.rpc.Worker/Fetch"}, {":authority", "berth"},
		{"content-type", "application/grpc+berth-msgpack"}, {"te", "trailers"}} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // a buffer takes all
	}
	return out.Bytes()
}

// frames are what no worker says. Of those that end, a server must end the connection, whatever else it does.
var frames = map[string]struct {
	ends bool
	say  func(io.Writer)
}{
	"noise": {true, func(w io.Writer) { _, _ = io.CopyN(w, rand.Reader, 64<<10) }},
	"a request of another protocol": {true, func(w io.Writer) {
		_, _ = io.WriteString(w, "POST /berth.rpc.Worker/Fetch HTTP/1.1\r\nHost: berth\r\nContent-Length: 99999999999\r\n\r\n")
	}},
	"a frame that is longer than any": {true, func(w io.Writer) {
		opened(w)
		_, _ = w.Write([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1})
	}},
	"half a frame":        {false, func(w io.Writer) { opened(w); _, _ = w.Write([]byte{0, 0x40, 0, 1, 4}) }},
	"a second greeting":   {true, func(w io.Writer) { opened(w); opened(w) }},
	"headers of no table": {true, func(w io.Writer) { writeHeaders(opened(w), 1, []byte{0xff, 0xff, 0xff, 0xff, 0x7f}, true) }},
	"a header without an end": {true, func(w io.Writer) {
		f := opened(w)
		writeHeaders(f, 1, callHeaders(), false)
		more := bytes.Repeat([]byte{0x40, 1, 'a', 1, 'b'}, 3000)
		for sent := 0; sent < mostHeaders && f.WriteContinuation(1, false, more) == nil; sent += len(more) {
		}
	}},
	"a message of 4 GiB": {false, func(w io.Writer) {
		f := opened(w)
		writeHeaders(f, 1, callHeaders(), true)
		_ = f.WriteData(1, false, append([]byte{0, 0xff, 0xff, 0xff, 0xff}, make([]byte, 16<<10-5)...))
	}},
	"a message that is no message": {false, func(w io.Writer) {
		f := opened(w)
		writeHeaders(f, 1, callHeaders(), true)
		// An array of four billion, a map of as many, and a text.
		for i, lie := range [][]byte{{0xdd, 0xff, 0xff, 0xff, 0xff}, {0xdf, 0xff, 0xff, 0xff, 0xff}, {0xdb, 0xff, 0xff, 0xff, 0xff}} {
			stream := uint32(1 + 2*i)
			if i > 0 {
				writeHeaders(f, stream, callHeaders(), true)
			}
			_ = f.WriteData(stream, true, append([]byte{0, 0, 0, 0, byte(len(lie))}, lie...))
		}
	}},
	"calls that are taken back": {false, func(w io.Writer) {
		f, headers := opened(w), callHeaders()
		for i := range uint32(20_000) {
			writeHeaders(f, 1+2*i, headers, true)
			if f.WriteRSTStream(1+2*i, http2.ErrCodeCancel) != nil {
				return
			}
		}
	}},
	"pings": {false, func(w io.Writer) {
		f := opened(w)
		for range 50_000 {
			if f.WritePing(false, [8]byte{}) != nil {
				return
			}
		}
	}},
	"settings": {false, func(w io.Writer) {
		f := opened(w)
		for i := range uint32(50_000) {
			if f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: i}) != nil {
				return
			}
		}
	}},
}

func writeHeaders(f *http2.Framer, stream uint32, block []byte, whole bool) {
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block, EndHeaders: whole}) // how it ends is told by what is read
}

// Behind a handshake that is a good one, a worker's, nothing is believed either; and a worker's session is worth nothing to who has recorded it.
func (a *attacked) framesAfterTheHandshake(t *testing.T) {
	config := a.tls(t, a.issued(t, pki.Request{Kind: pki.Worker, Name: "w3"}))
	config.NextProtos = []string{"h2"}
	for _, s := range a.Servers() {
		for what, one := range frames {
			conn := a.through(t, portOf(s, s.Ports.RPC), config)
			read := make(chan error, 1)
			go func() {
				_, err := io.Copy(io.Discard, conn)
				read <- err
			}()
			one.say(conn)
			if one.ends {
				if err := <-read; isTimeout(err) {
					t.Errorf("%s leaves the connection open after %s", s.Name, what)
				}
			}
			_ = conn.Close() // it may have ended
			if !one.ends {
				<-read
			}
		}
	}
	a.recordedWorker(t, config)
}

// through is a connection whose hands are shaken, with a deadline.
func (a *attacked) through(t *testing.T, addr string, config *tls.Config) *tls.Conn {
	t.Helper()
	plain, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(plain, config)
	if err := errors.Join(conn.SetDeadline(time.Now().Add(patience)), conn.Handshake()); err != nil {
		t.Fatal(err)
	}
	return conn
}

// recordedWorker sends once more what a worker has sent, as it was on the wire.
func (a *attacked) recordedWorker(t *testing.T, config *tls.Config) {
	t.Helper()
	addr := portOf(a.waitLeader(t), a.waitLeader(t).Ports.RPC)
	var tap *tapped
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithDefaultCallOptions(grpc.ForceCodec(packed{})),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			plain, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			tap = &tapped{Conn: plain}
			return tap, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	what := &rpc.FetchRequest{Node: "w3", Resource: "configmaps", Namespace: a.ns, Name: "kube-root-ca.crt"}
	if code := invoke(t, conn, "/berth.rpc.Worker/Fetch", what, new(rpc.FetchResponse)); code == codes.OK || code == codes.Unavailable {
		t.Errorf("the worker itself is answered %v", code)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }() // it was only read
	if err := again.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	_, _ = again.Write(tap.sent.Bytes()) // it may be cut off in it
	if _, err := io.Copy(io.Discard, again); isTimeout(err) {
		t.Errorf("the connection stays open: %v", err)
	}
}
