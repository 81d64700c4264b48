// Package ports finds ports of the loopback interface for clusters that choose
// their own: those of development, of benchmarks and of tests.
//
// A port that was found free can be lost until somebody listens on it. So it is
// claimed: nobody else who asks here, in whatever process of this machine, is given
// it until it is released. And it is none that the kernel gives away by itself.
//
// It must never decide for an agent that was told its ports.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

const (
	// first is the lowest port that is found: those below are known services'.
	first = 10000
	// ephemeralRange says which ports the kernel gives to whoever asks for any.
	ephemeralRange = "/proc/sys/net/ipv4/ip_local_port_range"
	// usualEphemeral is where that begins unless somebody has changed it.
	usualEphemeral = 32768
	// loopback is where they are free.
	loopback = "127.0.0.1"
)

// Claim is ports that are nobody else's until it is released, or the process that has it ends.
type Claim struct {
	Ports []int
	// locks are one abstract socket for each port. Its name can be had once in a network namespace, as the port can,
	// and is free again when the process is gone, however it ended.
	locks []net.Listener
}

// Release gives the ports up, for others to be given. It may be called more than once, and of nil.
func (c *Claim) Release() {
	if c == nil {
		return
	}
	for _, l := range c.locks {
		_ = l.Close() // nothing was served on it
	}
	c.locks = nil
}

// Addr is the address of a claimed port, host:port.
func (c *Claim) Addr(i int) string { return address(c.Ports[i]) }

// Free claims n ports that nobody listens on, for TCP and UDP.
func Free(n int) (*Claim, error) {
	return freeBelow(ephemeral(), n)
}

// freeBelow is Free of the ports below those that the kernel gives away; where that leaves too few, of those below the usual ones,
// which another program may be given all the same.
func freeBelow(end, n int) (*Claim, error) {
	if end-first < n {
		end = max(end, usualEphemeral)
	}
	if end-first < n {
		return nil, fmt.Errorf("find free ports: there are not %d between %d and %d", n, first, end)
	}
	c := &Claim{}
	at := rand.IntN(end - first) // #nosec G404 -- no secret: it only spreads what is asked over time, servers or places
	for range end - first {
		if len(c.Ports) == n {
			return c, nil
		}
		at = (at + 1) % (end - first)
		c.take(first + at)
	}
	if len(c.Ports) == n {
		return c, nil
	}
	c.Release()
	return nil, fmt.Errorf("find free ports: %d of %d are free between %d and %d", len(c.Ports), n, first, end)
}

// take claims a port, unless it is somebody's.
func (c *Claim) take(port int) {
	lock, err := net.Listen("unix", fmt.Sprintf("@berth-port-%d", port))
	if err != nil {
		return
	}
	if unused(port) != nil {
		_ = lock.Close() // nothing was served on it
		return
	}
	c.Ports, c.locks = append(c.Ports, port), append(c.locks, lock)
}

// unused says why a port can not be listened on.
func unused(port int) error {
	tcp, err := net.Listen("tcp", address(port))
	if err != nil {
		return err
	}
	udp, err := net.ListenPacket("udp", address(port))
	if err != nil {
		return errors.Join(err, tcp.Close())
	}
	return errors.Join(tcp.Close(), udp.Close())
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// ephemeral is where the kernel's own choice of ports begins.
func ephemeral() int {
	b, err := os.ReadFile(ephemeralRange)
	if err != nil {
		return usualEphemeral
	}
	var begin int
	if _, err := fmt.Sscan(string(b), &begin); err != nil {
		return usualEphemeral
	}
	return begin
}
