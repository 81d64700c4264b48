package connect

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/config"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/ports"
)

// authority makes certificates for a test: berth's own, and bad ones.
type authority struct {
	dir string
	ca  *pki.CA
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.CreateCA(dir, time.Hour, false)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{dir: dir, ca: ca}
}

func (a *authority) caFile() string { return filepath.Join(a.dir, pki.CAFile) }

func (a *authority) server(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	pair, err := a.ca.Issue(time.Now(), pki.Request{Kind: pki.Server, Name: "s1", Validity: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return serveTLS(t, h, cert)
}

func serveTLS(t *testing.T, h http.Handler, cert tls.Certificate) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = quiet()
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// selfSigned is a certificate, and its own CA, valid for the given time.
func selfSigned(t *testing.T, dnsName string, from, until time.Time) (tls.Certificate, []byte, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, DNSNames: []string{dnsName},
		NotBefore: from, NotAfter: until, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pair, certPEM, keyPEM
}

// closedAddress is one at which nobody listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	claim, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(claim.Release)
	return "https://" + claim.Addr(0)
}

func client(t *testing.T, f config.Flags) *Client {
	t.Helper()
	f.CLIConfig = filepath.Join(t.TempDir(), "cli.hcl")
	if err := os.WriteFile(f.CLIConfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return New(&f, func(string) string { return "" })
}

func api(t *testing.T, c *Client) *API {
	t.Helper()
	a, err := c.API()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return c
}

// counting answers everything with {} and counts.
func counting(n *atomic.Int32) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		io.Copy(w, r.Body) // nolint: an echo whose failure the client sees
		if r.Body == http.NoBody || r.ContentLength == 0 {
			io.WriteString(w, "{}")
		}
	})
}

func TestTheNextServerIsTriedAndKept(t *testing.T) {
	ca := newAuthority(t)
	var hits atomic.Int32
	up := ca.server(t, counting(&hits))
	c := client(t, config.Flags{Addresses: []string{closedAddress(t), up.URL}, CAFile: ca.caFile()})
	a := api(t, c)
	// A refused connection carried nothing, so even a POST goes on to the next.
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		if err := a.Operator(ctx(t), method, operator.PathTransferLeader, operator.TransferLeaderRequest{ID: "x"}, nil); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	if hits.Load() != 3 || c.Lost() != nil {
		t.Errorf("want 3 requests and no loss, got %d and %v", hits.Load(), c.Lost())
	}
}

func TestAStreamGoesWholeToTheNextServer(t *testing.T) {
	ca := newAuthority(t)
	var hits atomic.Int32
	up := ca.server(t, counting(&hits))
	a := api(t, client(t, config.Flags{Addresses: []string{closedAddress(t), up.URL}, CAFile: ca.caFile()}))
	file := filepath.Join(t.TempDir(), "snapshot")
	if err := os.WriteFile(file, []byte(`{"index":7}`), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got operator.RestoreResult
	if err := a.Upload(ctx(t), operator.PathSnapshot, operator.SnapshotContentType, f, &got); err != nil {
		t.Fatal(err)
	}
	if got.Index != 7 {
		t.Errorf("the stream arrived as %+v", got)
	}
}

// breaking takes a request and breaks the connection without an answer.
func breaking(n *atomic.Int32) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		panic(http.ErrAbortHandler)
	})
}

func TestAWriteThatMayHaveArrivedIsNotRepeated(t *testing.T) {
	ca := newAuthority(t)
	var broken, hits atomic.Int32
	first, second := ca.server(t, breaking(&broken)), ca.server(t, counting(&hits))
	a := api(t, client(t, config.Flags{Addresses: []string{first.URL, second.URL}, CAFile: ca.caFile()}))
	err := a.Operator(ctx(t), http.MethodPost, operator.PathVerify, nil, nil)
	var unknown *UnknownOutcomeError
	if !errors.As(err, &unknown) || hits.Load() != 0 {
		t.Errorf("want an unknown outcome and no second request, got %v and %d", err, hits.Load())
	}
	if err := a.Operator(ctx(t), http.MethodGet, operator.PathStatus, nil, nil); err != nil || hits.Load() != 1 {
		t.Errorf("a read may be repeated: %v, %d requests at the second server", err, hits.Load())
	}
}

