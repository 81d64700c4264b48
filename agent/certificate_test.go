package agent

import (
	"context"
	"crypto/x509"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// TestNoCertificateIsAskedForAgainAndAgain: a worker whose clock is wrong finds a new certificate as old as the one before. It asks for another
// one now and then, as one does that gets none.
func TestNoCertificateIsAskedForAgainAndAgain(t *testing.T) {
	for name, answer := range map[string]error{"renewed": nil, "refused": errors.New("no")} {
		synctest.Test(t, func(t *testing.T) {
			c := &Config{Logger: hclog.NewNullLogger()}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			asked := 0
			c.keepRenewed(ctx, func() *x509.Certificate {
				return &x509.Certificate{NotBefore: time.Now().Add(-89 * 24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
			}, func(context.Context) error {
				if asked++; asked > 1000 {
					cancel()
				}
				return answer
			})
			if asked == 0 || asked > int(time.Hour/renewPause)+1 {
				t.Errorf("%s: it asked %d times within an hour", name, asked)
			}
		})
	}
}
