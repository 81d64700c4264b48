package config

// The tags are the file format. A field without an hcl tag is not an option.
// docs/configuration.md documents every option with its type and default, and a
// test compares it with these structs.
//
// Blocks are pointers that Default fills in, so that decoding a file lays it
// over the defaults and no code has to ask whether a block was written.

// Config is the configuration of one agent.
type Config struct {
	Name          string   `hcl:"name,optional"`
	DataDir       Path     `hcl:"data_dir,optional"`
	BindAddr      string   `hcl:"bind_addr,optional"`
	AdvertiseAddr string   `hcl:"advertise_addr,optional"`
	Join          []string `hcl:"join,optional"`
	LogLevel      string   `hcl:"log_level,optional"`
	LogJSON       bool     `hcl:"log_json,optional"`
	Insecure      bool     `hcl:"insecure,optional"`

	Ports  *Ports  `hcl:"ports,block"`
	Gossip *Gossip `hcl:"gossip,block"`
	TLS    *TLS    `hcl:"tls,block"`
	Auth   *Auth   `hcl:"auth,block"`
	Server *Server `hcl:"server,block"`
	Worker *Worker `hcl:"worker,block"`

	src *sources
}

// Ports are the ports an agent listens on; 0 takes any free one.
type Ports struct {
	HTTP   int `hcl:"http,optional"`
	RPC    int `hcl:"rpc,optional"`
	Raft   int `hcl:"raft,optional"`
	Gossip int `hcl:"gossip,optional"`
}

// Gossip configures the membership protocol.
type Gossip struct {
	// EncryptionKey is base64 of 16, 24 or 32 bytes, the same on all members.
	EncryptionKey string `hcl:"encryption_key,optional"`
}

// TLS names the agent's certificate and the CA that every peer's must be from.
type TLS struct {
	CAFile   Path `hcl:"ca_file,optional"`
	CertFile Path `hcl:"cert_file,optional"`
	KeyFile  Path `hcl:"key_file,optional"`
	// CAKeyFile is the key of the CA, if this server is to sign with it.
	CAKeyFile Path `hcl:"ca_key_file,optional"`
}

// Enabled tells whether the agent has a certificate.
func (t *TLS) Enabled() bool { return t.CertFile != "" }

// Auth names what the API accepts besides client certificates.
type Auth struct {
	// TokenFile is CSV as for kube-apiserver: token,user,uid,"group1,group2".
	TokenFile Path `hcl:"token_file,optional"`
	// ConfigFile is an AuthenticationConfiguration, as for kube-apiserver.
	ConfigFile Path `hcl:"config_file,optional"`

	Webhook *AuthWebhook `hcl:"webhook,block"`
}

// AuthWebhook is who reviews tokens.
type AuthWebhook struct {
	// ConfigFile is a kubeconfig.
	ConfigFile Path     `hcl:"config_file,optional"`
	Version    string   `hcl:"version,optional"`
	CacheTTL   Duration `hcl:"cache_ttl,optional"`
}

// Server configures the agent's part in the control plane.
type Server struct {
	Enabled         bool `hcl:"enabled,optional"`
	BootstrapExpect int  `hcl:"bootstrap_expect,optional"`
	NonVoter        bool `hcl:"non_voter,optional"`
	// MaxClockOffset: one whose clock is further off than this does not lead.
	MaxClockOffset Duration `hcl:"max_clock_offset,optional"`
	// MaxLogVersion holds the log's rules back at a version; 0: the newest that all servers know.
	MaxLogVersion int `hcl:"max_log_version,optional"`
	// MaxRequests is how many requests to the API are worked on at a time; 0: by the number of processors.
	MaxRequests int `hcl:"max_requests,optional"`
	// MaxState is how much memory the state may take; 0: by the memory that there is.
	MaxState Quantity `hcl:"max_state,optional"`
	// Controllers are those that run when the server leads, in the manner of kube-controller-manager's.
	Controllers []string `hcl:"controllers,optional"`
	// SignedKubelets: kubelets are asked for nothing that show a certificate of another CA than the cluster's.
	SignedKubelets bool `hcl:"signed_kubelets,optional"`
	// EncryptionConfig is an EncryptionConfiguration, as for kube-apiserver.
	EncryptionConfig Path `hcl:"encryption_config,optional"`

	Raft       *Raft       `hcl:"raft,block"`
	Autopilot  *Autopilot  `hcl:"autopilot,block"`
	Scheduler  *Scheduler  `hcl:"scheduler,block"`
	Services   *Services   `hcl:"services,block"`
	Autoscaler *Autoscaler `hcl:"autoscaler,block"`
	Audit      *Audit      `hcl:"audit,block"`
	Admission  *Admission  `hcl:"admission,block"`
}

// Admission says what is asked of objects, beyond what the cluster's own objects say.
type Admission struct {
	PodSecurity *PodSecurity `hcl:"pod_security,block"`
}

