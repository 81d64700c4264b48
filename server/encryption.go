package server

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/apiserver/vault"
	"github.com/berth-dev/berth/fsm"
)

const (
	// rewrittenAtOnce is how many objects one request of an operator writes anew: the next one goes on.
	rewrittenAtOnce = 256
	// rewrittenTogether are proposed at a time.
	rewrittenTogether = 16
)

// encryptionStatus says what is encrypted with which key, as this server sees it.
func (s *Server) encryptionStatus(r *http.Request) (any, error) {
	if err := s.ReadIndex(r.Context()); err != nil {
		return nil, err
	}
	view := s.state.View()
	out := &operator.EncryptionStatus{
		Server: s.config.Name, File: s.vault.File(), Fingerprint: s.vault.Fingerprint(), Revision: view.Revision(),
	}
	for _, h := range s.vault.Holdings(view) {
		out.Holdings = append(out.Holdings, operator.EncryptionHolding{
			Resource: h.Resource, Key: h.Key, Objects: h.Objects, Stale: h.Stale, Problem: h.Problem,
		})
	}
	return out, nil
}

// rewriteEncrypted writes what is not encrypted as it would be by now: so much as one request may take.
func (s *Server) rewriteEncrypted(r *http.Request) (any, error) {
	ctx := r.Context()
	if err := s.ReadIndex(ctx); err != nil {
		return nil, err
	}
	view := s.state.View()
	var rows []*fsm.Object
	out := &operator.EncryptionRewrite{}
	s.vault.Stale(view, func(row *fsm.Object) bool {
		if len(rows) == rewrittenAtOnce {
			out.More = true
			return false
		}
		rows = append(rows, row)
		return true
	})
	for len(rows) > 0 {
		n := min(len(rows), rewrittenTogether)
		if err := s.rewrite(ctx, view, rows[:n], out); err != nil {
			return nil, err
		}
		rows = rows[n:]
	}
	if !out.More && !s.vault.KeyCurrent(view) {
		if err := s.addSigningKey(ctx, func(*fsm.AddSigningKey) {}); err != nil {
			return nil, fmt.Errorf("the key of service accounts' tokens: %w", err)
		}
		out.SigningKey = true
	}
	if out.Rewritten > 0 || out.SigningKey {
		s.log.Info("an operator has had objects encrypted anew", "objects", out.Rewritten, "signing key", out.SigningKey)
	}
	return out, nil
}

// rewrite proposes rows as they are, in other envelopes. Who is changed meanwhile was written by somebody else.
func (s *Server) rewrite(ctx context.Context, view *fsm.View, rows []*fsm.Object, out *operator.EncryptionRewrite) error {
	proposals := make([]fsm.Proposal, len(rows))
	for i, row := range rows {
		c, err := s.vault.Rewrite(ctx, view, row)
		if err != nil {
			return err
		}
		proposals[i] = askedFor(ctx, c)
	}
	results, err := s.Propose(ctx, proposals...)
	if err != nil {
		return err
	}
	for _, r := range results {
		switch {
		case !r.Refused():
			out.Rewritten++
		case r.Code == http.StatusConflict || r.Code == http.StatusNotFound:
			out.Overtaken++
		default:
			return r.Err()
		}
	}
	return nil
}

// vaultGauges tell what cannot be opened when they are asked.
func (s *Server) vaultGauges() error {
	for _, c := range []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_encryption_locked_objects", Help: "Objects whose key this server does not have, as far as one object of each key tells.",
		}, func() float64 { return float64(objectsOf(s.vault.Locked(s.state.View()))) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "berth_encryption_failures_total", Help: "Objects that this server could not decrypt or encrypt when it was asked to.",
		}, func() float64 { return float64(s.vault.Failures()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "berth_encryption_config_refused_total", Help: "Changes of the encryption configuration that could not be read.",
		}, func() float64 { return float64(s.vault.RefusedFiles()) }),
	} {
		if err := s.config.Metrics.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

func objectsOf(holdings []vault.Holding) (n int) {
	for _, h := range holdings {
		n += h.Objects
	}
	return n
}
