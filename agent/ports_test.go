package agent

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Free ports are below those that the kernel gives away, differ, and are nobody's.
func TestFreePorts(t *testing.T) {
	ports, err := FreePorts(50)
	if err != nil {
		t.Fatal(err)
	}
	end := ephemeralPorts()
	for i, p := range ports {
		if p < firstPort || p >= end || slices.Contains(ports[:i], p) {
			t.Errorf("port %d of %v", p, ports)
		}
	}
	for _, network := range []string{"tcp", "udp"} {
		addr := fmt.Sprintf("127.0.0.1:%d", ports[0])
		if network == "tcp" {
			l, err := net.Listen(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		} else {
			l, err := net.ListenPacket(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		}
		if _, ok := hold(ports[0]); ok {
			t.Errorf("a port that is taken for %s is free", network)
		}
	}
	if _, err := FreePorts(1 << 20); err == nil {
		t.Error("there are more ports than there are")
	}
}

// No two servers of a development cluster have a port in common, also if it grows.
func TestPortsOfManyServers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dev", "ports")
	var before []Ports
	for _, servers := range []int{200, 400} {
		ports, err := devPorts(path, servers)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(ports[:len(before)], before) {
			t.Error("the ports of those that were there have changed")
		}
		seen := map[int]bool{}
		for _, p := range ports {
			for _, port := range []int{p.HTTP, p.RPC, p.Raft, p.Gossip} {
				if seen[port] {
					t.Errorf("port %d is two servers'", port)
				}
				seen[port] = true
			}
		}
		before = ports
	}
}

// Ports that can not be read are not chosen anew: the servers are known by them.
func TestDamagedPorts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dev", "ports")
	if _, err := devPorts(path, 1); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(filepath.Dir(path), ".unfinished-ports-1")
	for _, file := range []string{path, left} {
		if err := os.WriteFile(file, []byte("[{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := devPorts(path, 1); err == nil || !strings.HasPrefix(err.Error(), path+" is damaged") || !strings.Contains(err.Error(), "remove everything in "+filepath.Dir(path)) {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := devPorts(path, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("what was left unfinished is there: %v", err)
	}
}
