package server

import (
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/apiserver/audittrail"
	"github.com/berth-dev/berth/apiserver/users"
	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/workloads"
)

// Config says what a server is made of. The listeners are open already, so that
// a port in use is found before anything else is touched; the server closes
// them.
type Config struct {
	// Name is the server's, unique in the cluster and never changed.
	Name    string
	Version string
	DataDir string
	// Disk has the log and what is kept with it; nil: the machine's.
	Disk disk.Disk

	// HTTP, RPC and Raft are where the server listens. The addresses are what
	// others dial, host:port.
	HTTP, RPC, Raft             net.Listener
	HTTPAddr, RPCAddr, RaftAddr string

	// Dial reaches the other servers, for consensus and for RPC; nil: TCP.
	Dial rpc.Dial

	Gossip Gossip

	// TLS secures every connection, and serves the API. Required.
	TLS *pki.Source
	// APICA is the PEM of the authority that the API's certificate is from:
	// what clients trust. It is written into every namespace.
	APICA []byte
	// Authority names the certificate (CA) and the key (Key) of that authority, by which
	// requests for certificates are signed while this server leads; zero: they are not.
	Authority pki.Files
	// Autoscaler says how workloads are scaled by what their pods use; zero: as
	// kube-controller-manager does it by default.
	Autoscaler workloads.Autoscaler
	// ControllersOff are the controllers that this server does not run when it leads, by Kubernetes' names for them.
	ControllersOff []string
	// Users says whose tokens the API believes.
	Users users.Sources
	// SignedKubelets: a kubelet that shows a certificate of another authority than the cluster's, or of its
	// own making, is not asked for anything. Kubernetes asks it, and so does a server without this.
	SignedKubelets bool
	// MaxRequests is how many requests the API works on at a time; 0: by the number of processors.
	MaxRequests int
	// EncryptionConfig, if not empty, is the file of an EncryptionConfiguration: what is in the log in envelopes.
	EncryptionConfig string
	// Audit says what is kept of requests to it.
	Audit audittrail.Config
	// Admission says what it asks of objects.
	Admission apiserver.Admission

	// BootstrapExpect is the number of servers that found the cluster; 0 waits
	// to be added to one.
	BootstrapExpect int
	NonVoter        bool
	Consensus       Consensus
	Autopilot       Autopilot

	// MaxClockOffset: a server whose clock is off that of a majority of the
	// voters by more does not lead. 0 means 30 s.
	MaxClockOffset time.Duration
	// Clock is what the state's time runs by; nil: clock.Process.
	Clock clock.Source
	// MaxLogVersion holds the cluster back at a version of the log's rules: this
	// server says that it knows none above. 0: fsm.LogVersion.
	MaxLogVersion int
	// MaxState is how many bytes the state may take of this server's memory (store.Position.Bytes). The leader goes by
	// the least of all servers. 0: a quarter of the memory that the process may use, and 256 MiB at least.
	MaxState int64

	// Scheduler is the configuration that the first leader stores.
	Scheduler *berthv1.SchedulerConfiguration

	// Services says which addresses services get; its zero value means the usual ones.
	Services Services

	Logger hclog.Logger
	// Metrics collects what is shown at /metrics; nil makes a registry.
	Metrics *prometheus.Registry
}

// Services are ranges of addresses and ports for services.
type Services = apiserver.ServiceRanges

// defaultMaxClockOffset is much more than any clock is off that somebody keeps.
const defaultMaxClockOffset = 30 * time.Second

func (c *Config) maxClockOffset() time.Duration {
	if c.MaxClockOffset > 0 {
		return c.MaxClockOffset
	}
	return defaultMaxClockOffset
}

// Gossip says how the server takes part in the pool of members.
type Gossip struct {
	BindAddr      string
	BindPort      int
	AdvertiseAddr string
	Transport     memberlist.NodeAwareTransport // see cluster.Config
	EncryptionKey string
	Join          []string
	RetryInterval time.Duration
}

// Consensus are the settings of Raft; zero values mean its defaults.
type Consensus struct {
	HeartbeatTimeout, ElectionTimeout, LeaderLeaseTimeout, CommitTimeout time.Duration
	SnapshotInterval                                                     time.Duration
	SnapshotThreshold, TrailingLogs                                      uint64
	// NoFsync gives up durability; for tests and throw-away clusters only.
	NoFsync bool
}

// Autopilot says how the leader cares for the set of servers.
type Autopilot struct {
	// CleanupDeadServers removes servers that failed, while enough others
	// are there.
	CleanupDeadServers bool
	// LastContactThreshold and ServerStabilizationTime: see raft-autopilot.
	LastContactThreshold, ServerStabilizationTime time.Duration
	MaxTrailingLogs                               uint64
	// MinQuorum is the least number of voters that a removal may leave.
	MinQuorum int
}
