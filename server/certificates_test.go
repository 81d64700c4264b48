package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net/http"
	"path/filepath"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/workloads"
)

// joinToken is the token of one who is only let in to ask for a certificate.
const joinToken = "join"

// signing makes the authority that a test's servers sign with.
func (c *testCluster) signing() pki.Files {
	c.t.Helper()
	dir := filepath.Join(c.dir, "authority")
	if _, err := pki.CreateCA(dir, 0, false); err != nil {
		c.t.Fatal(err)
	}
	return pki.Files{CA: filepath.Join(dir, pki.CAFile), Key: filepath.Join(dir, pki.CAKeyFile)}
}

// kube is a client of a server, with a token.
func (c *testCluster) kube(s *Server, token string) kubernetes.Interface {
	c.t.Helper()
	client := &http.Client{Transport: transport.NewBearerAuthRoundTripper(token, c.http.Transport)}
	k, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "https://" + s.HTTPAddr(), QPS: -1}, client)
	if err != nil {
		c.t.Fatal(err)
	}
	return k
}

// nodeRequest asks for the certificate of a node.
func nodeRequest(t *testing.T, name, node string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	subject := pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
}

// answered waits until a server's state has an answer to a request.
func answered(t *testing.T, s *Server, name string, ok func(r *certificatesv1.CertificateSigningRequest) bool) {
	t.Helper()
	await(t, s, "the answer to "+name, func(v *fsm.View) bool {
		o, found := v.Objects.Get(fsm.ObjectKey(fsm.CertificateRequests, "", name))
		return found && ok(o.Value.(*certificatesv1.CertificateSigningRequest))
	})
}

// certificatesAreSigned: who may join gets a node's certificate from whatever server it asks,
// and where the one that leads cannot sign it says so, until one leads that can.
func certificatesAreSigned(authority pki.Files) func(t *testing.T, c *testCluster) {
	return func(t *testing.T, c *testCluster) {
		lead := func(name string) *Server {
			t.Helper()
			eventually(t, name+" to lead", func() bool {
				l := c.leader()
				return l.Name() == name || l.node.TransferLeadership(t.Context(), name) == nil && c.leader().Name() == name
			})
			return c.leader()
		}
		create := func(s *Server, r *certificatesv1.CertificateSigningRequest) {
			t.Helper()
			if _, err := c.kube(s, joinToken).CertificatesV1().CertificateSigningRequests().Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		lead("a")
		ca, err := pki.OpenAuthority(authority)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca.CertPEM())
		create(c.followers()[0], nodeRequest(t, "n1", "n1"))
		answered(t, c.leader(), "n1", func(r *certificatesv1.CertificateSigningRequest) bool {
			block, _ := pem.Decode(r.Status.Certificate)
			if block == nil {
				return false
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Error(err)
			}
			if cert.Subject.CommonName != "system:node:n1" {
				t.Errorf("it is for %s", cert.Subject)
			}
			return true
		})
		lead("c")
		create(c.leader(), nodeRequest(t, "n2", "n2"))
		answered(t, c.leader(), "n2", func(r *certificatesv1.CertificateSigningRequest) bool {
			for _, condition := range r.Status.Conditions {
				if condition.Type == workloads.SignerUnavailable {
					return true
				}
			}
			return false
		})
		lead("a")
		answered(t, c.leader(), "n2", func(r *certificatesv1.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 })
	}
}

// TestAuthorityIsRead: a server that is given a key which is not its authority's does not start.
func TestAuthorityIsRead(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		if _, err := pki.CreateCA(filepath.Join(dir, name), 0, false); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Start(t.Context(), Config{Name: "s", Authority: pki.Files{CA: filepath.Join(dir, "one", pki.CAFile), Key: filepath.Join(dir, "two", pki.CAKeyFile)}})
	if err == nil {
		t.Fatal("it starts")
	}
	t.Log(err)
}
