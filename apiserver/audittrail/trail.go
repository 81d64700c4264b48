// Package audittrail keeps what was asked of the API, by whom and with what outcome: in files,
// and at a webhook. Which requests, and how much of them, Kubernetes' audit policy says.
//
// It must never hold a request up because nobody takes its account, and never keep more of
// them in memory than its bound.
package audittrail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/apis/audit/validation"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver/yamlfile"
)

// Config says what is kept and where. Its zero value keeps nothing.
type Config struct {
	// PolicyFile is a Policy of audit.k8s.io/v1; empty: DefaultPolicy.
	PolicyFile string
	// MaxEventBytes bounds the account of one request: bodies are left out of what is longer.
	MaxEventBytes int64
	Log           Log
	Webhook       Webhook
}

// Log are files.
type Log struct {
	Path string // empty: none
	// Files are begun anew at so many MiB; at most so many old ones are kept, for at most so many
	// days (0: without a bound).
	MaxMebibytes, MaxFiles, MaxAgeDays int
	Compress                           bool
	// Batch lets answers go out before the line is written.
	Batch bool
}

// Webhook is who is sent accounts in batches.
type Webhook struct {
	Kubeconfig string // empty: nobody
	MaxBatch   int
	MaxWait    time.Duration
}

// Enabled says whether anything is kept.
func (c *Config) Enabled() bool { return c.Log.Path != "" || c.Webhook.Kubeconfig != "" }

const (
	// What waits to be written or sent, of each of the two.
	maxWaitingEvents = 10_000
	maxWaitingBytes  = 64 << 20
	// The log's batches: as soon as there is something, so much at a time.
	logBatch, logWait = 256, 100 * time.Millisecond
	// endTimeout is how long accounts that wait have when the server stops.
	endTimeout = 5 * time.Second
	// tellEvery bounds how often the server's log says that accounts are lost.
	tellEvery = 10 * time.Second
)

// Trail is where accounts go.
type Trail struct {
	backend audit.Backend
	policy  audit.PolicyRuleEvaluator
	lost    atomic.Int64
	tell    *rate.Limiter
	logger  hclog.Logger
	ending  chan struct{}
	sender  *sender
}

// Open reads the policy, and opens what accounts go to; nil if there is nothing.
func Open(c Config, logger hclog.Logger) (*Trail, error) {
	if !c.Enabled() {
		return nil, nil
	}
	p, err := readPolicy(c.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("the audit policy:\n%w", err)
	}
	t := &Trail{policy: policy.NewPolicyRuleEvaluator(p), tell: rate.NewLimiter(rate.Every(tellEvery), 1), logger: logger, ending: make(chan struct{})}
	short := func(next audit.Backend) audit.Backend {
		return truncate.NewBackend(next, truncate.Config{MaxEventSize: c.MaxEventBytes, MaxBatchSize: 10 << 20}, auditv1.SchemeGroupVersion)
	}
	var ways []audit.Backend
	if c.Log.Path != "" {
		if err := writable(c.Log.Path); err != nil {
			return nil, fmt.Errorf("the audit log: %w", err)
		}
		var way audit.Backend = auditlog.NewBackend(t.file(c.Log), auditlog.FormatJson, auditv1.SchemeGroupVersion)
		if c.Log.Batch {
			way = t.waiting(way, buffered.BatchConfig{MaxBatchSize: logBatch, MaxBatchWait: logWait})
		}
		ways = append(ways, short(way))
	}
	if c.Webhook.Kubeconfig != "" {
		if t.sender, err = t.newSender(c.Webhook.Kubeconfig); err != nil {
			return nil, fmt.Errorf("the audit webhook of %s: %w", c.Webhook.Kubeconfig, err)
		}
		ways = append(ways, short(t.waiting(t.sender, buffered.BatchConfig{
			MaxBatchSize: c.Webhook.MaxBatch, MaxBatchWait: c.Webhook.MaxWait, AsyncDelegate: true,
			ThrottleEnable: true, ThrottleQPS: 10, ThrottleBurst: 15,
		})))
	}
	t.backend = newStrangers(shorten{audit.Union(ways...)}, logger)
	return t, nil
}

// writable makes sure at the start of what would otherwise be found with the first request.
func writable(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// Backend is where handlers send accounts.
func (t *Trail) Backend() audit.Backend { return t.backend }

// Policy says what of a request is kept.
func (t *Trail) Policy() audit.PolicyRuleEvaluator { return t.policy }

// Lost counts accounts that could neither be written nor sent, or for which there was no room.
func (t *Trail) Lost() int64 { return t.lost.Load() }

// Run lets what waits go on its way.
func (t *Trail) Run() error { return t.backend.Run(t.ending) }

// End gives what waits a moment to be written and sent. It is called once, after Run.
func (t *Trail) End() {
	close(t.ending)
	done := make(chan struct{})
	go func() { t.backend.Shutdown(); close(done) }()
	late := time.NewTimer(endTimeout)
	defer late.Stop()
	select {
	case <-done:
		return
	case <-late.C:
	}
	if t.sender != nil {
		t.sender.stop() // what is not sent by now is lost
	}
	select {
	case <-done:
	case <-time.After(endTimeout):
		t.logger.Error("the audit trail did not end in time")
	}
}

// lose counts accounts that are lost, and says so now and then.
func (t *Trail) lose(n int, why string, err error) {
	all := t.lost.Add(int64(n))
	if t.tell.Allow() {
		t.logger.Error("accounts of requests are lost for the audit trail", "reason", why, "error", err, "lost so far", all)
	}
}

// readPolicy reads a policy as upstream does, but for fields that nobody knows: they are mistakes.
func readPolicy(file string) (*auditinternal.Policy, error) {
	if file == "" {
		return DefaultPolicy(), nil
	}
	o, data, err := yamlfile.Read(file, audit.Scheme)
	if err != nil {
		return nil, err
	}
	p, ok := o.(*auditinternal.Policy)
	if !ok {
		return nil, fmt.Errorf("%s: it is %T, not a Policy of audit.k8s.io", file, o)
	}
	if len(p.Rules) == 0 {
		return nil, fmt.Errorf("%s: it has no rules", file)
	}
	var errs []error
	for _, e := range validation.ValidatePolicy(p) {
		errs = append(errs, yamlfile.Placed(file, data, e))
	}
	return p, errors.Join(errs...)
}

// DefaultPolicy keeps who did what, when and with what outcome, of all but probes, metrics and what
// Berth's own controllers look at. It keeps no bodies, so no secrets.
func DefaultPolicy() *auditinternal.Policy {
	return &auditinternal.Policy{
		OmitStages: []auditinternal.Stage{auditinternal.StageRequestReceived},
		Rules: []auditinternal.PolicyRule{
			{Level: auditinternal.LevelNone, NonResourceURLs: append(access.PublicPaths(), "/healthz/*", "/livez/*", "/readyz/*", "/metrics", "/openapi/*")},
			{Level: auditinternal.LevelNone, UserGroups: []string{access.Controllers}, Verbs: []string{"get", "list", "watch"}},
			{Level: auditinternal.LevelMetadata},
		},
	}
}