// PodSecurity is what holds in namespaces whose labels do not say it.
type PodSecurity struct {
	Enforce        string `hcl:"enforce,optional"`
	EnforceVersion string `hcl:"enforce_version,optional"`
	Audit          string `hcl:"audit,optional"`
	AuditVersion   string `hcl:"audit_version,optional"`
	Warn           string `hcl:"warn,optional"`
	WarnVersion    string `hcl:"warn_version,optional"`

	ExemptUsers          []string `hcl:"exempt_users,optional"`
	ExemptNamespaces     []string `hcl:"exempt_namespaces,optional"`
	ExemptRuntimeClasses []string `hcl:"exempt_runtime_classes,optional"`
}

// Audit says what is kept of requests, and where.
type Audit struct {
	PolicyFile Path     `hcl:"policy_file,optional"`
	MaxEvent   Quantity `hcl:"max_event,optional"`

	Log     *AuditLog     `hcl:"log,block"`
	Webhook *AuditWebhook `hcl:"webhook,block"`
}

// AuditLog are files.
type AuditLog struct {
	Path       Path     `hcl:"path,optional"`
	MaxSize    Quantity `hcl:"max_size,optional"`
	MaxFiles   int      `hcl:"max_files,optional"`
	MaxAgeDays int      `hcl:"max_age_days,optional"`
	Compress   bool     `hcl:"compress,optional"`
	// Mode is "blocking": a line is written before the answer goes out, or "batch".
	Mode string `hcl:"mode,optional"`
}

// AuditWebhook is who is sent accounts.
type AuditWebhook struct {
	// ConfigFile is a kubeconfig.
	ConfigFile Path     `hcl:"config_file,optional"`
	MaxBatch   int      `hcl:"max_batch,optional"`
	MaxWait    Duration `hcl:"max_wait,optional"`
}

// Autoscaler says how workloads are scaled by what their pods use.
type Autoscaler struct {
	Period                 Duration `hcl:"period,optional"`
	DownscaleStabilization Duration `hcl:"downscale_stabilization,optional"`
	TolerancePercent       int      `hcl:"tolerance_percent,optional"`
	CPUInitialization      Duration `hcl:"cpu_initialization,optional"`
	InitialReadinessDelay  Duration `hcl:"initial_readiness_delay,optional"`
}

// Services says which addresses services get.
type Services struct {
	// ClusterIPRanges are one range, or one of IPv4 and one of IPv6.
	ClusterIPRanges []string `hcl:"cluster_ip_ranges,optional"`
	NodePorts       string   `hcl:"node_ports,optional"`
}

// Raft tunes the log.
type Raft struct {
	HeartbeatTimeout   Duration `hcl:"heartbeat_timeout,optional"`
	ElectionTimeout    Duration `hcl:"election_timeout,optional"`
	LeaderLeaseTimeout Duration `hcl:"leader_lease_timeout,optional"`
	SnapshotThreshold  int      `hcl:"snapshot_threshold,optional"`
	SnapshotInterval   Duration `hcl:"snapshot_interval,optional"`
	TrailingLogs       int      `hcl:"trailing_logs,optional"`
}

// Autopilot says when the leader removes dead servers and promotes new ones.
type Autopilot struct {
	CleanupDeadServers      bool     `hcl:"cleanup_dead_servers,optional"`
	LastContactThreshold    Duration `hcl:"last_contact_threshold,optional"`
	MaxTrailingLogs         int      `hcl:"max_trailing_logs,optional"`
	MinQuorum               int      `hcl:"min_quorum,optional"`
	ServerStabilizationTime Duration `hcl:"server_stabilization_time,optional"`
}

// Scheduler is the SchedulerConfiguration that a new cluster starts with. Once
// the cluster exists, its replicated configuration counts and this is ignored.
type Scheduler struct {
	Queue             string   `hcl:"queue,optional"`
	PodInitialBackoff Duration `hcl:"pod_initial_backoff,optional"`
	PodMaxBackoff     Duration `hcl:"pod_max_backoff,optional"`
	NominationSlack   Duration `hcl:"nomination_slack,optional"`
	NodeGrace         Duration `hcl:"node_grace,optional"`
	EventLimit        int      `hcl:"event_limit,optional"`
	SystemClassUsers  []string `hcl:"system_class_users,optional"`
	SystemClassGroups []string `hcl:"system_class_groups,optional"`
	// HardPodAffinityWeight, Aging and the blocks have their API's meaning.
	HardPodAffinityWeight int      `hcl:"hard_pod_affinity_weight,optional"`
	Aging                 Duration `hcl:"aging,optional"`

	Preemption  *Preemption  `hcl:"preemption,block"`
	Reservation *Reservation `hcl:"reservation,block"`
}

