package apiserver

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/apiserver/audittrail"
	"github.com/berth-dev/berth/apiserver/users"
	"github.com/berth-dev/berth/apiserver/vault"
	"github.com/berth-dev/berth/guard"
)

// Config says what a Server serves and how.
type Config struct {
	// Backend is required.
	Backend Backend
	// Logs, Streams, Nodes, Usage and Planner may be nil: their requests are then
	// answered with 501.
	Logs    Logs
	Streams Streams
	Nodes   Nodes
	Usage   Usage
	Planner Planner

	// Listener accepts plain TCP connections; the server speaks TLS on it and
	// closes it in the end. Required.
	Listener net.Listener
	// TLS is the listener's configuration. Client certificates that it verifies
	// (tls.VerifyClientCertIfGiven) authenticate: CN is the user, O are the
	// groups. Required.
	TLS *tls.Config
	// Users says whose tokens are believed, beside those of service accounts.
	Users users.Sources
	// Audit says what is kept of requests, and where.
	Audit audittrail.Config
	// Admission says what is asked of objects.
	Admission Admission
	// Vault seals and opens what must not be in the log in clear; nil: nothing is sealed.
	Vault *vault.Vault
	// ProxyCertificate is the server's certificate and its key, in PEM, by which servers of others' know who hands
	// requests on to them; nil: it has none.
	ProxyCertificate func() (cert, key []byte)
	// RootCA is the PEM of the CA that clients verify this API with. It is
	// published in every new namespace.
	RootCA string

	// Services says which addresses services get.
	Services ServiceRanges

	// Ready are asked at /readyz, beside upstream's own checks.
	Ready []Check

	// Handlers serve paths that are not of the Kubernetes API, behind the same
	// authentication. A path that ends with a slash stands for everything
	// below. /metrics is Kubernetes' own unless it is given here.
	Handlers map[string]http.Handler
	// LongRunning are paths, or beginnings of paths that end with a slash, whose
	// requests may take longer than RequestTimeout.
	LongRunning []string

	// Leases remembers renewals of nodes' leases; nil: all are stored.
	Leases Leases

	// Guard calls f and says whether it came to its end, and not to a panic, which it counts; nil: a panic in a watch ends the
	// process. Those of requests are survived in any case.
	Guard guard.Func

	// MaxRequests is how many requests are worked on at a time; default DefaultMaxRequests.
	MaxRequests int
	// RequestTimeout ends a request that is not a watch or a stream. Default 60 s.
	RequestTimeout time.Duration
	// ShutdownTimeout is how long requests in flight have to end. Default 10 s.
	ShutdownTimeout time.Duration

	Logger hclog.Logger // required
}

// Check says whether the server is ready in one respect. Its name is what is told
// when it is not: the reason is for the server's log.
type Check struct {
	Name string
	Do   func() error
}

func (c Config) withDefaults() (Config, error) {
	if c.Backend == nil || c.Listener == nil || c.Logger == nil || c.TLS == nil {
		return c, errors.New("the API needs a backend, a listener, a certificate and a logger")
	}
	if c.Vault == nil {
		var err error
		if c.Vault, err = vault.Open(vault.Config{Logger: c.Logger}); err != nil {
			return c, err
		}
	}
	c.Guard = c.Guard.Or()
	c.Services = c.Services.withDefaults()
	if c.MaxRequests == 0 {
		c.MaxRequests = DefaultMaxRequests()
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = 60 * time.Second
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = 10 * time.Second
	}
	return c, nil
}