func TestRefusalsAreNotTriedElsewhere(t *testing.T) {
	ca := newAuthority(t)
	var hits atomic.Int32
	no := ca.server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"server s9 is not a member","reason":"Conflict","code":409}`)
	}))
	other := ca.server(t, counting(&hits))
	a := api(t, client(t, config.Flags{Addresses: []string{no.URL, other.URL}, CAFile: ca.caFile()}))
	err := a.Operator(ctx(t), http.MethodDelete, operator.PathRaftServers+"/s9", nil, nil)
	if err == nil || err.Error() != "server s9 is not a member" || hits.Load() != 0 {
		t.Errorf("want the first server's refusal, got %v and %d requests at the second", err, hits.Load())
	}
}

func TestTheLeaderIsAskedWhenAFollowerCannot(t *testing.T) {
	ca := newAuthority(t)
	var hits atomic.Int32
	leader := ca.server(t, counting(&hits))
	follower := ca.server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // nolint: what was sent does not matter
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == operator.PathMembers {
			io.WriteString(w, `{"server":"s2","members":[{"name":"s2","role":"server"},{"name":"s1","role":"server","leader":true,"httpAddress":"`+strings.TrimPrefix(leader.URL, "https://")+`"}]}`)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"s2 does not lead","reason":"ServiceUnavailable","code":503}`)
	}))
	a := api(t, client(t, config.Flags{Addresses: []string{follower.URL}, CAFile: ca.caFile()}))
	var res operator.RestoreResult
	if err := a.Upload(ctx(t), operator.PathSnapshot, operator.SnapshotContentType, strings.NewReader(`{"index":7}`), &res); err != nil || res.Index != 7 {
		t.Errorf("a file for the leader: %+v, %v", res, err)
	}
	if err := a.Operator(ctx(t), http.MethodPost, operator.PathTransferLeader, nil, nil); err != nil || hits.Load() != 2 {
		t.Errorf("a request for the leader: %v, %d requests", err, hits.Load())
	}
	leader.Close()
	err := a.Operator(ctx(t), http.MethodPost, operator.PathTransferLeader, nil, nil)
	var lost *NoServerError
	if !errors.As(err, &lost) {
		t.Errorf("want a leader that does not answer, got %v", err)
	}
}

func TestSentences(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	now := time.Now()
	var hits atomic.Int32
	good := ca.server(t, counting(&hits))
	oldCert, oldPEM, _ := selfSigned(t, pki.ServerDNSName, now.Add(-48*time.Hour), now.Add(-24*time.Hour))
	old := serveTLS(t, counting(&hits), oldCert)
	foreignCert, foreignPEM, _ := selfSigned(t, "db.example.com", now.Add(-time.Hour), now.Add(time.Hour))
	foreign := serveTLS(t, counting(&hits), foreignCert)
	plain := httptest.NewServer(counting(&hits))
	t.Cleanup(plain.Close)
	file := func(data []byte) string {
		name := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	down1, down2 := closedAddress(t), closedAddress(t)
	tests := []struct {
		name  string
		flags config.Flags
		want  string
	}{
		{"one server, down", config.Flags{Addresses: []string{down1}},
			"no Berth server answers at " + down1 + ": connection refused"},
		{"two servers, down", config.Flags{Addresses: []string{down1, down2}},
			"no Berth server answers at " + down1 + ", " + down2 + ": connection refused"},
		{"wrong CA", config.Flags{Addresses: []string{good.URL}, CAFile: other.caFile()},
			"the certificate of the server at " + good.URL + " is not from the CA in " + other.caFile() + "; is this another cluster?"},
		{"no CA", config.Flags{Addresses: []string{down1, good.URL}},
			"the certificate of the server at " + good.URL + " is from a CA that this machine does not know; set ca_file"},
		{"expired server", config.Flags{Addresses: []string{old.URL}, CAFile: file(oldPEM)},
			"the certificate of the server at " + old.URL + " is valid from " + date(now.Add(-48*time.Hour)) + " to " + date(now.Add(-24*time.Hour)) + ", and it is "},
		{"not a Berth server", config.Flags{Addresses: []string{foreign.URL}, CAFile: file(foreignPEM)},
			`the certificate of the server at ` + foreign.URL + ` is not one for the name "server.berth.internal"; is this a Berth server?`},
		{"no TLS", config.Flags{Addresses: []string{strings.Replace(plain.URL, "http:", "https:", 1)}},
			"the server at " + strings.Replace(plain.URL, "http:", "https:", 1) + " does not speak TLS; write http:// before its address if that is meant"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := client(t, tt.flags)
			err := api(t, c).Operator(ctx(t), http.MethodGet, operator.PathStatus, nil, nil)
			var lost *NoServerError
			if !errors.As(err, &lost) || !strings.HasPrefix(lost.Error(), tt.want) {
				t.Errorf("want %s\n got %v", tt.want, err)
			}
			if c.Lost() == nil {
				t.Error("the loss is not kept for commands that only have a text")
			}
		})
	}
	if hits.Load() != 0 {
		t.Errorf("%d requests went to servers that must not be trusted", hits.Load())
	}
}

