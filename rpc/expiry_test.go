package rpc

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-dev/berth/pki"
)

// renewable is a source whose certificate is another one after renew.
func (c certs) renewable(kind pki.Kind, name string, validity time.Duration) (src *pki.Source, renew func()) {
	c.t.Helper()
	dir := c.t.TempDir()
	files := pki.Files{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	write := func(validity time.Duration) {
		pair, err := c.ca.Issue(time.Now(), pki.Request{Kind: kind, Name: name, Validity: validity})
		if err != nil {
			c.t.Fatal(err)
		}
		for file, text := range map[string][]byte{files.CA: c.ca.CertPEM(), files.Cert: pair.CertPEM, files.Key: pair.KeyPEM} {
			if err := os.WriteFile(file, text, 0o600); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	write(validity)
	src, err := pki.Open(files)
	if err != nil {
		c.t.Fatal(err)
	}
	return src, func() {
		write(0)
		if err := src.Reload(); err != nil {
			c.t.Fatal(err)
		}
	}
}

// TestAStreamEndsWithItsCertificate: a worker is heard as long as the certificate is good by which it has come, and
// comes back by itself with another one.
func TestAStreamEndsWithItsCertificate(t *testing.T) {
	ca, state := newCerts(t), newCluster()
	s := startServer(t, state, "s1", ca.source(pki.Server, "s1"))
	short, renew := ca.renewable(pki.Worker, "n1", 5*time.Second)
	a, b := &agent{}, &agent{}
	startWorker(t, "n1", short, a, s)
	startWorker(t, "n2", ca.source(pki.Worker, "n2"), b, s)
	eventually(t, "both are connected", func() bool { return a.on() != "" && b.on() != "" })
	eventually(t, "the stream of a certificate that is over has ended", func() bool { return a.on() == "" })
	if now := time.Now(); now.Before(short.Leaf().NotAfter) {
		t.Errorf("it ended %s before its certificate", short.Leaf().NotAfter.Sub(now))
	}
	renew()
	eventually(t, "the worker is back", func() bool { return a.on() != "" })
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.ended) > 0 {
		t.Errorf("a worker with a good certificate was cut off: %v", b.ended)
	}
}

// TestCallsGoByTheNewestCertificate: once a server has another certificate no call goes by a connection that ends with
// the one of before, and what is under way there goes on until then.
func TestCallsGoByTheNewestCertificate(t *testing.T) {
	ca := newCerts(t)
	s := startServer(t, newCluster(), "s1", ca.source(pki.Server, "s1"))
	src, renew := ca.renewable(pki.Server, "s2", time.Hour)
	p := startPool(t, src)
	call := func() {
		t.Helper()
		if _, err := p.ReadIndex(t.Context(), s.addr); err != nil {
			t.Fatal(err)
		}
	}
	call()
	before := p.conns[s.addr]
	call()
	if p.conns[s.addr] != before {
		t.Error("a call went by another connection for nothing")
	}
	renew()
	call()
	if p.conns[s.addr] == before || len(p.retired) != 1 || p.retired[0] != before {
		t.Error("a call went by the certificate of before, or what was under way has ended")
	}
	p.Retain(nil)
	if len(p.conns)+len(p.retired) > 0 {
		t.Error("what leads to a server that is gone is kept")
	}

	src, renew = ca.renewable(pki.Server, "s2", 3*time.Second)
	p = startPool(t, src)
	call()
	renew()
	call()
	eventually(t, "the connection of before is let go of", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.retired) == 0
	})
}
