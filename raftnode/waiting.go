package raftnode

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
)

// A server that lacks what it may have acknowledged has no vote (standing.go): no request for one passes the gate. But its own vote needs no request, and
// it is enough where by the configuration that it has read, or gets back on the way, it is the only one that has a vote. So it waits for a leader without a
// timeout (weigh), keeps no vote (promises.Set), and, should it lead nevertheless, stores no entry of its own (sealedLog).

// waitsFor is the timeout of a server that is to have none.
const waitsFor = 50 * 365 * 24 * time.Hour

// checkLost tells, at the start, of what this server may have acknowledged and has not, neither in its log nor in its newest snapshot, which
// is all that there is between the recovery from a lost quorum and the next entry. The others give it back, if there are others.
func (n *Node) checkLost() error {
	acknowledged, have, lost := n.promises.lost()
	if !lost {
		return nil
	}
	if n.promises.record().Alone {
		return n.lostAlone(acknowledged, have)
	}
	n.logger.Warn("this server lacks entries that it may have acknowledged; it has no vote until the others have given them to it",
		"log", have, "acknowledged", acknowledged)
	n.waits.Store(true)
	return nil
}

// lostAlone is what is lost where no other server has a vote, and so none would lead and give it back.
func (n *Node) lostAlone(acknowledged, have position) error {
	return &DamagedFileError{filepath.Join(n.id.where(), raftDir), fmt.Sprintf(
		"has lost entries: the log reaches up to %s, and this server, the only one of its cluster that has a vote, had acknowledged up to %s", have, acknowledged),
		fmt.Sprintf("restore a snapshot in a new cluster (berth operator snapshot restore), or, to go on with what is there, write the server into %s", n.peersFile())}
}

// Waits: this server lacks entries that it may have acknowledged, and waits until a leader gives them to it.
func (n *Node) Waits() bool { return n.waits.Load() }

// reweigh has it looked at again whether this server waits, after what it holds, or what it may have acknowledged, has changed.
func (n *Node) reweigh() {
	if _, _, lost := n.promises.lost(); !n.started.Load() || lost == n.waits.Load() {
		return
	}
	select {
	case n.weighing <- struct{}{}:
	default: // somebody has asked, and nobody has looked yet
	}
}

// mayLead is nil, or why this server must not lead, though it does.
func (n *Node) mayLead() error {
	acknowledged, have, lost := n.promises.lost()
	switch {
	case !lost:
		return nil
	case n.promises.record().Alone:
		return n.lostAlone(acknowledged, have)
	}
	return fmt.Errorf("this server leads by data of an earlier time: %w; start it again, and it gets the rest from the others", n.promises.mayVote())
}

// weigh lets a server wait that lacks something, and stand for election again in time once it has everything. A leader can lack nothing but by data of an
// earlier time, when no other server had a vote: it ends, and waits when it starts again.
func (n *Node) weigh() {
	for {
		select {
		case <-n.weighing:
		case <-n.closing:
			return
		}
		lacks := n.mayLead()
		if lacks != nil && n.IsLeader() {
			n.fail(lacks)
			continue
		}
		c := n.raft.ReloadableConfig()
		c.HeartbeatTimeout, c.ElectionTimeout = n.c.HeartbeatTimeout, n.c.ElectionTimeout
		if lacks != nil {
			c.HeartbeatTimeout, c.ElectionTimeout = waitsFor, waitsFor
		}
		if err := n.raft.ReloadConfig(c); err != nil {
			n.fail(fmt.Errorf("this server's timeouts can not be changed: %w", err))
			continue
		}
		n.waits.Store(lacks != nil)
		n.reweigh() // as it may have changed meanwhile
	}
}

// servers is the newest configuration that this server knows; an empty one until it has started.
func (n *Node) servers() raft.Configuration {
	if !n.started.Load() {
		return raft.Configuration{}
	}
	return n.raft.GetConfiguration().Configuration()
}
