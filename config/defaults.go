package config

import "os"

// The default ports.
const (
	DefaultHTTPPort   = 7640
	DefaultRPCPort    = 7641
	DefaultRaftPort   = 7642
	DefaultGossipPort = 7643
)

// Default returns what an empty file means. The agent's name defaults to the
// host's, which Load looks up.
func Default() *Config {
	return &Config{
		BindAddr: "127.0.0.1",
		LogLevel: "info",
		Ports:    &Ports{HTTP: DefaultHTTPPort, RPC: DefaultRPCPort, Raft: DefaultRaftPort, Gossip: DefaultGossipPort},
		Gossip:   &Gossip{},
		TLS:      &TLS{},
		Auth:     &Auth{Webhook: &AuthWebhook{Version: "v1", CacheTTL: "2m"}},
		Server: &Server{
			BootstrapExpect: 1,
			MaxClockOffset:  "30s",
			MaxState:        "0",
			Controllers:     []string{everyController},
			Raft: &Raft{
				HeartbeatTimeout:   "1s",
				ElectionTimeout:    "1s",
				LeaderLeaseTimeout: "500ms",
				SnapshotThreshold:  8192,
				SnapshotInterval:   "2m",
				TrailingLogs:       10240,
			},
			Audit: &Audit{
				MaxEvent: "100Ki",
				Log:      &AuditLog{MaxSize: "100Mi", MaxFiles: 100, MaxAgeDays: 366, Mode: "blocking"},
				Webhook:  &AuditWebhook{MaxBatch: 400, MaxWait: "30s"},
			},
			Admission: &Admission{PodSecurity: &PodSecurity{
				Enforce: "privileged", EnforceVersion: "latest", Audit: "privileged", AuditVersion: "latest", Warn: "privileged", WarnVersion: "latest",
			}},
			Autopilot: &Autopilot{
				CleanupDeadServers:      true,
				LastContactThreshold:    "200ms",
				MaxTrailingLogs:         250,
				MinQuorum:               3,
				ServerStabilizationTime: "10s",
			},
			Scheduler: &Scheduler{
				Preemption:        &Preemption{Enabled: true, Budgets: "BestEffort", SystemClassBudgets: "BestEffort", MaxOtherNodes: 3, SearchLimit: 1000},
				Reservation:       &Reservation{Enabled: true, After: "5m"},
				Queue:             "priority",
				PodInitialBackoff: "1s",
				PodMaxBackoff:     "10s",
				NominationSlack:   "10s",
				NodeGrace:         "50s",
				EventLimit:        20000,
				SystemClassGroups: []string{"system:masters"},

				HardPodAffinityWeight: 1,
				Aging:                 "0s",
			},
			Autoscaler: &Autoscaler{
				Period: "15s", DownscaleStabilization: "5m", TolerancePercent: 10, CPUInitialization: "5m", InitialReadinessDelay: "30s",
			},
			Services: &Services{ClusterIPRanges: []string{"10.96.0.0/16"}, NodePorts: "30000-32767"},
		},
		Worker: &Worker{
			Runtime: "auto",
			MaxPods: 110,

			SampleInterval:    "10s",
			StreamIdleTimeout: "4h", StreamMaxDuration: "24h",

			CRI: &WorkerCRI{Endpoint: "unix:///run/containerd/containerd.sock", ParallelPulls: 3, ImageGCHighPercent: 85, ImageGCLowPercent: 80,
				ImagePullCredentialsVerificationPolicy: "NeverVerifyPreloadedImages"},
			Services:      &WorkerServices{Mode: "auto", ClusterDomain: "cluster.local"},
			Capacity:      &Capacity{},
			Reserved:      &Reserved{},
			ShutdownGrace: "0s",

			MaxRestartBackoff: "5m",

			Logs:     &WorkerLogs{MaxSize: "10Mi", MaxFiles: 5},
			Eviction: &WorkerEviction{PressureTransitionPeriod: "5m", MaxPodGrace: "0s"},
		},
	}
}

// fillIn sets what depends on the machine or on other options.
func (c *Config) fillIn() {
	if c.Name == "" {
		// Without a host name the validation asks for a name.
		c.Name, _ = os.Hostname()
	}
	// Who is to join others and says nothing of founding does not found a cluster
	// of its own beside theirs.
	if len(c.Join) > 0 && !c.src.set("server.bootstrap_expect") {
		c.Server.BootstrapExpect = 0
	}
}
