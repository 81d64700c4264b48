package cluster

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/vmihailenco/msgpack/v5"
)

// Role is what a member is.
type Role string

// The roles.
const (
	RoleServer Role = "server"
	RoleWorker Role = "worker"
)

// Status is what this member last heard of another.
type Status string

// The statuses. A left member has said so; a failed one has fallen silent.
const (
	StatusAlive  Status = "alive"
	StatusLeft   Status = "left"
	StatusFailed Status = "failed"
)

// Meta is what a member tells of itself. It travels with every gossip message
// about the member, in at most 512 bytes.
type Meta struct {
	Role Role `msgpack:"r"`
	// ClusterID is empty until the member belongs to a cluster. Members of
	// different clusters never pool.
	ClusterID string `msgpack:"c,omitempty"`
	// RPCAddr, HTTPAddr and RaftAddr are host:port as others dial them.
	RPCAddr  string `msgpack:"a,omitempty"`
	HTTPAddr string `msgpack:"h,omitempty"`
	RaftAddr string `msgpack:"f,omitempty"`
	RaftID   string `msgpack:"i,omitempty"`
	// Version is the software's, for people to read.
	Version string `msgpack:"v,omitempty"`
	// NonVoter asks not to become a voter.
	NonVoter bool `msgpack:"n,omitempty"`

	// BootstrapExpect is how many servers shall found the cluster, 0 for a
	// server that waits to be added to one.
	BootstrapExpect int `msgpack:"e,omitempty"`
	// BootstrapSet is the founding set that this server has promised itself
	// to. See DecideBootstrap.
	BootstrapSet string `msgpack:"s,omitempty"`
	// Bootstrapped says that this server has a Raft configuration.
	Bootstrapped bool `msgpack:"b,omitempty"`

	// Instance is another for each process. The pool makes it.
	Instance string `msgpack:"o,omitempty"`
}

// Member is one entry of the pool: a copy, owned by whoever got it.
type Member struct {
	Name string
	// Addr is the member's gossip address, host:port.
	Addr   string
	Status Status
	// Since is when this member learned the status, by its own clock.
	Since time.Time
	// Leaving: it has said goodbye, and silence from now on is a departure.
	Leaving bool
	Meta
}

// encodeMeta refuses what would not fit into gossip.
func encodeMeta(m Meta) ([]byte, error) {
	raw, err := msgpack.Marshal(&m)
	if err != nil {
		return nil, fmt.Errorf("encoding the member's metadata: %w", err)
	}
	if len(raw) > memberlist.MetaMaxSize {
		return nil, fmt.Errorf("the member's metadata takes %d bytes, and gossip carries %d: shorten its addresses or version", len(raw), memberlist.MetaMaxSize)
	}
	return raw, nil
}

func decodeMeta(raw []byte) (Meta, error) {
	if len(raw) > memberlist.MetaMaxSize {
		return Meta{}, fmt.Errorf("the member's metadata takes %d bytes, more than %d", len(raw), memberlist.MetaMaxSize)
	}
	var m Meta
	if err := decode(raw, &m); err != nil {
		return Meta{}, fmt.Errorf("decoding a member's metadata: %w", err)
	}
	if m.Role != RoleServer && m.Role != RoleWorker {
		return Meta{}, fmt.Errorf("decoding a member's metadata: unknown role %q", m.Role)
	}
	if m.BootstrapExpect < 0 {
		return Meta{}, fmt.Errorf("decoding a member's metadata: bootstrap_expect %d is negative", m.BootstrapExpect)
	}
	return m, nil
}

func sortMembers(ms []Member) {
	slices.SortFunc(ms, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
}

func nodeAddr(n *memberlist.Node) string {
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}
