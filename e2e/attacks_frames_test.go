package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

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

// recordedWorker sends once more what a worker has sent, as it was on the wire: a report of a pod, which had an effect then. Another one was sent since,
// so it would be seen if the first had one again.
func (a *attacked) recordedWorker(t *testing.T, config *tls.Config) {
	t.Helper()
	leader := a.waitLeader(t)
	var mu sync.Mutex
	var taps []*tapped
	conn, err := grpc.NewClient("passthrough:///"+portOf(leader, leader.Ports.RPC), grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithDefaultCallOptions(grpc.ForceCodec(packed{})),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			plain, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			mu.Lock()
			defer mu.Unlock()
			taps = append(taps, &tapped{Conn: plain})
			return taps[len(taps)-1], err
		}))
	if err != nil {
		t.Fatal(err)
	}
	kube := leader.Kube
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := a.session(ctx, t, &thief{t: t, conn: conn})
	reported := pod(a.ns, "recorded", "true")
	reported.Spec.NodeName = "w3"
	create(t, kube, reported)
	t.Cleanup(func() {
		now := int64(0)
		err := errors.Join(kube.CoreV1().Pods(a.ns).Delete(context.Background(), "recorded", metav1.DeleteOptions{GracePeriodSeconds: &now}),
			kube.CoreV1().Nodes().Delete(context.Background(), "w3", metav1.DeleteOptions{}))
		if err != nil {
			t.Error(err)
		}
	})
	a.reports(t, first, kube, "said first")
	if err := conn.Close(); err != nil { // all that it has sent is on the wire
		t.Fatal(err)
	}
	second := a.session(ctx, t, a.thief(t))
	before := a.reports(t, second, kube, "said since")
	mu.Lock()
	defer mu.Unlock()
	for _, s := range a.Servers() {
		for _, tap := range taps {
			resend(t, portOf(s, s.Ports.RPC), tap.recorded())
		}
	}
	after, err := kube.CoreV1().Pods(a.ns).Get(t.Context(), "recorded", metav1.GetOptions{})
	if err != nil || after.ResourceVersion != before.ResourceVersion || after.Status.Message != "said since" {
		t.Errorf("what was recorded has an effect: %v, %+v, and it was %+v", err, after.Status, before.Status)
	}
}

// session is a worker's stream, on which its assignments have come.
func (a *attacked) session(ctx context.Context, t *testing.T, f *thief) grpc.ClientStream {
	t.Helper()
	stream, err := f.connect(ctx, &rpc.Hello{Name: "w3", Instance: "recorded", Node: nodeOf(t, "w3")})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// reports says something of the pod that w3 has, and returns the pod as it is then.
func (a *attacked) reports(t *testing.T, stream grpc.ClientStream, kube kubernetes.Interface, says string) *corev1.Pod {
	t.Helper()
	p, err := kube.CoreV1().Pods(a.ns).Get(t.Context(), "recorded", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := (&corev1.PodStatus{Phase: corev1.PodRunning, Message: says}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	report := rpc.PodReport{Namespace: a.ns, Name: "recorded", UID: string(p.UID), Status: raw}
	if err := stream.SendMsg(&rpc.WorkerMessage{Status: &rpc.StatusBatch{ID: 1, Pods: []rpc.PodReport{report}}}); err != nil {
		t.Fatal(err)
	}
	for {
		m := new(rpc.ServerMessage)
		if err := stream.RecvMsg(m); err != nil {
			t.Fatal(err)
		}
		if len(m.Acks) > 0 {
			break
		}
	}
	if p, err = kube.CoreV1().Pods(a.ns).Get(t.Context(), "recorded", metav1.GetOptions{}); err != nil || p.Status.Message != says {
		t.Fatalf("the report %q has come to %v, %+v", says, err, p.Status)
	}
	return p
}

// resend says to a port what was said to one before, until the connection ends.
func resend(t *testing.T, addr string, sent []byte) {
	t.Helper()
	again, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }() // it was only read
	if err := again.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	_, _ = again.Write(sent) // it may be cut off in it
	if _, err := io.Copy(io.Discard, again); isTimeout(err) {
		t.Errorf("%s leaves the connection open: %v", addr, err)
	}
}
