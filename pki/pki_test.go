package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func mustCA(t *testing.T) *CA {
	t.Helper()
	ca, err := NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func mustSource(t *testing.T, ca *CA, r Request) *Source {
	t.Helper()
	pair, err := ca.Issue(time.Now(), r)
	if err != nil {
		t.Fatal(err)
	}
	s, err := FromPEM(ca.CertPEM(), pair)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestIssuedIdentities(t *testing.T) {
	ca := mustCA(t)
	for _, tc := range []struct {
		req  Request
		want Identity
	}{
		{Request{Kind: Server, Name: "s1"}, Identity{Kind: Server, Name: "s1", User: "berth:server:s1", Groups: []string{ServersGroup}}},
		{Request{Kind: Worker, Name: "w1.rack2"}, Identity{Kind: Worker, Name: "w1.rack2", User: "berth:worker:w1.rack2", Groups: []string{WorkersGroup}}},
		{Request{Kind: Client, Name: "ann", Groups: []string{"ops", "dev"}}, Identity{Kind: Client, Name: "ann", User: "ann", Groups: []string{"ops", "dev"}}},
		{Request{Kind: Client, Name: "ann"}, Identity{Kind: Client, Name: "ann", User: "ann", Groups: nil}},
	} {
		got, err := mustSource(t, ca, tc.req).Identity()
		if err != nil {
			t.Errorf("%v: %v", tc.req, err)
			continue
		}
		// DER encodes a subject's O as a set: the order is not kept.
		slices.Sort(got.Groups)
		slices.Sort(tc.want.Groups)
		if got.Kind != tc.want.Kind || got.Name != tc.want.Name || got.User != tc.want.User || !slices.Equal(got.Groups, tc.want.Groups) {
			t.Errorf("%v: got %+v, want %+v", tc.req, got, tc.want)
		}
		if age := time.Since(got.Issued); age < 0 || age > time.Hour {
			t.Errorf("%v: issued at %s", tc.req, got.Issued)
		}
	}
}

func TestRefusedRequests(t *testing.T) {
	ca := mustCA(t)
	for name, r := range map[string]Request{
		"no kind":           {Name: "x"},
		"upper case node":   {Kind: Server, Name: "S1"},
		"empty label":       {Kind: Server, Name: "a..b"},
		"dash at the edge":  {Kind: Worker, Name: "-a"},
		"empty node":        {Kind: Worker},
		"path as node":      {Kind: Worker, Name: "../a"},
		"empty user":        {Kind: Client},
		"reserved user":     {Kind: Client, Name: "berth:server:s1"},
		"reserved group":    {Kind: Client, Name: "ann", Groups: []string{ServersGroup}},
		"control in user":   {Kind: Client, Name: "a\nb"},
		"groups of a node":  {Kind: Server, Name: "a", Groups: []string{"x"}},
		"server's name":     {Kind: Worker, Name: "a", DNSNames: []string{ServerDNSName}},
		"address of client": {Kind: Client, Name: "a", IPs: []net.IP{net.IPv4(1, 2, 3, 4)}},
		"negative validity": {Kind: Client, Name: "a", Validity: -time.Hour},
	} {
		if _, err := ca.Issue(time.Now(), r); err == nil {
			t.Errorf("%s: was issued", name)
		}
	}
}

func TestIdentityOfForeignSubjects(t *testing.T) {
	for name, subject := range map[string]pkix.Name{
		"no CN":               {Organization: []string{"x"}},
		"server without O":    {CommonName: "berth:server:s1"},
		"server of two O":     {CommonName: "berth:server:s1", Organization: []string{ServersGroup, "x"}},
		"worker as server":    {CommonName: "berth:worker:w", Organization: []string{ServersGroup}},
		"server without name": {CommonName: "berth:server:", Organization: []string{ServersGroup}},
		"client as server":    {CommonName: "ann", Organization: []string{ServersGroup}},
		"unknown marker":      {CommonName: "berth:king", Organization: []string{"x"}},
	} {
		if id, err := IdentityOf(&x509.Certificate{Subject: subject}); !errors.Is(err, ErrIdentity) {
			t.Errorf("%s: got %+v, %v", name, id, err)
		}
	}
	if _, err := PeerIdentity(nil, time.Now()); !errors.Is(err, ErrIdentity) {
		t.Errorf("no chain: %v", err)
	}
}

func TestFilesKeptAndPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	if _, err := Issue(dir, Request{Kind: Client, Name: "ann"}, false); err == nil {
		t.Fatal("issued without a CA")
	}
	if _, err := CreateCA(dir, 0, false); err != nil {
		t.Fatal(err)
	}
	files, err := Issue(dir, Request{Kind: Client, Name: "ann/../b"}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{filepath.Join(dir, CAKeyFile), files.Key} {
		fi, err := os.Stat(key)
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode().Perm() != 0o600 || filepath.Dir(key) != dir {
			t.Errorf("%s has mode %s", key, fi.Mode())
		}
	}
	before, _ := os.ReadFile(files.Key)
	if _, err := Issue(dir, Request{Kind: Client, Name: "ann/../b"}, false); !errors.Is(err, ErrExists) {
		t.Errorf("second certificate: %v", err)
	}
	if _, err := CreateCA(dir, 0, false); !errors.Is(err, ErrExists) {
		t.Errorf("second CA: %v", err)
	}
	if after, _ := os.ReadFile(files.Key); !bytes.Equal(before, after) {
		t.Error("a refused command has changed the key")
	}
	if _, err := Issue(dir, Request{Kind: Client, Name: "ann/../b"}, true); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(files.Key); bytes.Equal(before, after) {
		t.Error("force has kept the key")
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".tmp-*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestDates(t *testing.T) {
	dir := t.TempDir()
	ca, err := CreateCA(dir, 24*time.Hour, false)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(time.Now().Add(-time.Hour), Request{Kind: Server, Name: "s1", Validity: time.Minute})
	if err == nil {
		t.Fatal("a certificate older than its CA was issued")
	}
	old, err := NewCA(time.Now().Add(-48*time.Hour), 0)
	if err != nil {
		t.Fatal(err)
	}
	if pair, err = old.Issue(time.Now().Add(-47*time.Hour), Request{Kind: Server, Name: "s1", Validity: time.Hour}); err != nil {
		t.Fatal(err)
	}
	_, err = FromPEM(old.CertPEM(), pair)
	var de *DateError
	if !errors.As(err, &de) || !de.Expired || !bytes.Contains([]byte(err.Error()), []byte("berth:server:s1) expired on ")) {
		t.Errorf("expired certificate: %v", err)
	}
	long, err := ca.Issue(time.Now(), Request{Kind: Client, Name: "ann", Validity: 1000 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := parseCert(long.CertPEM)
	if leaf.NotAfter.After(ca.cert.NotAfter) {
		t.Error("a certificate outlasts its CA")
	}
}

// TestReload renews a certificate on disk and sees it in use; a half-written
// renewal keeps the old one.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	if _, err := CreateCA(dir, 0, false); err != nil {
		t.Fatal(err)
	}
	req := Request{Kind: Server, Name: "s1"}
	files, err := Issue(dir, req, false)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(files)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s.now = func() time.Time { return now }
	first := s.Leaf().SerialNumber

	goodKey, _ := os.ReadFile(files.Key)
	if err := os.WriteFile(files.Key, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * recheckEvery)
	if s.Leaf().SerialNumber.Cmp(first) != 0 || s.Err() == nil {
		t.Errorf("half-written key: %v", s.Err())
	}
	if err := os.WriteFile(files.Key, goodKey, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Issue(dir, req, true); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * recheckEvery)
	if s.Leaf().SerialNumber.Cmp(first) == 0 || s.Err() != nil {
		t.Errorf("renewal not taken over: %v", s.Err())
	}
	now = now.Add(2 * DefaultValidity)
	var de *DateError
	if err := s.Err(); !errors.As(err, &de) {
		t.Errorf("expired while in use: %v", err)
	}
}

func TestVerifyOwnChain(t *testing.T) {
	ca, other := mustCA(t), mustCA(t)
	if err := mustSource(t, ca, Request{Kind: Server, Name: "s"}).Verify(x509.ExtKeyUsageServerAuth); err != nil {
		t.Error(err)
	}
	if err := mustSource(t, ca, Request{Kind: Worker, Name: "w"}).Verify(x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("a worker's certificate serves")
	}
	pair, err := other.Issue(time.Now(), Request{Kind: Server, Name: "s"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := FromPEM(ca.CertPEM(), pair)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("a certificate of another CA is accepted")
	}
}

// TestMutualTLS shakes hands over a real socket.
func TestMutualTLS(t *testing.T) {
	ca, other := mustCA(t), mustCA(t)
	server := mustSource(t, ca, Request{Kind: Server, Name: "s1"})
	none, err := FromPEM(ca.CertPEM(), Pair{})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		client *Source
		dns    string
		want   Kind // "" = the handshake fails
	}{
		"worker":             {mustSource(t, ca, Request{Kind: Worker, Name: "w1"}), ServerDNSName, Worker},
		"client by loopback": {mustSource(t, ca, Request{Kind: Client, Name: "ann"}), "127.0.0.1", Client},
		"wrong name":         {mustSource(t, ca, Request{Kind: Client, Name: "ann"}), "elsewhere", ""},
		"other CA":           {mustSource(t, other, Request{Kind: Server, Name: "s2"}), ServerDNSName, ""},
		"no certificate":     {none, ServerDNSName, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := handshake(t, server, tc.client.ClientConfig(tc.dns))
			if tc.want == "" && err == nil {
				t.Fatal("the handshake succeeded")
			}
			if tc.want != "" && (err != nil || got.Kind != tc.want) {
				t.Fatalf("got %+v, %v", got, err)
			}
		})
	}
}

// handshake returns whom the server saw.
func handshake(t *testing.T, server *Source, client *tls.Config) (Identity, error) {
	t.Helper()
	cfg, err := server.ServerConfig(tls.RequireAndVerifyClientCert)
	if err != nil {
		t.Fatal(err)
	}
	lis, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	type seen struct {
		id  Identity
		err error
	}
	done := make(chan seen, 1)
	go func() {
		conn, err := lis.Accept()
		if err != nil {
			done <- seen{err: err}
			return
		}
		defer conn.Close()
		tc := conn.(*tls.Conn)
		if err := tc.Handshake(); err != nil {
			done <- seen{err: err}
			return
		}
		id, err := PeerIdentity(tc.ConnectionState().VerifiedChains, time.Now())
		done <- seen{id, err}
	}()
	conn, err := tls.Dial("tcp", lis.Addr().String(), client)
	if err == nil {
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	got := <-done
	return got.id, errors.Join(err, got.err)
}

func FuzzParseCA(f *testing.F) {
	ca, err := NewCA(time.Now(), 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ca.pair.CertPEM, ca.pair.KeyPEM)
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		if got, err := ParseCA(Pair{CertPEM: cert, KeyPEM: key}); err == nil && !got.cert.IsCA {
			t.Error("no CA was accepted as one")
		}
	})
}
