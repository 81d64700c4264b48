package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"testing"
	"time"
)

// A kubelet is known by the certificate that the cluster's CA has made it, and by nobody else's of that CA.
func TestKubeletConfig(t *testing.T) {
	ca, other := mustCA(t), mustCA(t)
	server := mustSource(t, ca, Request{Kind: Server, Name: "s1", IPs: []net.IP{net.IPv4(10, 0, 0, 1)}})
	node := func(ca *CA, name string, change func(c *x509.Certificate)) tls.Certificate {
		return serving(t, ca, func(c *x509.Certificate) {
			c.Subject = NodeSubject(name)
			change(c)
		})
	}
	same := func(*x509.Certificate) {}
	for _, tc := range []struct {
		name   string
		shows  tls.Certificate
		signed bool
		ok     bool
	}{
		{"its own", node(ca, "n1", same), true, true},
		{"another node's", node(ca, "n2", same), false, false},
		{"a server's", *server.current().cert, false, false},
		{"one for another address", node(ca, "n1", func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 2)} }), false, false},
		{"one that is over", node(ca, "n1", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), false, false},
		{"one for clients", node(ca, "n1", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), false, false},
		{"a user's of that name", serving(t, ca, func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "n1"} }), false, false},
		{"a stranger's", node(other, "n1", same), false, true},
		{"a stranger's that is over", node(other, "n1", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), false, true},
		{"a stranger's, where it has to be signed", node(other, "n1", same), true, false},
	} {
		got := shake(t, server.KubeletConfig("n1", "10.0.0.1", tc.signed, nil), tc.shows)
		if (got == nil) != tc.ok || got != nil && !errors.Is(got, ErrNotTheNode) {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
	revoked := errors.New("revoked")
	refuse := func(id *Identity) error {
		if id.Name != "n1" || id.Issued.IsZero() {
			t.Errorf("asked about %+v", id)
		}
		return revoked
	}
	if err := shake(t, server.KubeletConfig("n1", "10.0.0.1", false, refuse), node(ca, "n1", same)); !errors.Is(err, revoked) {
		t.Errorf("a revoked node's: %v", err)
	}
}

// serving is a certificate of a CA's, for 10.0.0.1.
func serving(t *testing.T, ca *CA, change func(c *x509.Certificate)) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := newSerial()
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)},
	}
	change(c)
	der, err := x509.CreateCertificate(rand.Reader, c, ca.cert, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// shake is what comes of the handshake with who shows a certificate, for the client.
func shake(t *testing.T, c *tls.Config, shows tls.Certificate) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if err != nil {
			return // the client says what it thinks, as below
		}
		_ = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{shows}, ClientAuth: tls.RequestClientCert}).HandshakeContext(t.Context())
		_ = conn.Close()
	}()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	err = tls.Client(conn, c).HandshakeContext(t.Context())
	_ = conn.Close()
	<-served
	_ = l.Close() // nobody else comes
	return err
}
