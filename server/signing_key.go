package server

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/apiserver/tokens"
	"github.com/berth-dev/berth/fsm"
)

// keepSigningKey makes the key that service accounts' tokens are signed with,
// once every server knows of such keys.
func (s *Server) keepSigningKey(ctx context.Context) {
	ticker := time.NewTicker(controlInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if _, _, has := s.state.View().SignsNow(); has {
			return
		}
		if err := s.addSigningKey(ctx, func(c *fsm.AddSigningKey) { c.OnlyIfNone = true }); err != nil && ctx.Err() == nil {
			s.log.Debug("the cluster has no key for service accounts' tokens yet", "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// addSigningKey makes a key as how says.
func (s *Server) addSigningKey(ctx context.Context, how func(c *fsm.AddSigningKey)) error {
	if lowest, needs := s.versionNow(ctx), fsm.Since(&fsm.AddSigningKey{}); lowest < needs {
		return fmt.Errorf("%w: signing keys need every server at log version %d, and one is at %d: upgrade all servers first", errBadRequest, needs, lowest)
	}
	c, err := tokens.NewKey()
	if err != nil {
		return err
	}
	how(c)
	if c.Private, err = s.vault.SealKey(ctx, s.state.View(), c.ID, c.Private); err != nil {
		return err
	}
	r, err := s.proposeOne(ctx, c)
	if err != nil {
		return err
	}
	if r.Refused() {
		return fmt.Errorf("%w: %s", errBadRequest, r.Message)
	}
	return nil
}

// rotateSigningKey makes another key sign service accounts' tokens.
func (s *Server) rotateSigningKey(r *http.Request) (any, error) {
	var req operator.SigningKeyRequest
	if err := readRequest(r, &req); err != nil {
		return nil, err
	}
	out := &operator.SigningKeyResult{}
	err := s.addSigningKey(r.Context(), func(c *fsm.AddSigningKey) { c.Revoke, out.ID = req.Revoke, c.ID })
	if err != nil {
		return nil, err
	}
	s.log.Info("an operator has changed the key of service accounts' tokens", "key", out.ID, "revoked", req.Revoke)
	return out, nil
}
