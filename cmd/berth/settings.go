package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/apiserver/audittrail"
	"github.com/berth-dev/berth/apiserver/users"
	"github.com/berth-dev/berth/config"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/server"
	"github.com/berth-dev/berth/worker"
	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/worker/pullrecords"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/workloads"
)

// schedulerConfiguration is the replicated configuration that a cluster founded
// by this agent starts with.
func schedulerConfiguration(s *config.Scheduler) *berthv1.SchedulerConfiguration {
	seconds := func(d config.Duration) *int32 {
		n := int32(d.Value() / time.Second) // validated: a day at most
		return &n
	}
	number := func(n int) *int32 {
		v := int32(n) // validated: a million at most
		return &v
	}
	c := berthv1.Default()
	spec := &c.Spec
	spec.Preemption.Enabled = &s.Preemption.Enabled
	spec.Queue = berthv1.QueueOrder(s.Queue)
	spec.PodInitialBackoffSeconds = seconds(s.PodInitialBackoff)
	spec.PodMaxBackoffSeconds = seconds(s.PodMaxBackoff)
	spec.NominationSlackSeconds = seconds(s.NominationSlack)
	spec.SystemClasses = &berthv1.SystemClasses{Users: s.SystemClassUsers, Groups: s.SystemClassGroups}
	spec.NodeGraceSeconds = seconds(s.NodeGrace)
	spec.EventLimit = number(s.EventLimit)
	spec.Preemption.Budgets = berthv1.BudgetPolicy(s.Preemption.Budgets)
	spec.Preemption.SystemClassBudgets = berthv1.BudgetPolicy(s.Preemption.SystemClassBudgets)
	spec.Preemption.MaxOtherNodes = number(s.Preemption.MaxOtherNodes)
	spec.Preemption.SearchLimit = number(s.Preemption.SearchLimit)
	spec.HardPodAffinityWeight = number(s.HardPodAffinityWeight)
	spec.Aging.SecondsPerPoint = seconds(s.Aging)
	spec.Reservation = berthv1.ReservationConfiguration{Enabled: &s.Reservation.Enabled, AfterSeconds: seconds(s.Reservation.After)}
	return c
}

// agentConfig turns the file's settings into the agent's. addrs are the
// addresses of this machine.
func agentConfig(c *config.Config, addrs []net.Addr) (agent.Config, error) {
	address, err := advertise(c, addrs)
	if err != nil {
		return agent.Config{}, err
	}
	out := agent.Config{
		Name: c.Name, Version: version, DataDir: string(c.DataDir), BindAddr: c.BindAddr, AdvertiseAddr: address,
		Ports: agent.Ports{HTTP: c.Ports.HTTP, RPC: c.Ports.RPC, Raft: c.Ports.Raft, Gossip: c.Ports.Gossip},
		Join:  joinAddresses(c.Join), EncryptionKey: c.Gossip.EncryptionKey,
	}
	if c.TLS.Enabled() {
		if out.CA, err = os.ReadFile(string(c.TLS.CAFile)); err != nil {
			return agent.Config{}, fmt.Errorf("reading the CA: %w", err)
		}
		files := pki.Files{CA: string(c.TLS.CAFile), Cert: string(c.TLS.CertFile), Key: string(c.TLS.KeyFile)}
		if out.TLS, err = pki.Open(files); err != nil {
			return agent.Config{}, fmt.Errorf("reading the certificate: %w", err)
		}
		if c.TLS.CAKeyFile != "" {
			out.Authority = pki.Files{CA: string(c.TLS.CAFile), Key: string(c.TLS.CAKeyFile)}
		}
	}
	if !c.TLS.Enabled() && !c.Server.Enabled {
		if out.Joining, err = joining(c); err != nil {
			return agent.Config{}, err
		}
	}
	if c.Server.Enabled {
		out.Server = serverPart(c)
	}
	if c.Worker.Enabled {
		out.Worker, err = workerPart(c.Worker)
	}
	return out, err
}

// usable finds what of the configuration this machine, or this version, cannot do, before anything is made.
func usable(c *config.Config) error {
	var found []config.OptionError
	if v := c.Server.MaxLogVersion; c.Server.Enabled && v > fsm.LogVersion {
		found = append(found, config.OptionError{Option: "server.max_log_version",
			Err: fmt.Errorf("this version of Berth knows the log's rules up to version %d, and not %d", fsm.LogVersion, v)})
	}
	if file := string(c.Auth.TokenFile); c.Server.Enabled && file != "" {
		if err := users.CheckTokens(file); err != nil {
			found = append(found, config.OptionError{Option: "auth.token_file", Err: err})
		}
	}
	if _, err := pullrecords.ParseAllowlist(c.Worker.CRI.PreloadedImagesVerificationAllowlist); c.Worker.Enabled && err != nil {
		found = append(found, config.OptionError{Option: "worker.cri.preloaded_images_verification_allowlist", Err: err})
	}
	return c.Usable(found...)
}

