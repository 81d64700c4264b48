package agent

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	client "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/rest"
)

// TestWhatACertificateWaitsForIsTold: at once, and again when it is something else.
func TestWhatACertificateWaitsForIsTold(t *testing.T) {
	condition := func(kind certificatesv1.RequestConditionType, message string) certificatesv1.CertificateSigningRequestCondition {
		return certificatesv1.CertificateSigningRequestCondition{Type: kind, Status: corev1.ConditionTrue, Message: message}
	}
	approved, unsigned := condition(certificatesv1.CertificateApproved, "it is a node"), condition("SignerUnavailable", "no key")
	answers := []certificatesv1.CertificateSigningRequestStatus{
		{}, {}, {Conditions: []certificatesv1.CertificateSigningRequestCondition{approved, unsigned}}, {Certificate: []byte("here")},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		r := certificatesv1.CertificateSigningRequest{
			TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
			ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: answers[0],
		}
		if len(answers) > 1 {
			answers = answers[1:]
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(r) // the client would miss it
	}))
	t.Cleanup(s.Close)
	c, err := client.NewForConfig(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	cert, err := awaitCertificate(t.Context(), c.CertificateSigningRequests(), "node-1", func(_, why string) { told = append(told, why) })
	if err != nil || string(cert) != "here" {
		t.Errorf("got %q, %v", cert, err)
	}
	if want := []string{unapproved, "SignerUnavailable: no key"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

// TestNoCertificateIsAskedForAgainAndAgain: a worker whose clock is wrong finds a new certificate as old as the one before. It asks for another
// one now and then, as one does that gets none.
func TestNoCertificateIsAskedForAgainAndAgain(t *testing.T) {
	for name, answer := range map[string]error{"renewed": nil, "refused": errors.New("no")} {
		synctest.Test(t, func(t *testing.T) {
			c := &Config{Logger: hclog.NewNullLogger()}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			asked := 0
			c.keepRenewed(ctx, func() *x509.Certificate {
				return &x509.Certificate{NotBefore: time.Now().Add(-89 * 24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
			}, func(context.Context) error {
				if asked++; asked > 1000 {
					cancel()
				}
				return answer
			})
			if asked == 0 || asked > int(time.Hour/renewPause)+1 {
				t.Errorf("%s: it asked %d times within an hour", name, asked)
			}
		})
	}
}