func TestBadCertificatesAreFoundBeforeConnecting(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	pair := func(name string, from, until time.Time) (string, string) {
		_, cert, key := selfSigned(t, name, from, until)
		c, k := filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
		for f, data := range map[string][]byte{c: cert, k: key} {
			if err := os.WriteFile(f, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return c, k
	}
	expired, expiredKey := pair("expired", now.Add(-2*time.Hour), now.Add(-time.Hour))
	early, earlyKey := pair("early", now.Add(time.Hour), now.Add(2*time.Hour))
	for want, flags := range map[string]config.Flags{
		"the client certificate " + expired + " expired on " + date(now.Add(-time.Hour)) + "; make a new one with `berth tls client`": {CertFile: expired, KeyFile: expiredKey},
		"the client certificate " + early + " is valid only from " + date(now.Add(time.Hour)) + " on; is this machine's clock right?": {CertFile: early, KeyFile: earlyKey},
		"a client certificate needs both cert_file and key_file; one is missing":                                                      {CertFile: expired},
		"the CA file " + earlyKey + " has no certificate in it":                                                                       {CAFile: earlyKey},
	} {
		if _, err := client(t, flags).API(); err == nil || err.Error() != want {
			t.Errorf("want %s\n got %v", want, err)
		}
	}
}

func TestKubectlSeesTheSettings(t *testing.T) {
	c := client(t, config.Flags{Addresses: []string{"127.0.0.1:1", "127.0.0.1:2"}, Namespace: "web", Token: "t"})
	ns, given, err := c.ToRawKubeConfigLoader().Namespace()
	if ns != "web" || !given || err != nil {
		t.Errorf("namespace %q, %v, %v", ns, given, err)
	}
	raw, err := c.ToRawKubeConfigLoader().RawConfig()
	if err != nil || raw.Clusters["berth"].Server != "https://127.0.0.1:1" || raw.AuthInfos["berth"].Token != "t" {
		t.Errorf("kubeconfig %+v, %v", raw, err)
	}
	broken := client(t, config.Flags{Context: "none"})
	if _, _, err := broken.ToRawKubeConfigLoader().Namespace(); !errors.Is(err, config.ErrUnknownContext) {
		t.Errorf("want the reason, got %v", err)
	}
}

func TestPathsOfTheGroup(t *testing.T) {
	ca := newAuthority(t)
	var path atomic.Value
	s := ca.server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path.Store(r.Method + " " + r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	}))
	a := api(t, client(t, config.Flags{Addresses: []string{s.URL}, CAFile: ca.caFile()}))
	var into metav1.Status
	for want, call := range map[string]func() error{
		"GET /apis/berth.dev/v1/namespaces/web/queueentries/a":   func() error { return a.Get(ctx(t), "queueentries", "web", "a", &into) },
		"GET /apis/berth.dev/v1/preemptions":                     func() error { return a.List(ctx(t), "preemptions", "", &into) },
		"GET /apis/berth.dev/v1/schedulerconfigurations/cluster": func() error { return a.Get(ctx(t), "schedulerconfigurations", "", "cluster", &into) },
	} {
		_ = call() // the body is not the kind asked for; the path is what counts
		if path.Load() != want {
			t.Errorf("want %s, got %s", want, path.Load())
		}
	}
}

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
