package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/pki"
)

var attackConnections = flag.Int("attack.connections", 4000, "how many idle connections TestAttacks opens at once")

const (
	// A process may open so many files; others hold what else is idle.
	holderConnections = 16_000
	holdVariable      = "BERTH_E2E_HOLD"

	// mostOfLocalAddress is how many connections of one address of this machine may be without a handshake at a port, and
	// mostOfWorker how many of a worker's key a server's RPC has.
	mostOfLocalAddress = 2048
	mostOfWorker       = 4
	// beyond is how many more than that are opened, shaken how many that have shaken hands, at each port.
	beyond, shaken = 300, 50
)

// Connections on which nothing is said, from many addresses; and some that have shaken hands and say nothing then.
func (a *attacked) idleConnections(t *testing.T) {
	var doors []string
	for _, d := range a.doors() {
		doors = append(doors, d.addr)
	}
	for _, p := range a.Processes() {
		doors = append(doors, portOf(p, p.Ports.Gossip))
	}
	var silent holders
	for first := 0; first < *attackConnections; first += holderConnections {
		silent = append(silent, hold(t, first, min(*attackConnections, first+holderConnections), doors))
	}
	t.Logf("%d of %d connections were taken, and of them %d are open", silent.opened(t), *attackConnections, silent.open(t))
	known := a.shakenHands(t)
	a.unharmed(t) // while they are there
	a.boundOfAPort(t)
	// Who says nothing is cut off, before the handshake and behind it; the port has room for others then.
	a.eventually(t, "no connection to be left", func(context.Context) error {
		if open := silent.open(t); open > 0 {
			return fmt.Errorf("%d that have said nothing are open", open)
		}
		for what, conns := range known {
			if open := countOpen(conns); open > 0 {
				return fmt.Errorf("%d of those that have shaken hands at %s are open", open, what)
			}
		}
		return nil
	})
}

// shakenHands are connections to each port that have shown a good certificate, by port: an administrator's at the API, a worker's at the others.
func (a *attacked) shakenHands(t *testing.T) map[string][]net.Conn {
	t.Helper()
	admin := a.tls(t, a.issued(t, pki.Request{Kind: pki.Client, Name: "ada", Groups: []string{"system:masters"}}))
	thief := a.tls(t, a.issued(t, pki.Request{Kind: pki.Worker, Name: "w3"}))
	known := map[string][]net.Conn{}
	for _, d := range a.doors() {
		config, opens := thief.Clone(), strings.HasSuffix(d.name, "RPC")
		if strings.HasSuffix(d.name, "API") {
			config = admin.Clone()
		}
		if !strings.HasSuffix(d.name, "Raft") {
			config.NextProtos = []string{"h2"}
		}
		for range shaken {
			plain, err := net.DialTimeout("tcp", d.addr, patience)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = plain.Close() }) // the server may have done it
			if err := plain.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			conn := tls.Client(plain, config)
			if err := conn.HandshakeContext(t.Context()); err != nil && isTimeout(err) {
				t.Fatalf("%s: %v", d.name, err)
			}
			if opens { // a call could follow
				_, _ = io.WriteString(conn, http2.ClientPreface) // it may have been closed
				_ = http2.NewFramer(conn, nil).WriteSettings()
			}
			known[d.name] = append(known[d.name], plain)
		}
		if opens {
			a.eventually(t, d.name+" to have no more of a worker than it may", func(context.Context) error {
				if open := countOpen(known[d.name]); open > mostOfWorker {
					return fmt.Errorf("%d are open", open)
				}
				return nil
			})
		}
	}
	return known
}

// boundOfAPort: of one address a port has so many that have not shaken hands, and gossip so many at all; what is beyond is closed, and counted.
func (a *attacked) boundOfAPort(t *testing.T) {
	t.Helper()
	s := a.followers(t)[0]
	for door, port := range map[string]int{"api": s.Ports.HTTP, "rpc": s.Ports.RPC, "raft": s.Ports.Raft, "gossip": s.Ports.Gossip} {
		before := a.refusedAt(t, s, door)
		opened := holders{hold(t, -1, mostOfLocalAddress+beyond, []string{portOf(s, port)})}.opened(t)
		a.eventually(t, door+" to close what is beyond its bound", func(context.Context) error {
			if refused := a.refusedAt(t, s, door) - before; refused < opened-mostOfLocalAddress || opened <= mostOfLocalAddress {
				return fmt.Errorf("of %d connections %d were refused", opened, refused)
			}
			return nil
		})
	}
	a.unharmed(t)
}

// refusedAt is how many connections found no place at a server's port.
func (a *attacked) refusedAt(t *testing.T, s *fleet.Process, door string) int {
	t.Helper()
	raw, err := s.Kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), `berth_handshakes_refused_total{door="`+door+`"} `)
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseFloat(line, 64)
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// holder is a process that has connections open.
type holder struct {
	in  io.Writer
	out *bufio.Reader
}

type holders []*holder

// hold has a process open connections until the test is over: the first to the last, each of which has its address, or from one address if first is negative.
func hold(t *testing.T, first, last int, doors []string) *holder {
	t.Helper()
	h := exec.Command(os.Args[0])
	h.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s", holdVariable, first, last, strings.Join(doors, " ")))
	h.Stderr = os.Stderr
	in, err := h.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // it ends then
		if err := h.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &holder{in: in, out: bufio.NewReader(out)}
}

// opened is how many connections could be dialled, told once.
func (hs holders) opened(t *testing.T) (sum int) {
	t.Helper()
	for _, h := range hs {
		line, err := h.out.ReadString('\n')
		n, bad := strconv.Atoi(strings.TrimSpace(line))
		if err = errors.Join(err, bad); err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// open is how many of them are open now.
func (hs holders) open(t *testing.T) int {
	t.Helper()
	for _, h := range hs {
		if _, err := io.WriteString(h.in, "count\n"); err != nil {
			t.Fatal(err)
		}
	}
	return hs.opened(t)
}

// holdConnections is the whole of a process that opens the connections that holdVariable says, to each of the doors in turn, says how many could
// be dialled, keeps them until its input ends, and says for each line how many are open.
func holdConnections(what string) error {
	fields := strings.Fields(what)
	if len(fields) < 3 {
		return fmt.Errorf("%s=%q names no door", holdVariable, what)
	}
	first, err := strconv.Atoi(fields[0])
	if err != nil {
		return err
	}
	last, err := strconv.Atoi(fields[1])
	if err != nil {
		return err
	}
	doors := fields[2:]
	var conns []net.Conn
	for i := max(first, 0); i < last; i++ {
		from := net.IPv4(127, 0, byte(1+i/20_000), byte(1+i/250%80))
		if first < 0 {
			from = net.IPv4(127, 0, 200, 1)
		}
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}, Timeout: time.Second}
		if c, err := d.Dial("tcp", doors[i%len(doors)]); err == nil { // or it is full
			conns = append(conns, c)
		}
	}
	fmt.Println(len(conns))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(countOpen(conns))
	}
	return nil
}

// countOpen is how many of TCP's connections the other end has not closed. What it has sent is passed over.
func countOpen(conns []net.Conn) (open int) {
	buffer := make([]byte, 4<<10)
	for _, c := range conns {
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			continue // this end is closed
		}
		_ = raw.Control(func(fd uintptr) { // it fails if this end is closed
			for {
				n, _, err := syscall.Recvfrom(int(fd), buffer, syscall.MSG_DONTWAIT)
				if errors.Is(err, syscall.EAGAIN) {
					open++
				}
				if n <= 0 || err != nil {
					return
				}
			}
		})
	}
	return open
}
