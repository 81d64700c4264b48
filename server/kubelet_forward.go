package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/moby/spdystream"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

const (
	portForwardProtocol = "portforward.k8s.io"
	// maxForwardError bounds what a kubelet says of why it could not connect.
	maxForwardError = 1 << 10
)

// kubeletForward connects to a port of a pod by way of its kubelet: servers need no way to the
// network of the pods. The kubelet connects within the pod, to its loopback interface.
func (s *Server) kubeletForward(ctx context.Context, k *kubelet, pod *corev1.Pod, port uint16) (net.Conn, error) {
	conn, err := s.dialKubelet(ctx, k)
	if err != nil {
		return nil, err
	}
	over, err := upgrade(conn, k.node, "/portForward/"+url.PathEscape(pod.Namespace)+"/"+url.PathEscape(pod.Name))
	if err != nil {
		_ = conn.Close() // the first error is the one that matters
		return nil, unreachable(k.node, err)
	}
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	said, err := over.CreateStream(headers)
	if err == nil {
		_ = said.Close() // nothing is written there
		headers.Set(corev1.StreamType, corev1.StreamTypeData)
		var data httpstream.Stream
		if data, err = over.CreateStream(headers); err == nil {
			return &forwarded{Conn: conn, over: over, data: data, said: said}, nil
		}
		err = because(said, err, spdystream.ErrReset)
	}
	_ = over.Close() // as above
	return nil, unreachable(k.node, err)
}

// upgrade asks for a connection of streams on one that is there.
func upgrade(conn net.Conn, host, path string) (httpstream.Connection, error) {
	if err := conn.SetDeadline(time.Now().Add(kubeletBegin)); err != nil {
		return nil, err
	}
	r, err := http.NewRequest(http.MethodPost, (&url.URL{Scheme: "http", Host: host, Path: path}).String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	r.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	r.Header.Set(httpstream.HeaderProtocolVersion, portForwardProtocol)
	if err := r.Write(conn); err != nil {
		return nil, err
	}
	head := &io.LimitedReader{R: conn, N: kubeletHeaderBytes}
	in := bufio.NewReader(head)
	resp, err := http.ReadResponse(in, r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // a switch of protocols has none
	if resp.StatusCode != http.StatusSwitchingProtocols {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, maxForwardError)) // the status says it, too
		return nil, fmt.Errorf("it answers %s: %s", resp.Status, why)
	}
	if in.Buffered() > 0 {
		return nil, errors.New("it speaks before it is spoken to")
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	return spdy.NewClientConnection(conn)
}

// forwarded is a connection to a port of a pod: a stream of one to its kubelet, which is for it alone.
type forwarded struct {
	net.Conn // to the kubelet: whose addresses these are
	over     httpstream.Connection
	data     httpstream.Stream
	said     httpstream.Stream
}

// Read implements net.Conn. Where it ends because the pod could not be connected to, the error says so.
func (f *forwarded) Read(b []byte) (int, error) {
	n, err := f.data.Read(b)
	return n, because(f.said, err, io.EOF)
}

// Write implements net.Conn. It fails for the same reason where the kubelet was quicker.
func (f *forwarded) Write(b []byte) (int, error) {
	n, err := f.data.Write(b)
	return n, because(f.said, err, spdystream.ErrReset)
}

// because is what a kubelet has said of why it ended the data, which err is if it is end.
func because(said io.Reader, err, end error) error {
	if !errors.Is(err, end) {
		return err
	}
	why, _ := io.ReadAll(io.LimitReader(said, maxForwardError)) // it ends with the data
	if len(why) > 0 {
		return errors.New(string(why))
	}
	return err
}

// CloseWrite tells the pod that nothing more comes.
func (f *forwarded) CloseWrite() error { return f.data.Close() }

// Close implements net.Conn.
func (f *forwarded) Close() error { return errors.Join(f.data.Reset(), f.over.Close(), f.Conn.Close()) }

// Deadlines are those of who asked: the connection ends with the request. The connection to the kubelet has
// frames of its own, so one for reading or writing it would not be this one's.

// SetDeadline implements net.Conn.
func (f *forwarded) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (f *forwarded) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (f *forwarded) SetWriteDeadline(time.Time) error { return nil }
