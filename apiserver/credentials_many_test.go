package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/apiserver/users"
	"github.com/berth-dev/berth/pki"
)

// manyCredentials are checked by what an account's token and somebody elsewhere are said to be; both are watched over until the test ends.
func manyCredentials(t *testing.T, accounts, elsewhere authenticator.TokenFunc) *credentials {
	t.Helper()
	known, err := users.Open(users.Config{Logger: hclog.NewNullLogger(), Accounts: accounts})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(known.Close)
	c := newCredentials(bearertoken.New(elsewhere), known, nil)
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { c.run(ctx) })
	running.Go(func() { c.runFar(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return c
}

// TestManyAreAskedAboutInTime: of thousands that one vouches for who takes his time, this server's state or somebody elsewhere, each is asked about
// within its time, and each that is taken back ends; whoever never answers holds up none of them.
func TestManyAreAskedAboutInTime(t *testing.T) {
	const (
		each   = 2000
		answer = 100 * time.Millisecond
		round  = each * answer / checksAtOnce // how long it takes to ask about all
	)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		begun, taken := false, false
		asked, gaps := map[string]time.Time{}, map[string]time.Duration{}
		says := func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			mu.Lock()
			slow, over := begun, taken
			if kind, _, _ := strings.Cut(token, "-"); slow {
				if last, ok := asked[token]; ok {
					gaps[kind] = max(gaps[kind], time.Since(last))
				}
				asked[token] = time.Now()
			}
			mu.Unlock()
			if strings.HasPrefix(token, "silent") {
				<-ctx.Done()
				return nil, false, ctx.Err()
			}
			if slow {
				<-time.After(answer)
			}
			if over {
				return nil, false, errors.New("taken back")
			}
			return &authenticator.Response{User: &user.DefaultInfo{Name: "eve"}}, true, nil
		}
		here := func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			if !strings.HasPrefix(token, "near") {
				return nil, false, nil
			}
			return says(ctx, token)
		}
		c := manyCredentials(t, here, says)
		held := map[string][]*lastingRequest{}
		for i := range each {
			for _, kind := range []string{"near", "far", "silent"} {
				held[kind] = append(held[kind], lasts(t, c, fmt.Sprint(kind, "-", i)))
			}
		}
		mu.Lock()
		begun = true
		c.mu.Lock()
		for _, one := range c.far {
			one.issuer, _, _ = strings.Cut(strings.TrimPrefix(one.shown.authorization[0], "Bearer "), "-")
		}
		c.mu.Unlock()
		mu.Unlock()
		<-time.After(3 * tokenEvery)
		synctest.Wait()
		mu.Lock()
		for kind, every := range map[string]time.Duration{"near": tokenEvery, "far": farEvery} {
			if gaps[kind] > every+round+2*lookEvery || gaps[kind] < every/2 {
				t.Errorf("of what is %s one was not asked about for %s", kind, gaps[kind])
			}
		}
		if taken = true; len(asked) < 2*each {
			t.Errorf("%d were asked about", len(asked))
		}
		mu.Unlock()
		<-time.After(tokenEvery + round + 2*lookEvery)
		synctest.Wait()
		for kind, all := range held {
			on := 0
			for _, l := range all {
				if l.ctx.Err() == nil {
					on++
				}
				l.end()
			}
			if want := map[string]int{"silent": each}[kind]; on != want {
				t.Errorf("of what is %s %d go on, %d of them should", kind, on, want)
			}
		}
		synctest.Wait()
	})
}

// TestACertificateWaitsForNoToken: what this server can tell by itself does not wait for what its leader would have to be asked about.
func TestACertificateWaitsForNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, err := pki.NewCA(time.Now(), 0)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := ca.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: "ann", Validity: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(pair.CertPEM)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		away := false
		c := manyCredentials(t, func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			mu.Lock()
			wait := away
			mu.Unlock()
			if wait {
				<-ctx.Done()
				return nil, false, ctx.Err()
			}
			return &authenticator.Response{User: &user.DefaultInfo{Name: "eve"}}, true, nil
		}, nil)
		for i := range 1000 {
			defer lasts(t, c, base64.RawURLEncoding.EncodeToString(fmt.Append(nil, i))).end()
		}
		l := &lastingRequest{}
		ctx := context.WithValue(t.Context(), shownKey{}, &shown{
			tls: &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}}, who: &user.DefaultInfo{Name: "ann"},
		})
		l.ctx, l.end = context.WithCancel(ctx)
		defer c.hold(ctx, l)()
		mu.Lock()
		away = true
		mu.Unlock()
		<-time.After(time.Until(cert.NotAfter) + 3*lookEvery)
		synctest.Wait()
		if l.ctx.Err() == nil {
			t.Error("a certificate is over, and what lasts by it goes on")
		}
	})
}
