package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	client "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/pki"
)

const (
	// nodeValidity is for how long a worker asks to be believed. It asks again when
	// three quarters of it are over, give or take a tenth.
	nodeValidity = 90 * 24 * time.Hour
	// answerTimeout bounds the wait for a certificate, answerPoll is how often it is
	// looked whether it is there.
	answerTimeout, answerPoll = 2 * time.Minute, 500 * time.Millisecond
	// renewPause is how long a worker waits that could not renew its certificate.
	// renewLook is how often it looks at the time of day, which may be set.
	renewPause, renewLook = time.Minute, time.Hour
)

// requestCertificate makes a key and gets the certificate of a node for it. waits is told what for, as soon as it is known and when it is something else.
func requestCertificate(ctx context.Context, config *rest.Config, node string, waits func(request, why string)) (pki.Pair, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pki.Pair{}, fmt.Errorf("making a key: %w", err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pki.Pair{}, fmt.Errorf("encoding a key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pki.NodeSubject(node)}, key)
	if err != nil {
		return pki.Pair{}, fmt.Errorf("asking for a certificate: %w", err)
	}
	http, err := rest.HTTPClientFor(config)
	if err != nil {
		return pki.Pair{}, err
	}
	defer http.CloseIdleConnections()
	c, err := client.NewForConfigAndClient(config, http)
	if err != nil {
		return pki.Pair{}, err
	}
	seconds := int32(nodeValidity / time.Second)
	made, err := c.CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, ExpirationSeconds: &seconds,
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			Usages:  []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return pki.Pair{}, fmt.Errorf("asking for a certificate: %w", err)
	}
	cert, err := awaitCertificate(ctx, c.CertificateSigningRequests(), made.Name, waits)
	return pki.Pair{CertPEM: cert, KeyPEM: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})}, err
}

// awaitCertificate waits for the answer to a request.
func awaitCertificate(ctx context.Context, requests client.CertificateSigningRequestInterface, name string, waits func(request, why string)) ([]byte, error) {
	why, said := unapproved, ""
	for {
		r, err := requests.Get(ctx, name, metav1.GetOptions{})
		if err == nil && len(r.Status.Certificate) > 0 {
			return r.Status.Certificate, nil
		}
		if err != nil {
			why = err.Error()
		} else {
			for _, c := range r.Status.Conditions {
				switch {
				case c.Status != corev1.ConditionTrue:
				case c.Type == certificatesv1.CertificateDenied, c.Type == certificatesv1.CertificateFailed:
					return nil, fmt.Errorf("%w: the request %s was answered with %s: %s", errNotLetIn, name, c.Type, c.Message)
				default:
					why = fmt.Sprintf("%s: %s", c.Type, c.Message)
				}
			}
		}
		if why != said {
			waits(name, why)
			said = why
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the request %s has no answer (%s): %w", name, why, context.Cause(ctx))
		case <-time.After(answerPoll):
		}
	}
}

// unapproved is why a request for a certificate is not signed at first.
const unapproved = "nobody has approved it"

// tellWaiting is told what a request for a certificate waits for. Usually it is signed within a second, and what comes before that is no news.
func (c *Config) tellWaiting(by string) func(request, why string) {
	return func(request, why string) {
		level := hclog.Warn
		if why == unapproved || strings.HasPrefix(why, string(certificatesv1.CertificateApproved)) {
			level = hclog.Info
		}
		c.Logger.Log(level, "a certificate was asked for, and is waited for", "request", request, "by", by, "because", why)
	}
}

// checkPair refuses a certificate that is not what was asked for.
func checkPair(ca []byte, pair pki.Pair, node string) error {
	source, err := pki.FromPEM(ca, pair)
	if err != nil {
		return err
	}
	if err := source.Verify(x509.ExtKeyUsageClientAuth); err != nil {
		return err
	}
	id, err := source.Identity()
	if err != nil {
		return err
	}
	if id.Kind != pki.Worker || id.Name != node {
		return fmt.Errorf("the certificate that was signed is that of %s", id.User)
	}
	return nil
}

// keepCertificate renews the certificate of a worker that has joined by a token, with a new
// key each time, for as long as the agent runs.
func (c *Config) keepCertificate(ctx context.Context) { c.keepRenewed(ctx, c.TLS.Leaf, c.renew) }

// keepRenewed renews what leaf gives, at its time.
func (c *Config) keepRenewed(ctx context.Context, leaf func() *x509.Certificate, renew func(context.Context) error) {
	at := renewalOf(leaf())
	said := ""
	for {
		pause := min(max(time.Until(at), renewPause), renewLook)
		if !time.Now().Before(at) {
			err := renew(ctx)
			if err == nil {
				at, said = renewalOf(leaf()), ""
			} else if text := err.Error(); text != said {
				said = text
				c.Logger.Warn("the certificate was not renewed; trying again", "expires", leaf().NotAfter, "error", err)
			}
			pause = renewPause // also of a new one: by a clock that is wrong, its time may have come already
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// renewalOf is when a certificate is renewed, however often the agent starts: workers that
// joined together do not renew together.
func renewalOf(leaf *x509.Certificate) time.Time {
	lasts := leaf.NotAfter.Sub(leaf.NotBefore)
	return leaf.NotBefore.Add(lasts*65/100 + time.Duration(pki.Spread(leaf)*float64(lasts)/5))
}

// renew gets a new certificate from some server, and goes on with it.
func (c *Config) renew(ctx context.Context) error {
	dir := TLSDir(c.DataDir)
	var errs []error
	for _, addr := range c.Joining.API {
		config, err := nodeConfig(addr, dir)
		if err != nil {
			return err
		}
		pair, err := requestCertificate(ctx, config, c.Name, c.tellWaiting(addr))
		if err == nil {
			err = checkPair(c.CA, pair, c.Name)
		}
		if err == nil {
			if err = writeNode(dir, pair); err == nil {
				err = c.TLS.Reload()
			}
			if err == nil {
				c.Logger.Info("the certificate is renewed", "expires", c.TLS.Leaf().NotAfter)
			}
			return err
		}
		errs = append(errs, fmt.Errorf("by the server at %s: %w", addr, err))
	}
	return errors.Join(errs...)
}
