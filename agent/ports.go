package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/ports"
)

// devPorts remembers the ports of a development cluster's servers: a server's
// address is part of the consensus, so it has to be the same after a restart.
// Those that are chosen anew are claimed: release them when the servers listen.
func devPorts(path string, servers int) ([]Ports, *ports.Claim, error) {
	known, err := rememberedPorts(path)
	switch {
	case err != nil || len(known) == servers:
		return known, nil, err
	case len(known) > servers: // those that are left out would have a vote still
		return nil, nil, fmt.Errorf("%s has a cluster of %d servers: it goes on with as many (--servers %d) or more", filepath.Dir(path), len(known), len(known))
	}
	claim, err := ports.Free(4 * servers) // at once, so that no two servers get the same
	if err != nil {
		return nil, nil, err
	}
	free := slices.DeleteFunc(slices.Clone(claim.Ports), func(port int) bool {
		return slices.ContainsFunc(known, func(p Ports) bool { return slices.Contains([]int{p.HTTP, p.RPC, p.Raft, p.Gossip}, port) })
	})
	for ; len(known) < servers; free = free[4:] {
		known = append(known, Ports{HTTP: free[0], RPC: free[1], Raft: free[2], Gossip: free[3]})
	}
	if err := rememberPorts(path, known); err != nil {
		claim.Release()
		return nil, nil, err
	}
	return known, claim, nil
}

func rememberedPorts(path string) ([]Ports, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, lostPorts(path, err)
	}
	var known []Ports
	if err := json.Unmarshal(b, &known); err != nil {
		return nil, lostPorts(path, err)
	}
	return known, nil
}

func rememberPorts(path string, known []Ports) error {
	b, err := json.Marshal(known)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Sweep(filepath.Dir(path)); err != nil {
		return err
	}
	return atomicfile.Write(path, b, 0o600)
}

// lostPorts is the end of a cluster whose servers' addresses are known from nowhere else that could be read before they run.
func lostPorts(path string, err error) error {
	return fmt.Errorf("%s is damaged (%w): put it back from a copy; without one, remove everything in %s, and another cluster begins", path, err, filepath.Dir(path))
}
