package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// No two servers of a development cluster have a port in common, also if it grows.
func TestPortsOfManyServers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dev", "ports")
	var before []Ports
	for _, servers := range []int{200, 400} {
		ports, claim, err := devPorts(path, servers)
		if err != nil {
			t.Fatal(err)
		}
		claim.Release()
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
	if _, _, err := devPorts(path, 1); err == nil || !strings.Contains(err.Error(), "has a cluster of 400 servers") {
		t.Errorf("with fewer servers than there were: %v", err)
	}
}

// Ports that can not be read are not chosen anew: the servers are known by them.
func TestDamagedPorts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dev", "ports")
	if _, _, err := devPorts(path, 1); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(filepath.Dir(path), ".unfinished-ports-1")
	for _, file := range []string{path, left} {
		if err := os.WriteFile(file, []byte("[{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := devPorts(path, 1); err == nil || !strings.HasPrefix(err.Error(), path+" is damaged") || !strings.Contains(err.Error(), "remove everything in "+filepath.Dir(path)) {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := devPorts(path, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("what was left unfinished is there: %v", err)
	}
}
