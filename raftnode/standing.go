package raftnode

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/raft"
)

// errNoVote is why a server that lacks something neither votes nor stands.
var errNoVote = errors.New("this server lacks entries that it may have acknowledged, and has no vote until it has them")

// Who may vote, and who counts as whom.
//
// A server is what its data say that it is: the name and the cluster in its
// identity, and what it has promised in its promises. Data can be lost, wholly or
// in part, and old data can come back. One rule covers every case:
//
//	A server may have acknowledged the log up to some position. It neither votes
//	nor stands for election unless its log reaches that far, and nobody relies on
//	a server of whom it is not known how far that is.
//
// How far it is known to be:
//
//	the member      its promises say it, beside the log (promises.go)
//	the amnesiac    whose log is lost or cut has promises too: it has no vote until
//	                the others have given it the log back, which happens by itself
//	the newcomer    has no cluster, and nobody talks to it as to one of the cluster
//	                but the leader who admits it: "you may have acknowledged my
//	                whole log". From then on that is its promise.
//	the wiped one   looks like a newcomer to itself; to the others it is a server of
//	                the configuration. The leader removes it and then admits it.
//	the returned    one, whose old data come back after it was admitted with others,
//	                was admitted earlier than the one the others know; it is treated
//	                as wiped
//	the put back    as a whole to an earlier time, with its promises of then, looks to itself like the member that it was. Whoever
//	                has heard since that it had acknowledged more tells it, and it is an amnesiac (reach.go). If all who have
//	                heard of it have been started again meanwhile, nobody knows. If it had the only vote then, it may lead already,
//	                and ends (waiting.go)
//	the founders    were admitted before there was a log: nobody has acknowledged
//	                anything, as long as the first leader leads for the first time
//	                and has never talked to them
//
// Without an admission no connection goes beyond the greeting: a server that does
// not know how far it has acknowledged neither votes nor acknowledges.

// hello is the first message of each side of a connection.
type hello struct {
	Cluster string `json:"cluster"`
	Server  string `json:"server"`
	copyOf
	// To is whom the dialler believes to reach, if it knows.
	To string `json:"to,omitempty"`
	// Admit, of the dialler, admits a server that has no data, or older ones.
	Admit *position `json:"admit,omitempty"`
	// Acknowledged is how far the server has acknowledged the log, and Known how far the other one has, as it knows.
	Acknowledged position `json:"acknowledged"`
	Known        *reached `json:"known,omitempty"`
	// Who: the dialler only asks who is here, and says who it is.
	Who bool `json:"who,omitempty"`
	// Gone asks, with Who, whether a leader's process is gone. Who agrees says how
	// far its log goes.
	Gone      string `json:"gone,omitempty"`
	Agrees    bool   `json:"agrees,omitempty"`
	LastTerm  uint64 `json:"last_term,omitempty"`
	LastIndex uint64 `json:"last_index,omitempty"`
	// RPC and HTTP are the server's other addresses.
	RPC     string `json:"rpc,omitempty"`
	HTTP    string `json:"http,omitempty"`
	Refusal string `json:"refusal,omitempty"`
	// Lost: the refusal is ErrLostData.
	Lost bool `json:"lost,omitempty"`
}

// verdict is what a greeting leads to.
type verdict struct {
	// refuse is why the connection ends here; ErrLostData if the one who was
	// dialled has lost its data.
	refuse error
	// admit is where this server is admitted, if it is.
	admit *position
}

// judge is what the one who was dialled makes of a greeting.
func (r identityRecord) judge(theirs hello) verdict {
	refuse := func(format string, args ...any) verdict { return verdict{refuse: fmt.Errorf(format, args...)} }
	switch {
	case theirs.To != "" && theirs.To != r.Server:
		return refuse("this is server %q, and %q was asked for", r.Server, theirs.To)
	case theirs.Server == r.Server:
		return refuse("this server has the name %q too: two servers must not have one name", r.Server)
	case theirs.Cluster == "":
		return refuse("server %q belongs to no cluster yet", theirs.Server)
	case r.Cluster != "" && r.Cluster != theirs.Cluster:
		return refuse("server %q belongs to cluster %q, and server %q to cluster %q: one of the two has the data directory of another cluster",
			r.Server, r.Cluster, theirs.Server, theirs.Cluster)
	case r.Cluster == "" && theirs.Admit == nil:
		return verdict{refuse: ErrLostData}
	}
	if known, ok := r.Peers[theirs.Server]; ok && theirs.copyOf.outdated(known) {
		return refuse("server %q has come with other data than it was last admitted with", theirs.Server)
	}
	if theirs.Admit != nil && (r.Cluster == "" || r.Admitted.before(*theirs.Admit)) {
		return verdict{admit: theirs.Admit}
	}
	return verdict{}
}

