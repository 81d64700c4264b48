package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/pki"
)

const (
	// forwardsAtOnce bounds the connections of a node's pods to the API, forwardsOfPod those from one address that is
	// not the node's own.
	forwardsAtOnce = 1024
	forwardsOfPod  = 64
	// forwardDial is how long one server may take to accept one, before the next is tried.
	forwardDial = 3 * time.Second
	// forwardPorts is how many ports are tried that are to be free at two addresses.
	forwardPorts = 16

	loopback = "127.0.0.1"
)

// forwarder is where the pods of a node find the API: it hands connections on to whichever server answers, and knows
// nothing of what is in them. A pod's environment is made once and lives longer than any server; TLS goes from the pod
// to the server, whose certificate has both names that pods know the forwarder by.
type forwarder struct {
	log     hclog.Logger
	servers func() []string // the API's addresses, host:port
	port    string
	// node is the address at which pods with addresses of their own find the forwarder; empty: nowhere.
	node      string
	listeners []net.Listener
	conns     sync.WaitGroup

	mu   sync.Mutex
	all  int
	from map[string]int // by the address of a pod
}

// openForwarder listens on the loopback address and, where it is another one, on the node's, at one port that stays the
// same from one start of the worker to the next.
func openForwarder(log hclog.Logger, dataDir, node string, servers func() []string) (*forwarder, error) {
	f := &forwarder{log: log, servers: servers, from: map[string]int{}}
	if ip := net.ParseIP(node); ip != nil && !ip.IsLoopback() {
		f.node = node
	}
	if err := os.MkdirAll(dataDir, 0o711); err != nil { // #nosec G301 -- containers reach their volumes below it, and see no names in it
		return nil, err
	}
	path := filepath.Join(dataDir, "api-port")
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	before := strings.TrimSpace(string(raw))
	if before != "" {
		if err = f.listen(before); err == nil {
			return f, nil
		}
		log.Warn("the port at which pods find the API is taken; pods that run find it no more until they are started again",
			"port", before, "error", err)
	}
	for range forwardPorts {
		if err = f.listen("0"); err != nil {
			continue // it is free at one address and not at the other
		}
		if err = atomicfile.Write(path, []byte(f.port+"\n"), 0o600); err != nil {
			f.close()
			return nil, err
		}
		return f, nil
	}
	return nil, err
}

func (f *forwarder) listen(port string) error {
	for _, address := range []string{loopback, f.node} {
		if address == "" {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(address, port))
		if err != nil {
			f.close()
			f.listeners = nil
			return err
		}
		f.listeners = append(f.listeners, l)
		port = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	f.port = port
	return nil
}

// close is for one that does not run, too, and for nil.
func (f *forwarder) close() {
	if f == nil {
		return
	}
	for _, l := range f.listeners {
		_ = l.Close() // it accepts no more either way
	}
}

// run serves until ctx ends.
func (f *forwarder) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, f.close)
	defer stop()
	var accepting sync.WaitGroup
	for _, l := range f.listeners {
		accepting.Go(func() { f.accept(ctx, l) })
	}
	accepting.Wait()
	f.conns.Wait()
}

func (f *forwarder) accept(ctx context.Context, l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // as when there are too many open files
			case <-time.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
				return
			}
		}
		pod := f.podOf(conn)
		if !f.enter(pod) {
			_ = conn.Close() // the client tries again
			continue
		}
		f.conns.Go(func() {
			defer f.leave(pod)
			f.forward(ctx, conn)
		})
	}
}

// podOf is the address of the pod that a connection is from; empty for those that share the node's.
func (f *forwarder) podOf(conn net.Conn) string {
	from, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || from.IP.IsLoopback() || from.IP.String() == f.node {
		return ""
	}
	return from.IP.String()
}

func (f *forwarder) enter(pod string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all >= forwardsAtOnce || pod != "" && f.from[pod] >= forwardsOfPod {
		return false
	}
	f.all++
	f.from[pod]++
	return true
}

func (f *forwarder) leave(pod string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all--
	if f.from[pod]--; f.from[pod] == 0 {
		delete(f.from, pod)
	}
}

func (f *forwarder) forward(ctx context.Context, from net.Conn) {
	defer func() { _ = from.Close() }() // at the latest
	to, err := f.dial(ctx)
	if err != nil {
		f.log.Debug("a pod cannot reach the API", "error", err)
		return
	}
	defer func() { _ = to.Close() }()
	stop := context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })
	defer stop()
	var ways sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		ways.Go(func() {
			_, _ = io.Copy(way[1], way[0]) // whatever ended it, the other end is told
			if half, ok := way[1].(*net.TCPConn); ok {
				_ = half.CloseWrite()
			}
		})
	}
	ways.Wait()
}

// dial reaches any server. Which one is tried first is random, so that pods spread.
func (f *forwarder) dial(ctx context.Context) (net.Conn, error) {
	servers := f.servers()
	err := errors.New("no server is known yet")
	for _, i := range rand.Perm(len(servers)) { // #nosec G404 -- no secret: it only spreads what is asked over time, servers or places
		d := net.Dialer{Timeout: forwardDial}
		var conn net.Conn
		if conn, err = d.DialContext(ctx, "tcp", servers[i]); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// addressFor is where a pod finds the forwarder, as its containers' environment says it; empty: nowhere.
func (f *forwarder) addressFor(pod *corev1.Pod, ownNetwork bool) (host, port string) {
	switch {
	case !ownNetwork || pod.Spec.HostNetwork:
		return loopback, f.port
	case f.node == "":
		return "", ""
	}
	return pki.ServerDNSName, f.port
}

// hostAliases give pods with addresses of their own the forwarder's name, which is one of every server's certificate.
func (f *forwarder) hostAliases() []corev1.HostAlias {
	if f == nil || f.node == "" {
		return nil
	}
	return []corev1.HostAlias{{IP: f.node, Hostnames: []string{pki.ServerDNSName}}}
}

// startForwarder is openForwarder for a worker that goes on without one.
func startForwarder(c *WorkerConfig, servers func() []string) *forwarder {
	if c.DataDir == "" || c.Containers != nil || c.Runtime == "fake" {
		return nil
	}
	node := ""
	if c.Runtime == "cri" && len(c.Node.Addresses) > 0 {
		node = c.Node.Addresses[0]
	}
	f, err := openForwarder(c.Logger, c.DataDir, node, servers)
	if err != nil {
		c.Logger.Warn("pods will not find the API: it cannot be forwarded", "error", fmt.Errorf("listening for pods: %w", err))
		return nil
	}
	if c.Runtime == "cri" && f.node == "" {
		c.Logger.Warn("pods with addresses of their own will not find the API: they cannot reach this node's address", "address", node)
	}
	return f
}