func serverPart(c *config.Config) *agent.ServerPart {
	r, ap := c.Server.Raft, c.Server.Autopilot
	var services server.Services // the configuration was checked
	services.ClusterIPs, _ = c.Server.Services.Ranges()
	services.FirstNodePort, services.LastNodePort, _ = c.Server.Services.Ports()
	maxState := c.Server.MaxState.Value()
	return &agent.ServerPart{
		Services: services, ControllersOff: c.Server.ControllersOff(),
		Autoscaler: workloads.Autoscaler{
			Period: c.Server.Autoscaler.Period.Value(), DownscaleStabilization: c.Server.Autoscaler.DownscaleStabilization.Value(),
			TolerancePercent: c.Server.Autoscaler.TolerancePercent, CPUInitialization: c.Server.Autoscaler.CPUInitialization.Value(),
			InitialReadinessDelay: c.Server.Autoscaler.InitialReadinessDelay.Value(),
		},
		BootstrapExpect: c.Server.BootstrapExpect, NonVoter: c.Server.NonVoter, Users: userSources(c.Auth), Audit: auditConfig(c.Server.Audit),
		Admission:        admissionConfig(c.Server.Admission),
		EncryptionConfig: string(c.Server.EncryptionConfig), MaxRequests: c.Server.MaxRequests, SignedKubelets: c.Server.SignedKubelets,
		MaxClockOffset: c.Server.MaxClockOffset.Value(), MaxLogVersion: c.Server.MaxLogVersion, MaxState: maxState.Value(),
		Consensus: server.Consensus{
			HeartbeatTimeout: r.HeartbeatTimeout.Value(), ElectionTimeout: r.ElectionTimeout.Value(),
			LeaderLeaseTimeout: r.LeaderLeaseTimeout.Value(), SnapshotInterval: r.SnapshotInterval.Value(),
			SnapshotThreshold: uint64(r.SnapshotThreshold), TrailingLogs: uint64(r.TrailingLogs),
		},
		Autopilot: server.Autopilot{
			CleanupDeadServers: ap.CleanupDeadServers, LastContactThreshold: ap.LastContactThreshold.Value(),
			ServerStabilizationTime: ap.ServerStabilizationTime.Value(), MaxTrailingLogs: uint64(ap.MaxTrailingLogs),
			MinQuorum: ap.MinQuorum,
		},
		Scheduler: schedulerConfiguration(c.Server.Scheduler),
	}
}

func userSources(a *config.Auth) users.Sources {
	return users.Sources{
		TokenFile: string(a.TokenFile), ConfigFile: string(a.ConfigFile),
		Webhook: string(a.Webhook.ConfigFile), WebhookVersion: a.Webhook.Version, WebhookCache: a.Webhook.CacheTTL.Value(),
	}
}

func auditConfig(a *config.Audit) audittrail.Config {
	event, size := a.MaxEvent.Value(), a.Log.MaxSize.Value()
	return audittrail.Config{
		PolicyFile: string(a.PolicyFile), MaxEventBytes: event.Value(),
		Log: audittrail.Log{
			Path: string(a.Log.Path), MaxMebibytes: int(size.Value() >> 20), MaxFiles: a.Log.MaxFiles, MaxAgeDays: a.Log.MaxAgeDays,
			Compress: a.Log.Compress, Batch: a.Log.Mode == "batch",
		},
		Webhook: audittrail.Webhook{
			Kubeconfig: string(a.Webhook.ConfigFile), MaxBatch: a.Webhook.MaxBatch, MaxWait: a.Webhook.MaxWait.Value(),
		},
	}
}

func admissionConfig(a *config.Admission) apiserver.Admission {
	p := a.PodSecurity
	return apiserver.Admission{PodSecurity: apiserver.PodSecurity{
		Enforce: p.Enforce, EnforceVersion: p.EnforceVersion, Audit: p.Audit, AuditVersion: p.AuditVersion, Warn: p.Warn, WarnVersion: p.WarnVersion,
		ExemptUsers: p.ExemptUsers, ExemptNamespaces: p.ExemptNamespaces, ExemptRuntimeClasses: p.ExemptRuntimeClasses,
	}}
}

func criPart(c *config.WorkerCRI) agent.CRIPart {
	return agent.CRIPart{
		Endpoint: c.Endpoint, ParallelPulls: c.ParallelPulls, ImagesHigh: c.ImageGCHighPercent, ImagesLow: c.ImageGCLowPercent,
		PullVerification: pullrecords.Policy(c.ImagePullCredentialsVerificationPolicy), PullVerificationAllowlist: c.PreloadedImagesVerificationAllowlist,
	}
}