// judgeAnswer is what the dialler makes of the answer to its greeting.
func (r identityRecord) judgeAnswer(mine, theirs hello) error {
	known, ok := r.Peers[theirs.Server]
	switch {
	case theirs.Lost:
		return ErrLostData
	case theirs.Refusal != "":
		return fmt.Errorf("%s", theirs.Refusal)
	case mine.To != "" && theirs.Server != mine.To:
		return fmt.Errorf("it is server %q, and %q was asked for", theirs.Server, mine.To)
	case theirs.Cluster != r.Cluster:
		return fmt.Errorf("it belongs to cluster %q, this server to %q", theirs.Cluster, r.Cluster)
	case mine.Admit != nil && theirs.Admitted == *mine.Admit && !theirs.Admitted.before(known.Admitted):
		return nil // just now
	case ok && theirs.copyOf.outdated(known):
		return fmt.Errorf("%w, or has come with older ones", ErrLostData)
	}
	return nil
}

// outdated tells whether these are not the data that a server is known to have,
// and not newer ones either.
func (c copyOf) outdated(known copyOf) bool {
	return c.Incarnation != known.Incarnation && !known.Admitted.before(c.Admitted) || c.Admitted.before(known.Admitted)
}

// meet remembers a server as it is now.
func (id *identity) meet(server string, as copyOf) error {
	if known, ok := id.record().Peers[server]; ok && known == as {
		return nil
	}
	return id.change(func(r *identityRecord) {
		peers := map[string]copyOf{server: as}
		for name, c := range r.Peers {
			if name != server {
				peers[name] = c
			}
		}
		r.Peers = peers
	})
}

// admitted makes this server one of a cluster, from a position on.
func (id *identity) admitted(cluster string, at position) error {
	return id.change(func(r *identityRecord) { r.Cluster, r.Admitted = cluster, at })
}

// mayVote is nil, or why this server must neither vote nor stand.
func (p *promises) mayVote() error {
	acknowledged, have, lost := p.lost()
	if !lost {
		return nil
	}
	return fmt.Errorf("%w: it has its log up to %s, and may have acknowledged up to %s", errNoVote, have, acknowledged)
}

// host is what a server goes by when it dials another one, or is told to take one in.
type host struct {
	identityRecord
	// acknowledged is how far it may have acknowledged the log, and have how far its log reaches.
	acknowledged, have position
	// leads: it leads, in term. second is the term of its log's second entry, 0 if that is not there any more.
	leads        bool
	term, second uint64
	members      []string // of the configuration that it knows
}

func (n *Node) host() host {
	h := host{identityRecord: n.id.record(), have: n.promises.position(), leads: n.IsLeader(), term: n.raft.CurrentTerm()}
	h.acknowledged = n.promises.record().Acknowledged
	var second raft.Log
	if h.Founder && h.leads && n.log.peek(2, &second) == nil {
		h.second = second.Term
	}
	for _, m := range n.raft.GetConfiguration().Configuration().Servers {
		h.members = append(h.members, string(m.ID))
	}
	return h
}

// admission is where a server would be admitted that this one dials, nil if it must not be. Only one that can not have acknowledged
// anything needs no leader to be admitted, and only the founder knows of such: until it has stored the second entry, which it
// writes as the first leader, nobody has any; and as long as it leads for the first time nobody has whom it has never talked to.
func (h host) admission(to string) *position {
	_, met := h.Peers[to]
	switch {
	case to == "" || !h.Founder:
		return nil
	case h.acknowledged.Index > 1 && (met || !h.firstLeadership()):
		return nil
	}
	return &position{}
}

// firstLeadership: entries after the first, which the founder wrote by itself,
// are of the present term, and this server leads in it.
func (h host) firstLeadership() bool { return h.leads && h.second != 0 && h.second == h.term }

// newcomer is where the leader admits a server that it is told to take in, nil if that is one of the configuration.
func (h host) newcomer(id string) *position {
	if h.member(id) {
		return nil
	}
	return &h.have
}

// restocks tells whether it is for this server to remove one that has lost its data, and to add it again.
func (h host) restocks(id string) bool { return h.leads && h.member(id) }

func (h host) member(id string) bool { return slices.Contains(h.members, id) }

func (n *Node) admission(to string) *position {
	if !n.started.Load() {
		return nil
	}
	return n.host().admission(to)
}

// checkNewcomer asks a server whom it belongs to, before the cluster counts on
// it.
func (n *Node) checkNewcomer(id, addr string) error {
	if !n.IsLeader() {
		return notLeader(n.Leader)
	}
	if n.stream == nil || id == n.c.ID {
		return nil
	}
	return n.stream.probe(addr, id, n.host().newcomer(id))
}

// restock is told that a server of the configuration is there without its
// data. It must not vote as the one that it was: what that one has acknowledged
// may be nowhere else. So the leader removes it and adds it again as a newcomer;
// autopilot gives it a vote once it has caught up.
func (n *Node) restock(id string) {
	s, ok := n.server(id)
	if !ok || !n.Leadership().Leader || !n.host().restocks(id) || !n.restocking.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer n.restocking.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), changeTimeout)
		defer cancel()
		n.logger.Warn("a server has lost its data; it is removed and added again without a vote", "id", id, "address", s.Address)
		err := n.RemoveServer(ctx, id)
		if err == nil {
			err = n.AddNonvoter(ctx, id, s.Address)
		}
		if err != nil {
			n.logger.Error("a server that has lost its data could not be added again", "id", id, "error", err)
		}
	}()
}
