package agent

import (
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/apiserver/audittrail"
	"github.com/berth-dev/berth/apiserver/users"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/server"
	"github.com/berth-dev/berth/worker"
	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/worker/pullrecords"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
	"github.com/berth-dev/berth/workloads"
)

// Config says what one process runs.
type Config struct {
	// Name is the member's, unique in the cluster. A process that is both
	// server and worker has one name for both.
	Name    string
	Version string
	DataDir string

	// BindAddr is where everything listens; AdvertiseAddr the host or IP that
	// others dial, BindAddr if empty.
	BindAddr, AdvertiseAddr string
	Ports                   Ports

	// Join are gossip addresses of other members.
	Join          []string
	EncryptionKey string
	// RetryInterval is how often Join is tried again; 0 means the default.
	RetryInterval time.Duration

	// TLS secures everything. nil: the agent makes itself a CA, if it founds a
	// cluster alone (TLSDir).
	TLS *pki.Source
	// CA is the PEM of the authority that TLS is from.
	CA []byte
	// Authority names the files of that authority's certificate (CA) and key (Key), if a server
	// is to sign with it. An agent that has made its CA itself signs.
	Authority pki.Files

	// Joining is how a worker without TLS gets in, or has got in before; nil: it needs TLS.
	Joining *Joining
	joined  bool // so, and not by certificates that were made for it

	Server *ServerPart // nil: no server
	Worker *WorkerPart // nil: no worker

	Logger hclog.Logger
}

// Ports are those listened on; 0 takes any free one.
type Ports struct{ HTTP, RPC, Raft, Gossip int }

// ServerPart configures the server of a process.
type ServerPart struct {
	// Autoscaler says how workloads are scaled; zero: the default.
	Autoscaler      workloads.Autoscaler
	ControllersOff  []string // see server.Config
	BootstrapExpect int
	NonVoter        bool
	Users           users.Sources
	Audit           audittrail.Config
	Admission       apiserver.Admission
	MaxRequests     int  // see server.Config
	SignedKubelets  bool // see server.Config
	// EncryptionConfig is a file; see server.Config.
	EncryptionConfig string
	MaxClockOffset   time.Duration
	MaxLogVersion    int   // see server.Config
	MaxState         int64 // see server.Config
	Consensus        server.Consensus
	Autopilot        server.Autopilot
	Scheduler        *berthv1.SchedulerConfiguration
	Services         server.Services
}

// CRIPart is what the runtime cri needs.
type CRIPart struct {
	Endpoint      string
	ParallelPulls int
	// ImagesHigh and ImagesLow are percentages of the images' disk.
	ImagesHigh, ImagesLow int
	// PullVerification says of which images that are here a pod has to show credentials; empty: of all that the worker fetched. The list is of those that
	// pullrecords.ParseAllowlist reads.
	PullVerification          pullrecords.Policy
	PullVerificationAllowlist []string
}

// ServicesPart is a node's part in services.
type ServicesPart struct {
	// Mode is "on", "auto" (on with the runtime cri, where the machine lets it), or "off", also where it is empty.
	Mode string
	// Domain is that of the cluster's names.
	Domain string
}

// WorkerPart configures the worker of a process.
type WorkerPart struct {
	// Runtime is "cri", "process", "fake", or "auto" for the first two.
	Runtime  string
	CRI      CRIPart
	Services ServicesPart
	// MetricsAddress is where the worker's metrics are read, host:port; empty: nowhere.
	MetricsAddress string
	// Streams bound how long somebody stays in a pod.
	Streams worker.StreamBounds
	// SampleInterval is how often the worker measures what its pods use; 0: the default.
	SampleInterval time.Duration
	// Eviction says when the node runs short of something, and what then.
	Eviction eviction.Config
	// Address is the node's; empty: where the agent is dialed.
	Address            string
	Labels             map[string]string
	Taints             []corev1.Taint
	Capacity, Reserved corev1.ResourceList
	// StaticPods is a folder of pods that the node runs of its own; empty: there are none.
	StaticPods string
	// ShutdownGrace is how long the machine's end waits for the pods; 0: it does not.
	ShutdownGrace time.Duration
	// MaxRestartBackoff is how long the restart of a container that goes on ending waits at most; 0: 5 min.
	MaxRestartBackoff time.Duration
	// DevicePlugins is the folder in which device plugins register; empty: none does.
	DevicePlugins string
	LogBytes      int64
	LogFiles      int
	PodPIDs       int64
	// Images are those that the fake runtime pretends to have.
	Images []runtime.Image
	// Timeline is shared by the fake workers of one process; nil makes one.
	Timeline *fake.Timeline
}
