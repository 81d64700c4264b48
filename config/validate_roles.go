package config

import (
	"maps"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (k checker) atLeast(option string, v, least int) {
	if v < least {
		k.fail(option, "%d is too small; it must be at least %d", v, least)
	}
}

func (k checker) between(option string, v, least, most int) {
	k.atLeast(option, v, least)
	if v > most {
		k.fail(option, "%d is too large; it may be at most %d", v, most)
	}
}

func (k checker) atLeastDuration(option string, d Duration, least time.Duration) {
	if d.check() == nil && d.Value() < least {
		k.fail(option, "%q is too short; it must be at least %q", string(d), least.String())
	}
}

func (k checker) betweenDurations(option string, d Duration, least, most time.Duration) {
	k.atLeastDuration(option, d, least)
	if d.check() == nil && d.Value() > most {
		k.fail(option, "%q is too long; it may be at most %q", string(d), most.String())
	}
}

// leastMaxState leaves room for objects beside what Berth's own take.
const leastMaxState = 256 << 20

func (c *Config) validateServer(k checker) {
	s := c.Server
	k.atLeast("server.bootstrap_expect", s.BootstrapExpect, 0)
	k.betweenDurations("server.autoscaler.period", s.Autoscaler.Period, time.Second, time.Hour)
	k.betweenDurations("server.autoscaler.downscale_stabilization", s.Autoscaler.DownscaleStabilization, 0, 24*time.Hour)
	k.betweenDurations("server.autoscaler.cpu_initialization", s.Autoscaler.CPUInitialization, 0, 24*time.Hour)
	k.betweenDurations("server.autoscaler.initial_readiness_delay", s.Autoscaler.InitialReadinessDelay, 0, 24*time.Hour)
	k.between("server.autoscaler.tolerance_percent", s.Autoscaler.TolerancePercent, 0, 100)
	if s.BootstrapExpect == 0 && len(c.Join) == 0 {
		k.fail("server.bootstrap_expect", "with 0 the server founds no cluster, and it knows none to join; set join")
	}
	if s.NonVoter && len(c.Join) == 0 {
		k.fail("server.non_voter", "a server without a vote founds no cluster, and it knows none to join; set join")
	}
	k.atLeastDuration("server.max_clock_offset", s.MaxClockOffset, 100*time.Millisecond)
	k.atLeast("server.max_log_version", s.MaxLogVersion, 0)
	if s.MaxRequests != 0 {
		k.atLeast("server.max_requests", s.MaxRequests, 16)
	}
	if size := s.MaxState.Value(); s.MaxState.check() == nil && !size.IsZero() && size.CmpInt64(leastMaxState) < 0 {
		k.fail("server.max_state", `%q is too small; it must be at least "256Mi", or "0"`, string(s.MaxState))
	}
	s.validateControllers(k)
	c.validateRaft(k)

	a := s.Autopilot
	k.atLeast("server.autopilot.max_trailing_logs", a.MaxTrailingLogs, 1)
	k.atLeast("server.autopilot.min_quorum", a.MinQuorum, 0)
	k.atLeastDuration("server.autopilot.last_contact_threshold", a.LastContactThreshold, 10*time.Millisecond)

	if _, err := s.Services.Ranges(); err != nil {
		k.fail("server.services.cluster_ip_ranges", "%v", err)
	}
	if _, _, err := s.Services.Ports(); err != nil {
		k.fail("server.services.node_ports", "%v", err)
	}
	c.validateAudit(k)
	c.validatePodSecurity(k)
	c.validateScheduler(k)
}

func (c *Config) validateAudit(k checker) {
	const block = "server.audit."
	a := c.Server.Audit
	if a.PolicyFile != "" && a.Log.Path == "" && a.Webhook.ConfigFile == "" {
		k.fail(block+"policy_file", "nothing is kept; set %[1]slog.path or %[1]swebhook.config_file", block)
	}
	k.readable(block+"policy_file", a.PolicyFile)
	k.readable(block+"webhook.config_file", a.Webhook.ConfigFile)
	if size := a.MaxEvent.Value(); a.MaxEvent.check() == nil && (size.Value() < 32<<10 || size.Value() > 1<<20) {
		k.fail(block+"max_event", `%q is not between "32Ki" and "1Mi"`, string(a.MaxEvent))
	}
	if size := a.Log.MaxSize.Value(); a.Log.MaxSize.check() == nil && (size.Value() < 2<<20 || size.Value()%(1<<20) != 0) {
		k.fail(block+"log.max_size", `%q is not a whole number of Mi, "2Mi" or more`, string(a.Log.MaxSize))
	}
	k.atLeast(block+"log.max_files", a.Log.MaxFiles, 0)
	k.atLeast(block+"log.max_age_days", a.Log.MaxAgeDays, 0)
	if problem, ok := oneOf(a.Log.Mode, "blocking", "batch"); !ok {
		k.fail(block+"log.mode", "%s", problem)
	}
	k.between(block+"webhook.max_batch", a.Webhook.MaxBatch, 1, 10_000)
	k.atLeastDuration(block+"webhook.max_wait", a.Webhook.MaxWait, 10*time.Millisecond)
}

// podSecurityVersion is a version of Kubernetes' Pod Security Standards.
var podSecurityVersion = regexp.MustCompile(`^(latest|v1\.(0|[1-9][0-9]{0,3}))$`)

func (c *Config) validatePodSecurity(k checker) {
	const block = "server.admission.pod_security."
	p := c.Server.Admission.PodSecurity
	for _, mode := range []struct{ option, level, version string }{
		{"enforce", p.Enforce, p.EnforceVersion}, {"audit", p.Audit, p.AuditVersion}, {"warn", p.Warn, p.WarnVersion},
	} {
		if problem, ok := oneOf(mode.level, "privileged", "baseline", "restricted"); !ok {
			k.fail(block+mode.option, "%s", problem)
		}
		if !podSecurityVersion.MatchString(mode.version) {
			k.fail(block+mode.option+"_version", `%q is neither "latest" nor a version like "v1.36"`, mode.version)
		}
	}
	for _, list := range []struct {
		option string
		values []string
		check  func(string) []string
	}{
		{"exempt_users", p.ExemptUsers, emptyName},
		{"exempt_namespaces", p.ExemptNamespaces, validation.IsDNS1123Label},
		{"exempt_runtime_classes", p.ExemptRuntimeClasses, validation.IsDNS1123Subdomain},
	} {
		for i, v := range list.values {
			if problems := list.check(v); len(problems) > 0 {
				k.fail(block+list.option, "%q is no name: %s", v, problems[0])
			}
			if slices.Contains(list.values[:i], v) {
				k.fail(block+list.option, "%q is there twice", v)
			}
		}
	}
}

func emptyName(v string) []string {
	if v == "" {
		return []string{"it is empty"}
	}
	return nil
}

func (c *Config) validateScheduler(k checker) {
	const block = "server.scheduler."
	sc := c.Server.Scheduler
	if problem, ok := oneOf(sc.Queue, "priority", "fifo"); !ok {
		k.fail(block+"queue", "%s", problem)
	}
	k.wholeSeconds(block+"pod_initial_backoff", sc.PodInitialBackoff, 1)
	k.wholeSeconds(block+"pod_max_backoff", sc.PodMaxBackoff, 0)
	k.wholeSeconds(block+"nomination_slack", sc.NominationSlack, 1)
	k.wholeSeconds(block+"node_grace", sc.NodeGrace, 1)
	if most := sc.PodMaxBackoff.Value(); most != 0 && most < sc.PodInitialBackoff.Value() {
		k.fail(block+"pod_max_backoff", "%q is shorter than pod_initial_backoff, %q", string(sc.PodMaxBackoff), string(sc.PodInitialBackoff))
	}
	k.between(block+"event_limit", sc.EventLimit, 0, 1_000_000)
	k.between(block+"hard_pod_affinity_weight", sc.HardPodAffinityWeight, 0, 100)
	k.wholeSeconds(block+"aging", sc.Aging, 0)
	k.wholeSeconds(block+"reservation.after", sc.Reservation.After, 1)
	if problem, ok := oneOf(sc.Preemption.Budgets, "BestEffort", "Strict"); !ok {
		k.fail(block+"preemption.budgets", "%s", problem)
	}
	if problem, ok := oneOf(sc.Preemption.SystemClassBudgets, "BestEffort", "Strict"); !ok {
		k.fail(block+"preemption.system_class_budgets", "%s", problem)
	}
	k.between(block+"preemption.max_other_nodes", sc.Preemption.MaxOtherNodes, 0, 16)
	k.between(block+"preemption.search_limit", sc.Preemption.SearchLimit, 0, 1_000_000)
}

// wholeSeconds: the replicated configuration counts in seconds, and a day is the
// most that it takes.
func (k checker) wholeSeconds(option string, d Duration, least int) {
	if d.check() != nil {
		return
	}
	v := d.Value()
	switch {
	case v%time.Second != 0:
		k.fail(option, "%q is not a whole number of seconds", string(d))
	case v < time.Duration(least)*time.Second:
		k.fail(option, "%q is too short; it must be at least \"%ds\"", string(d), least)
	case v > 24*time.Hour:
		k.fail(option, "%q is too long; it may be at most \"24h\"", string(d))
	}
}

// validateRaft keeps the library's own conditions, so that the mistake is found
// here with its line and not at the start of the log.
func (c *Config) validateRaft(k checker) {
	r := c.Server.Raft
	const least = 5 * time.Millisecond
	k.atLeastDuration("server.raft.heartbeat_timeout", r.HeartbeatTimeout, least)
	k.atLeastDuration("server.raft.election_timeout", r.ElectionTimeout, least)
	k.atLeastDuration("server.raft.leader_lease_timeout", r.LeaderLeaseTimeout, least)
	k.atLeastDuration("server.raft.snapshot_interval", r.SnapshotInterval, least)
	k.atLeast("server.raft.snapshot_threshold", r.SnapshotThreshold, 1)
	k.atLeast("server.raft.trailing_logs", r.TrailingLogs, 1)
	if r.ElectionTimeout.Value() < r.HeartbeatTimeout.Value() {
		k.fail("server.raft.election_timeout", "%q is shorter than heartbeat_timeout, %q", string(r.ElectionTimeout), string(r.HeartbeatTimeout))
	}
	if r.LeaderLeaseTimeout.Value() > r.HeartbeatTimeout.Value() {
		k.fail("server.raft.leader_lease_timeout", "%q is longer than heartbeat_timeout, %q", string(r.LeaderLeaseTimeout), string(r.HeartbeatTimeout))
	}
}

// validateJoining checks what a worker joins by that has no certificate.
func (c *Config) validateJoining(k checker) {
	w := c.Worker
	for _, addr := range w.JoinAPI {
		if err := checkJoin(addr); err != "" {
			k.fail("worker.join_api", "%s", err)
		}
	}
	option := "worker.join_token"
	if w.JoinTokenFile != "" {
		if w.JoinToken != "" {
			k.fail(option, "join_token_file is set too; leave one out")
		}
		option = "worker.join_token_file"
		k.readable(option, w.JoinTokenFile)
	}
	switch {
	case w.JoinToken == "" && w.JoinTokenFile == "":
	case c.Server.Enabled:
		k.fail(option, "a token makes a worker and no server, and this agent is one; use a tls block")
	case c.TLS.Enabled():
		k.fail(option, "this agent has a certificate by its tls block; leave one out")
	}
}

func (c *Config) validateWorker(k checker) {
	w := c.Worker
	if len(w.Images) > 0 && w.Runtime != "fake" {
		k.fail("worker.images", "only the fake runtime has images")
	}
	if problem, ok := oneOf(w.Runtime, "auto", "cri", "process", "fake"); !ok {
		k.fail("worker.runtime", "%s", problem)
	}
	if u, err := url.Parse(w.CRI.Endpoint); err != nil || u.Scheme != "unix" || u.Host != "" || !path.IsAbs(u.Path) {
		k.fail("worker.cri.endpoint", "%q is not a socket; write \"unix:///PATH\"", w.CRI.Endpoint)
	}
	if problem, ok := oneOf(w.Services.Mode, "auto", "on", "off"); !ok {
		k.fail("worker.services.mode", "%s", problem)
	}
	if w.Services.Mode == "on" && w.Runtime == "fake" {
		k.fail("worker.services.mode", "the fake runtime has no pods that services could lead to")
	}
	if problems := validation.IsDNS1123Subdomain(w.Services.ClusterDomain); len(problems) > 0 {
		k.fail("worker.services.cluster_domain", "%q is no domain: %s", w.Services.ClusterDomain, problems[0])
	}
	k.betweenDurations("worker.sample_interval", w.SampleInterval, time.Second, time.Minute)
	k.betweenDurations("worker.stream_idle_timeout", w.StreamIdleTimeout, time.Second, 24*time.Hour)
	k.betweenDurations("worker.stream_max_duration", w.StreamMaxDuration, time.Second, 24*time.Hour)
	k.betweenDurations("worker.max_restart_backoff", w.MaxRestartBackoff, time.Second, 5*time.Minute)
	k.betweenDurations("worker.shutdown_grace", w.ShutdownGrace, 0, 24*time.Hour)
	if at, err := netip.ParseAddrPort(w.MetricsAddress); w.MetricsAddress != "" && (err != nil || !at.Addr().IsLoopback()) {
		k.fail("worker.metrics_address", "%q is no address of the loopback interface with a port, like \"127.0.0.1:7645\": it is read without a certificate", w.MetricsAddress)
	}
	k.between("worker.cri.parallel_pulls", w.CRI.ParallelPulls, 1, 100)
	k.between("worker.cri.image_gc_high_percent", w.CRI.ImageGCHighPercent, 1, 100)
	k.between("worker.cri.image_gc_low_percent", w.CRI.ImageGCLowPercent, 0, w.CRI.ImageGCHighPercent)
	if problem, ok := oneOf(w.CRI.ImagePullCredentialsVerificationPolicy, "NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"); !ok {
		k.fail("worker.cri.image_pull_credentials_verification_policy", "%s", problem)
	} else if listed := len(w.CRI.PreloadedImagesVerificationAllowlist) > 0; listed && w.CRI.ImagePullCredentialsVerificationPolicy != "NeverVerifyAllowlistedImages" {
		k.fail("worker.cri.preloaded_images_verification_allowlist", `it is only for the policy "NeverVerifyAllowlistedImages"`)
	}
	c.validateJoining(k)
	if !c.Server.Enabled && len(c.Join) == 0 && len(w.JoinAPI) == 0 {
		k.fail("worker.enabled", "the worker knows no member of a cluster; set join")
	}
	for _, key := range sortedKeys(w.Labels) {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			k.fail("worker.labels", "%q is not a label: %s", key, problems[0])
		}
		if problems := validation.IsValidLabelValue(w.Labels[key]); len(problems) > 0 {
			k.fail("worker.labels", "%q cannot be the value of a label: %s", w.Labels[key], problems[0])
		}
	}
	for _, t := range w.Taints {
		if _, err := ParseTaint(t); err != nil {
			k.fail("worker.taints", "%v", err)
		}
	}
	k.atLeast("worker.max_pods", w.MaxPods, 1)
	k.atLeast("worker.pod_pids", w.PodPIDs, 0)
	k.atLeast("worker.logs.max_files", w.Logs.MaxFiles, 1)
	if size := w.Logs.MaxSize.Value(); w.Logs.MaxSize.check() == nil && size.Value() < 4096 {
		k.fail("worker.logs.max_size", "%q is too small; it must be at least \"4Ki\"", string(w.Logs.MaxSize))
	}
	for _, name := range sortedKeys(w.Capacity.Extended) {
		if problems := validation.IsQualifiedName(name); len(problems) > 0 {
			k.fail("worker.capacity.extended", "%q is not a resource: %s", name, problems[0])
		}
		if v := w.Capacity.Extended[name].Value(); v.MilliValue()%1000 != 0 {
			k.fail("worker.capacity.extended", "%s: %q is not a whole number", name, string(w.Capacity.Extended[name]))
		}
	}
	w.Eviction.validate(k)
	c.validateReserved(k)
}

func (c *Config) validateReserved(k checker) {
	capacity, reserved := c.Worker.Capacity, c.Worker.Reserved
	for _, r := range []struct {
		name          string
		has, reserved Quantity
	}{
		{"cpu", capacity.CPU, reserved.CPU},
		{"memory", capacity.Memory, reserved.Memory},
		{"ephemeral_storage", capacity.EphemeralStorage, reserved.EphemeralStorage},
	} {
		if r.has.check() != nil || r.reserved.check() != nil {
			continue // told already
		}
		if has, kept := r.has.Value(), r.reserved.Value(); r.has != "" && r.reserved != "" && has.Cmp(kept) < 0 {
			k.fail("worker.reserved."+r.name, "%q is more than the capacity, %q", string(r.reserved), string(r.has))
		}
	}
}
