package raftnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/fsm"
)

// maxPeersBytes bounds the file of peers.
const maxPeersBytes = 1 << 20

// readPeers reads the servers that a cluster is to have, in the form of raft.ReadConfigJSON, from the
// disk that a server has. Whether they can be a cluster raft.RecoverCluster says.
func readPeers(d disk.Disk, path string) (conf raft.Configuration, err error) {
	b, err := disk.ReadFile(d, path, maxPeersBytes)
	if err != nil {
		return conf, err
	}
	var peers []struct {
		ID       raft.ServerID      `json:"id"`
		Address  raft.ServerAddress `json:"address"`
		NonVoter bool               `json:"non_voter"`
	}
	if err := json.Unmarshal(b, &peers); err != nil {
		return conf, err
	}
	for _, p := range peers {
		s := raft.Server{ID: p.ID, Address: p.Address}
		if p.NonVoter {
			s.Suffrage = raft.Nonvoter
		}
		conf.Servers = append(conf.Servers, s)
	}
	return conf, nil
}

// recoverQuorum gives the cluster the servers that an operator has written
// into peers.json, because most of the old ones are lost for good.
func (n *Node) recoverQuorum(snaps raft.SnapshotStore) error {
	if n.c.DataDir == "" {
		return nil
	}
	path := n.peersFile()
	if _, err := n.c.Disk.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	conf, err := readPeers(n.c.Disk, path)
	if err != nil {
		return fmt.Errorf("recover from %s: %w; correct it, or remove it to start with the servers of before", path, err)
	}
	if !slices.ContainsFunc(conf.Servers, func(s raft.Server) bool { return string(s.ID) == n.c.ID }) {
		return fmt.Errorf("recover from %s: it does not name this server, %q", path, n.c.ID)
	}
	scratch, err := newMachine(fsm.NewState(), func(error) {}, n.logger, n.metrics)
	if err != nil {
		return err
	}
	scratch.skipped = lostRevisions
	scratch.restored = n.promises.holds
	err = raft.RecoverCluster(n.c.raft(n.logger, nil), scratch, n.log, n.guard, snaps, n.transport, conf)
	if err != nil {
		return fmt.Errorf("recover from %s: %w", path, err)
	}
	if err := n.promises.resign(votesAlone(conf, n.c.ID)); err != nil {
		return fmt.Errorf("recover from %s: %w", path, err)
	}
	if err := n.c.files().Rename(path, path+".done"); err != nil {
		return fmt.Errorf("recover from %s: %w", path, err)
	}
	n.logger.Warn("the cluster's servers were set from peers.json; entries that were not committed may have become so", "servers", len(conf.Servers))
	return nil
}
