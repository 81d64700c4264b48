package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// requestFor is a request for a certificate, without a name, and its key as PEM.
func requestFor(t *testing.T, subject pkix.Name, signer string, usages ...certificatesv1.KeyUsage) (_ *certificatesv1.CertificateSigningRequest, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer, Usages: usages,
	}}, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// Somebody asks for a certificate, an administrator approves it, and whoever leads signs it: by no
// other way does a key leave the machine that it was made on.
func TestCertificatesByRequest(t *testing.T) {
	c := newCluster(t, server("s1", "bootstrap_expect = 1"))
	s := c.waitLeader(t)
	wanted, key := requestFor(t, pkix.Name{CommonName: "dev", Organization: []string{"people"}}, certificatesv1.KubeAPIServerClientSignerName, certificatesv1.UsageClientAuth)
	wanted.Name = "dev"
	requests := s.Kube.CertificatesV1().CertificateSigningRequests()
	// The one server may not have said yet which rules it knows.
	c.eventually(t, "the request to be taken", func(ctx context.Context) error {
		_, err := requests.Create(ctx, wanted, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	c.berth(t, "certificate", "approve", "dev")
	var cert []byte
	c.eventually(t, "the certificate", func(ctx context.Context) error {
		r, err := requests.Get(ctx, "dev", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if cert = r.Status.Certificate; len(cert) == 0 {
			return errors.New("it is not signed")
		}
		return nil
	})
	config := rest.AnonymousClientConfig(s.RESTConfig())
	config.CertData, config.KeyData = cert, key
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if who, err := whoami(t.Context(), kube); err != nil || who != "dev people system:authenticated" {
		t.Errorf("it is %q (%v)", who, err)
	}
}
