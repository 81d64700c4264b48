package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/pki"
)

// joinPatience is for a machine that is busy with other things.
const joinPatience = time.Minute

// joinServer is a server that founds a cluster, an administrator's client of it, and what makes tokens.
func joinServer(t *testing.T) (*Agent, kubernetes.Interface, func(change func(s *corev1.Secret)) string) {
	t.Helper()
	dir := t.TempDir()
	a, err := Start(t.Context(), Config{Name: "s1", Version: "test", DataDir: dir, BindAddr: "127.0.0.1", Server: &ServerPart{BootstrapExpect: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Stop(context.Background()) }) // the tests are over
	ca := filepath.Join(TLSDir(dir), pki.CAFile)
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: "https://" + a.Server().HTTPAddr(), QPS: -1, TLSClientConfig: rest.TLSClientConfig{
		CAFile: ca, CertFile: filepath.Join(TLSDir(dir), "client-admin.pem"), KeyFile: filepath.Join(TLSDir(dir), "client-admin-key.pem"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	return a, kube, func(change func(s *corev1.Secret)) string {
		t.Helper()
		token, err := pki.NewJoinToken(pem)
		if err != nil {
			t.Fatal(err)
		}
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + token.ID}, Type: "bootstrap.kubernetes.io/token",
			StringData: map[string]string{"token-id": token.ID, "token-secret": token.Secret, "usage-bootstrap-authentication": "true"},
		}
		if change != nil {
			change(s)
		}
		ctx, cancel := context.WithTimeout(t.Context(), joinPatience)
		defer cancel()
		for {
			_, err := kube.CoreV1().Secrets("kube-system").Create(ctx, s, metav1.CreateOptions{})
			if err == nil {
				return token.String()
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
}

func joiningWorker(s *Agent, dir, name, token string) Config {
	return Config{
		Name: name, Version: "test", DataDir: dir, BindAddr: "127.0.0.1", Worker: &WorkerPart{Runtime: "fake"},
		Joining: &Joining{Token: token, API: []string{s.Server().HTTPAddr()}},
	}
}

// TestJoining: a worker joins by a token, comes back without it, and renews its certificate by itself.
func TestJoining(t *testing.T) {
	s, kube, makeToken := joinServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), joinPatience)
	defer cancel()
	dir := t.TempDir()
	token := makeToken(nil)
	for _, token := range []string{token, ""} {
		w, err := Start(ctx, joiningWorker(s, dir, "w1", token))
		if err != nil {
			t.Fatal(err)
		}
		if !w.config.joined || w.config.EncryptionKey == "" || !slices.Contains(w.config.Join, s.GossipAddr()) {
			t.Errorf("it joined: %v, by %v", w.config.joined, w.config.Join)
		}
		before := w.config.TLS.Leaf()
		if err := w.config.renew(ctx); err != nil {
			t.Error(err)
		}
		after := w.config.TLS.Leaf()
		if before.SerialNumber.Cmp(after.SerialNumber) == 0 || before.PublicKey.(*ecdsa.PublicKey).Equal(after.PublicKey) {
			t.Errorf("the certificate %s is not renewed", before.SerialNumber)
		}
		for {
			if _, err := kube.CoreV1().Nodes().Get(ctx, "w1", metav1.GetOptions{}); err == nil {
				break
			} else if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		if err := w.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Stat(nodeFiles(TLSDir(dir)).Key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key can be read by %v: %v", info.Mode(), err)
	}
	if _, err := Start(ctx, joiningWorker(s, dir, "w2", token)); err == nil {
		t.Error("a worker goes by the certificate of another")
	}
}

// TestNotLetIn: who has no good token is told so, and asks no more.
func TestNotLetIn(t *testing.T) {
	s, _, makeToken := joinServer(t)
	other, err := pki.NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := pki.NewJoinToken(other.CertPEM())
	if err != nil {
		t.Fatal(err)
	}
	good, err := pki.ParseJoinToken(makeToken(nil))
	if err != nil {
		t.Fatal(err)
	}
	guessed := good
	guessed.Secret = "0123456789abcdef"
	for what, token := range map[string]string{
		"another cluster's": foreign.String(),
		"a guessed one":     guessed.String(),
		"an expired one": makeToken(func(s *corev1.Secret) {
			s.StringData["expiration"] = time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
		}),
		"one for signatures": makeToken(func(s *corev1.Secret) {
			delete(s.StringData, "usage-bootstrap-authentication")
			s.StringData["usage-bootstrap-signing"] = "true"
		}),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), joinPatience)
		_, err := Start(ctx, joiningWorker(s, t.TempDir(), "w1", token))
		cancel()
		if !errors.Is(err, errNotLetIn) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Start(t.Context(), joiningWorker(s, t.TempDir(), "w1", "")); !errors.Is(err, errNoCertificate) {
		t.Errorf("without any: %v", err)
	}
}

// TestRenewalOf: a certificate is renewed in its last third, and not by all workers at once.
func TestRenewalOf(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var all []time.Time
	for i := range 100 {
		leaf := &x509.Certificate{NotBefore: begin, NotAfter: begin.Add(100 * time.Hour), Raw: []byte{byte(i)}}
		at := renewalOf(leaf)
		if again := renewalOf(leaf); !at.Equal(again) {
			t.Errorf("one certificate is renewed at %s, and at %s", at, again)
		}
		all = append(all, at)
	}
	slices.SortFunc(all, time.Time.Compare)
	first, last := all[0].Sub(begin), all[99].Sub(begin)
	if first < 65*time.Hour || first > 67*time.Hour || last < 83*time.Hour || last > 85*time.Hour {
		t.Errorf("from %s to %s", first, last)
	}
	for i := range all[1:] {
		if all[i+1].Sub(all[i]) > 3*time.Hour {
			t.Errorf("nobody between %s and %s", all[i], all[i+1])
		}
	}
}