// Preemption switches preemption, and bounds it.
type Preemption struct {
	Enabled bool   `hcl:"enabled,optional"`
	Budgets string `hcl:"budgets,optional"`
	// SystemClassBudgets is what strict budgets are worth to the system classes.
	SystemClassBudgets string `hcl:"system_class_budgets,optional"`

	MaxOtherNodes int `hcl:"max_other_nodes,optional"`
	SearchLimit   int `hcl:"search_limit,optional"`
}

// Reservation keeps room for a pod that has been waiting for long.
type Reservation struct {
	Enabled bool     `hcl:"enabled,optional"`
	After   Duration `hcl:"after,optional"`
}

// Worker configures the agent as a node that runs pods.
type Worker struct {
	Enabled bool              `hcl:"enabled,optional"`
	Runtime string            `hcl:"runtime,optional"`
	Labels  map[string]string `hcl:"labels,optional"`
	Taints  []string          `hcl:"taints,optional"`
	MaxPods int               `hcl:"max_pods,optional"`
	// PodPIDs bounds the processes and threads of a pod; 0: not.
	PodPIDs int `hcl:"pod_pids,optional"`
	// Images are those that the fake runtime pretends to have.
	Images map[string]Quantity `hcl:"images,optional"`
	// MetricsAddress is where the node's own metrics are read; empty: nowhere.
	MetricsAddress string `hcl:"metrics_address,optional"`
	// StaticPods is a folder of files, each with a pod that the node runs of its own.
	StaticPods Path `hcl:"static_pods,optional"`
	// ShutdownGrace is how long the machine's end waits for the pods.
	ShutdownGrace Duration `hcl:"shutdown_grace,optional"`
	// MaxRestartBackoff is how long the restart of a container that goes on ending waits at most.
	MaxRestartBackoff Duration `hcl:"max_restart_backoff,optional"`
	// DevicePlugins is the folder in which device plugins register.
	DevicePlugins Path `hcl:"device_plugins,optional"`
	// StreamIdleTimeout and StreamMaxDuration bound how long somebody stays in a pod: without a word, and at all.
	StreamIdleTimeout Duration `hcl:"stream_idle_timeout,optional"`
	StreamMaxDuration Duration `hcl:"stream_max_duration,optional"`
	// SampleInterval is how often it is measured what pods use.
	SampleInterval Duration `hcl:"sample_interval,optional"`
	// JoinToken, or the file that has it, lets a worker in that has no certificate. JoinAPI
	// is where it asks for one.
	JoinToken     string   `hcl:"join_token,optional"`
	JoinTokenFile Path     `hcl:"join_token_file,optional"`
	JoinAPI       []string `hcl:"join_api,optional"`

	CRI      *WorkerCRI      `hcl:"cri,block"`
	Services *WorkerServices `hcl:"services,block"`
	Capacity *Capacity       `hcl:"capacity,block"`
	Reserved *Reserved       `hcl:"reserved,block"`
	Logs     *WorkerLogs     `hcl:"logs,block"`
	Eviction *WorkerEviction `hcl:"eviction,block"`
}

// WorkerServices is the node's part in services: what is sent to their addresses, and their names.
type WorkerServices struct {
	// Mode is "on", "off", or "auto": on with the runtime cri, where the machine lets it.
	Mode          string `hcl:"mode,optional"`
	ClusterDomain string `hcl:"cluster_domain,optional"`
}

// WorkerCRI is the program behind the container runtime interface.
type WorkerCRI struct {
	Endpoint      string `hcl:"endpoint,optional"`
	ParallelPulls int    `hcl:"parallel_pulls,optional"`
	// Images that nobody uses are removed above the one percentage of their disk, down to the other.
	ImageGCHighPercent int `hcl:"image_gc_high_percent,optional"`
	ImageGCLowPercent  int `hcl:"image_gc_low_percent,optional"`
	// Of which images that are on the node a pod needs credentials, and which of those that the worker has not fetched need none with NeverVerifyAllowlistedImages.
	ImagePullCredentialsVerificationPolicy string   `hcl:"image_pull_credentials_verification_policy,optional"`
	PreloadedImagesVerificationAllowlist   []string `hcl:"preloaded_images_verification_allowlist,optional"`
}

// Capacity replaces what the machine is found to have; empty: as found.
type Capacity struct {
	CPU              Quantity            `hcl:"cpu,optional"`
	Memory           Quantity            `hcl:"memory,optional"`
	EphemeralStorage Quantity            `hcl:"ephemeral_storage,optional"`
	Extended         map[string]Quantity `hcl:"extended,optional"`
}

// Reserved is kept from pods: allocatable = capacity - reserved.
type Reserved struct {
	CPU              Quantity `hcl:"cpu,optional"`
	Memory           Quantity `hcl:"memory,optional"`
	EphemeralStorage Quantity `hcl:"ephemeral_storage,optional"`
}

// WorkerLogs bounds what a container's output may take on disk.
type WorkerLogs struct {
	MaxSize  Quantity `hcl:"max_size,optional"`
	MaxFiles int      `hcl:"max_files,optional"`
}