func workerPart(w *config.Worker) (*agent.WorkerPart, error) {
	size := w.Logs.MaxSize.Value()
	out := &agent.WorkerPart{
		Runtime: w.Runtime, CRI: criPart(w.CRI), Labels: w.Labels,
		MetricsAddress: w.MetricsAddress, SampleInterval: w.SampleInterval.Value(),
		Streams:  worker.StreamBounds{Idle: w.StreamIdleTimeout.Value(), Max: w.StreamMaxDuration.Value()},
		Services: agent.ServicesPart{Mode: w.Services.Mode, Domain: w.Services.ClusterDomain},
		Capacity: amounts(w.Capacity.CPU, w.Capacity.Memory, w.Capacity.EphemeralStorage),
		Reserved: amounts(w.Reserved.CPU, w.Reserved.Memory, w.Reserved.EphemeralStorage),
		LogBytes: size.Value(), LogFiles: w.Logs.MaxFiles, PodPIDs: int64(w.PodPIDs), StaticPods: string(w.StaticPods), DevicePlugins: string(w.DevicePlugins),
		ShutdownGrace: w.ShutdownGrace.Value(), MaxRestartBackoff: w.MaxRestartBackoff.Value(),
	}
	out.Eviction = evictionConfig(w.Eviction)
	out.Capacity[corev1.ResourcePods] = *resource.NewQuantity(int64(w.MaxPods), resource.DecimalSI)
	for name, amount := range w.Capacity.Extended {
		out.Capacity[corev1.ResourceName(name)] = amount.Value()
	}
	for _, name := range slices.Sorted(maps.Keys(w.Images)) {
		size := w.Images[name].Value()
		out.Images = append(out.Images, runtime.Image{Names: []string{name}, SizeBytes: size.Value()})
	}
	for _, t := range w.Taints {
		taint, err := config.ParseTaint(t)
		if err != nil {
			return nil, err
		}
		out.Taints = append(out.Taints, taint)
	}
	return out, nil
}

// evictionConfig adds what the file says to the thresholds that there are without a word; the
// configuration was checked.
func evictionConfig(e *config.WorkerEviction) eviction.Config {
	out := eviction.Default()
	amount := func(text string) eviction.Amount {
		if text == "" {
			return eviction.Amount{}
		}
		absolute, perMyriad, _ := config.ParseThreshold(text)
		return eviction.Amount{Absolute: absolute, PerMyriad: perMyriad}
	}
	out.Transition, out.MaxGrace = e.PressureTransitionPeriod.Value(), e.MaxPodGrace.Value()
	defaults := out.Thresholds
	out.Thresholds = nil
	for _, signal := range config.EvictionSignals() {
		t := eviction.Threshold{Signal: eviction.Signal(signal), Reclaim: amount(e.MinimumReclaim[signal])}
		for _, d := range defaults {
			if d.Signal == t.Signal {
				t.Least = d.Least
			}
		}
		if text, said := e.Hard[signal]; said {
			t.Least = amount(text)
		}
		if t.Least != (eviction.Amount{}) {
			out.Thresholds = append(out.Thresholds, t)
		}
		if text := e.Soft[signal]; text != "" {
			t.Least, t.Grace = amount(text), e.SoftGrace[signal].Value()
			out.Thresholds = append(out.Thresholds, t)
		}
	}
	return out
}

// advertise is the address that others reach the agent at: the one it is told,
// or the one it listens on, or this machine's first private one.
func advertise(c *config.Config, addrs []net.Addr) (string, error) {
	if c.AdvertiseAddr != "" {
		return c.AdvertiseAddr, nil
	}
	if ip := net.ParseIP(c.BindAddr); !ip.IsUnspecified() {
		return c.BindAddr, nil
	}
	for _, addr := range addrs {
		ipNet, ok := addr.(*net.IPNet)
		if ok && ipNet.IP.IsPrivate() {
			return ipNet.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no private address; set advertise_addr")
}

// amounts lists the amounts that are set.
func amounts(cpu, memory, storage config.Quantity) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range map[corev1.ResourceName]config.Quantity{
		corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory, corev1.ResourceEphemeralStorage: storage,
	} {
		if q != "" {
			out[name] = q.Value()
		}
	}
	return out
}

// joining is what a worker without certificates joins by.
func joining(c *config.Config) (*agent.Joining, error) {
	out := &agent.Joining{Token: c.Worker.JoinToken}
	if file := string(c.Worker.JoinTokenFile); file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading the join token: %w", err)
		}
		out.Token = strings.TrimSpace(string(b))
	}
	hosts := c.Worker.JoinAPI
	if len(hosts) == 0 {
		for _, addr := range c.Join {
			if host, _, err := net.SplitHostPort(addr); err == nil {
				addr = host // the port is that of gossip
			}
			hosts = append(hosts, addr)
		}
	}
	for _, addr := range hosts {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			addr = net.JoinHostPort(addr, strconv.Itoa(config.DefaultHTTPPort))
		}
		out.API = append(out.API, addr)
	}
	return out, nil
}

// joinAddresses completes the members to join with the usual port of gossip.
func joinAddresses(join []string) []string {
	out := make([]string, len(join))
	for i, addr := range join {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			addr = net.JoinHostPort(addr, strconv.Itoa(config.DefaultGossipPort))
		}
		out[i] = addr
	}
	return out
}
