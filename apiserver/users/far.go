package users

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/berth-dev/berth/apiserver/replies"
)

const (
	// farTimeout bounds what a request waits for an issuer or a webhook.
	farTimeout = 10 * time.Second
	// maxFar is how many requests may wait for them at a time, of each kind.
	maxFar = 512
	// issuerTimeout bounds one answer of an issuer, maxFarBytes those of issuers and webhooks.
	issuerTimeout = 5 * time.Second
	maxFarBytes   = 1 << 20
	// An issuer is asked for its keys at most so often, whatever tokens come.
	keysPerSecond, keysAtOnce = 1, 5
)

var (
	errManyWait  = errors.New("too many tokens are being asked about elsewhere")
	errAskedOnce = errors.New("the issuer was asked for its keys a moment ago")
)

// far bounds how many tokens are asked about elsewhere, and for how long.
type far struct {
	next  authenticator.Token
	slots chan struct{}
	// local, if not nil, tells without waiting what can be told so.
	local bool
}

func newFar(next authenticator.Token, local bool) *far {
	return &far{next: next, slots: make(chan struct{}, maxFar), local: local}
}

// AuthenticateToken implements authenticator.Token.
func (f *far) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if f.local {
		// Keys that are known are looked at whatever the context: only fetching waits for it. So those
		// who have a good token do not stand behind those who have none.
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if who, ok, err := f.next.AuthenticateToken(ended, token); err == nil {
			return who, ok, nil
		}
	}
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return nil, false, errManyWait
	}
	ctx, cancel := context.WithTimeout(ctx, farTimeout)
	defer cancel()
	return f.next.AuthenticateToken(ctx, token)
}

// issuerClient is how an issuer is asked: roots are the PEM of who vouches for it, or empty
// for whom the machine trusts.
func issuerClient(roots string) (*http.Client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	t.MaxConnsPerHost = 16
	if roots != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(roots)) {
			return nil, errors.New("it has no certificate")
		}
		t.TLSClientConfig.RootCAs = pool
	}
	return &http.Client{
		Timeout:   issuerTimeout,
		Transport: &issuerTransport{next: replies.AtMost(maxFarBytes)(t), keys: rate.NewLimiter(keysPerSecond, keysAtOnce)},
	}, nil
}

// issuerTransport bounds how often an issuer is asked.
type issuerTransport struct {
	next http.RoundTripper
	keys *rate.Limiter
}

// RoundTrip implements http.RoundTripper. What has a token of its own asks for a user's claims;
// all else is about keys, which everybody can make us fetch.
func (t *issuerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header.Get("Authorization") == "" && !t.keys.Allow() {
		return nil, errAskedOnce
	}
	return t.next.RoundTrip(req)
}
