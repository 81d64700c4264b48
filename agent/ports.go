package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// devPorts remembers the ports of a development cluster's servers: a server's
// address is part of the consensus, so it has to be the same after a restart.
func devPorts(path string, servers int) ([]Ports, error) {
	var ports []Ports
	b, err := os.ReadFile(path)
	switch {
	case err == nil:
		if err := json.Unmarshal(b, &ports); err != nil {
			return nil, fmt.Errorf("%s is damaged: %w", path, err)
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	if len(ports) >= servers {
		return ports, nil
	}
	for len(ports) < servers {
		free, err := FreePorts(4)
		if err != nil {
			return nil, err
		}
		ports = append(ports, Ports{HTTP: free[0], RPC: free[1], Raft: free[2], Gossip: free[3]})
	}
	if b, err = json.Marshal(ports); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return ports, os.WriteFile(path, b, 0o600)
}

// FreePorts finds ports of the loopback interface that nobody listens on now.
// All are held until the last is found, so that they differ.
func FreePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer func() { _ = l.Close() }() // nothing was served on it
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
