package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-dev/berth/atomicfile"
)

// devPorts remembers the ports of a development cluster's servers: a server's
// address is part of the consensus, so it has to be the same after a restart.
func devPorts(path string, servers int) ([]Ports, error) {
	var ports []Ports
	b, err := os.ReadFile(path)
	switch {
	case err == nil:
		if err := json.Unmarshal(b, &ports); err != nil {
			return nil, lostPorts(path, err)
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, lostPorts(path, err)
	}
	if len(ports) >= servers {
		return ports, nil
	}
	free, err := FreePorts(4 * servers) // at once, so that no two servers get the same
	if err != nil {
		return nil, err
	}
	free = slices.DeleteFunc(free, func(port int) bool {
		return slices.ContainsFunc(ports, func(p Ports) bool { return slices.Contains([]int{p.HTTP, p.RPC, p.Raft, p.Gossip}, port) })
	})
	for ; len(ports) < servers; free = free[4:] {
		ports = append(ports, Ports{HTTP: free[0], RPC: free[1], Raft: free[2], Gossip: free[3]})
	}
	if b, err = json.Marshal(ports); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := atomicfile.Sweep(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return ports, atomicfile.Write(path, b, 0o600)
}

// lostPorts is the end of a cluster whose servers' addresses are known from nowhere else that could be read before they run.
func lostPorts(path string, err error) error {
	return fmt.Errorf("%s is damaged (%w): put it back from a copy; without one, remove everything in %s, and another cluster begins", path, err, filepath.Dir(path))
}

const (
	// firstPort is the lowest that FreePorts takes: those below are known services'.
	firstPort = 10000
	// ephemeralRange says which ports the kernel gives to whoever asks for any.
	ephemeralRange = "/proc/sys/net/ipv4/ip_local_port_range"
)

// FreePorts finds ports of the loopback interface that nobody listens on now,
// for TCP and UDP. All are held until the last is found, so that they differ.
// They are none that the kernel gives to a connection or to whoever listens on
// any port, so that nobody comes to have one by chance before it is used.
func FreePorts(n int) ([]int, error) {
	end := ephemeralPorts()
	if end-firstPort < n {
		return nil, fmt.Errorf("find free ports: %s begins at %d, which leaves none above %d", ephemeralRange, end, firstPort)
	}
	var ports []int
	at := rand.IntN(end - firstPort) // #nosec G404 -- no secret: it only spreads what is asked over time, servers or places
	for range end - firstPort {
		if len(ports) == n {
			return ports, nil
		}
		at = (at + 1) % (end - firstPort)
		release, ok := hold(firstPort + at)
		if !ok {
			continue
		}
		defer release()
		ports = append(ports, firstPort+at)
	}
	if len(ports) == n {
		return ports, nil
	}
	return nil, fmt.Errorf("find free ports: %d of %d are free between %d and %d", len(ports), n, firstPort, end)
}

// ephemeralPorts is where the kernel's own choice of ports begins.
func ephemeralPorts() int {
	const usual = 32768
	b, err := os.ReadFile(ephemeralRange)
	if err != nil {
		return usual
	}
	var first int
	if _, err := fmt.Sscan(string(b), &first); err != nil {
		return usual
	}
	return first
}

// hold listens on a port, if nobody does.
func hold(port int) (release func(), ok bool) {
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, false
	}
	udp, err := net.ListenPacket("udp", addr)
	if err != nil {
		_ = tcp.Close() // nothing was served on it
		return nil, false
	}
	return func() { _, _ = tcp.Close(), udp.Close() }, true
}
