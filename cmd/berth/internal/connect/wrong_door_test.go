package connect

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/config"
	"github.com/berth-dev/berth/pki"
)

// TestACertificateOfAnotherCluster: who shows one is told so, by requests that read and by those that write, over both versions of HTTP; nothing
// was done, and that is certain.
func TestACertificateOfAnotherCluster(t *testing.T) {
	here, other := newAuthority(t), newAuthority(t)
	pem, err := os.ReadFile(here.caFile())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	files, err := pki.Issue(other.dir, pki.Request{Kind: pki.Client, Name: "ada", Validity: time.Minute}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []string{"http/1.1", "h2"} {
		var hits atomic.Int32
		pair, err := here.ca.Issue(time.Now(), pki.Request{Kind: pki.Server, Name: "s1", Validity: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(counting(&hits))
		s.Config.ErrorLog = quiet()
		s.EnableHTTP2 = protocol == "h2"
		s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool, NextProtos: []string{protocol}}
		s.StartTLS()
		t.Cleanup(s.Close)
		flags := config.Flags{Addresses: []string{s.URL}, CAFile: here.caFile(), CertFile: files.Cert, KeyFile: files.Key}
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			err := api(t, client(t, flags)).Operator(ctx(t), method, "/berth/v1/status", map[string]string{"a": "b"}, nil)
			var lost *NoServerError
			if !errors.As(err, &lost) || !strings.Contains(lost.Error(), "does not accept your certificate "+files.Cert) {
				t.Errorf("%s, %s: %v", protocol, method, err)
			}
		}
		// One that is too large to be sent before the connection is closed.
		large := bytes.NewReader(make([]byte, 16<<20))
		if err := api(t, client(t, flags)).Upload(ctx(t), "/berth/v1/snapshot", "application/octet-stream", large, nil); err == nil || !strings.Contains(err.Error(), "does not accept your certificate "+files.Cert) {
			t.Errorf("%s, a large one: %v", protocol, err)
		}
		if hits.Load() != 0 {
			t.Errorf("%s: %d requests came through", protocol, hits.Load())
		}
		// A token that is given for this one command says who asks.
		flags.CertFile, flags.KeyFile, flags.Token = "", "", "secret"
		c := client(t, flags)
		file := "current_context = \"x\"\ncontext \"x\" {\n  tls {\n    cert_file = \"" + files.Cert + "\"\n    key_file = \"" + files.Key + "\"\n  }\n}\n"
		if err := os.WriteFile(c.flags.CLIConfig, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := api(t, c).Operator(ctx(t), http.MethodGet, "/berth/v1/status", nil, nil); err != nil || hits.Load() != 1 {
			t.Errorf("%s, a token beside the context's certificate: %v, %d requests", protocol, err, hits.Load())
		}
	}
}

// TestWrongDoors: a port that is not the API's, or is spoken to in clear, is told as what it is.
func TestWrongDoors(t *testing.T) {
	ca := newAuthority(t)
	var hits atomic.Int32
	secured := ca.server(t, counting(&hits))
	rpc := ca.server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.WriteHeader(http.StatusUnsupportedMediaType)
	}))
	for address, want := range map[string]string{
		strings.Replace(secured.URL, "https:", "http:", 1): "speaks TLS; write https:// before its address",
		rpc.URL: "is not the API",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			err := api(t, client(t, config.Flags{Addresses: []string{address}, CAFile: ca.caFile()})).Operator(ctx(t), method, "/berth/v1/status", nil, nil)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %s: want %q, got %v", method, address, want, err)
			}
		}
	}
	err := api(t, client(t, config.Flags{Addresses: []string{rpc.URL}, CAFile: ca.caFile()})).Operator(
		ctx(t), http.MethodPost, "/api/v1/namespaces/default/pods/p/proxy/grpc", nil, nil)
	if err == nil || strings.Contains(err.Error(), "is not the API") {
		t.Errorf("what a pod answers: %v", err)
	}
}

func TestABadCertificateIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cert.pem")
	if err := os.WriteFile(file, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := client(t, config.Flags{CertFile: file, KeyFile: file}).API()
	if err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("want the name %s, got %v", file, err)
	}
}

// TestRequestTimeout: a request ends that a server does not answer.
func TestRequestTimeout(t *testing.T) {
	ca := newAuthority(t)
	hung := make(chan struct{})
	s := ca.server(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hung:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(hung) })
	c := client(t, config.Flags{Addresses: []string{s.URL}, CAFile: ca.caFile()})
	c.Timeout = "50ms"
	if err := api(t, c).Operator(t.Context(), http.MethodGet, "/berth/v1/status", nil, nil); !os.IsTimeout(errors.Unwrap(err)) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("want a timeout, got %v", err)
	}
	c = client(t, config.Flags{Addresses: []string{s.URL}, CAFile: ca.caFile()})
	c.Timeout = "2s" // in which it has arrived
	if err := api(t, c).Operator(t.Context(), http.MethodPost, "/berth/v1/status", nil, nil); err == nil || !strings.Contains(err.Error(), "may or may not have been carried out") {
		t.Errorf("of a write that nobody has answered: %v", err)
	}
	c = client(t, config.Flags{})
	c.Timeout = "soon"
	if _, err := c.API(); err == nil || !strings.Contains(err.Error(), "--request-timeout") {
		t.Errorf("soon: %v", err)
	}
}
