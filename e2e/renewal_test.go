package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/pki"
)

// nodeLeaf is the certificate that a worker which has joined by a token has by now.
func nodeLeaf(t *testing.T, w *fleet.Process) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(w.DataDir, "tls", "node.pem"), filepath.Join(w.DataDir, "tls", "node.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// aged gives a worker that does not run a certificate of its node that was signed so long ago and ends so soon. Nothing
// configures how long one lasts, and ninety days are too long to wait.
func (c *cluster) aged(t *testing.T, w *fleet.Process, age, left time.Duration) *x509.Certificate {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(filepath.Join(c.Dir, "ca", pki.CAFile), filepath.Join(c.Dir, "ca", pki.CAKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pki.NodeSubject(w.Name), BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-age), NotAfter: time.Now().Add(left),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	both := slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
	if err := os.WriteFile(filepath.Join(w.DataDir, "tls", "node.pem"), both, 0o600); err != nil {
		t.Fatal(err)
	}
	return nodeLeaf(t, w)
}

// A worker's certificate is about to end. It gets another one by itself, with another key, while it runs; when the one before
// has ended its node is ready as before, its pod was never started again, and it is spoken to.
func TestCertificateIsRenewedInTime(t *testing.T) {
	t.Parallel() // it waits, mostly
	c, s, workers := joined(t, 1)
	w := workers[0]
	namespace := c.namespace(t, "renewed")
	var node *corev1.Node
	ready := func() {
		t.Helper()
		c.eventually(t, w.Name+" to be ready", func(ctx context.Context) (err error) {
			if node, err = s.Kube.CoreV1().Nodes().Get(ctx, w.Name, metav1.GetOptions{}); err == nil && !nodeReady(node) {
				err = errors.New("it is not ready")
			}
			return err
		})
	}
	ready()
	known := node
	create(t, s.Kube, pod(namespace, "stays", "echo begun; exec sleep 1000", on(w.Name)))
	before := c.waitRunning(t, namespace, "stays")[0]

	w.Kill()
	// It is renewed when 65 to 85 of a hundred parts of it are over: a minute from now at the soonest, and 25 seconds before it ends.
	old := c.aged(t, w, 65*time.Second, 100*time.Second)
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	process := w.PID()
	var renewed *x509.Certificate
	c.eventually(t, "another certificate", func(context.Context) error {
		if renewed = nodeLeaf(t, w); renewed.Equal(old) {
			return errors.New("it has the one of before")
		}
		return nil
	})
	if !time.Now().Before(old.NotAfter) || !renewed.NotAfter.After(old.NotAfter.Add(80*24*time.Hour)) || renewed.Subject.String() != old.Subject.String() {
		t.Errorf("the certificate of %s, good until %s, is followed by one of %s until %s", old.Subject, old.NotAfter, renewed.Subject, renewed.NotAfter)
	}
	if bytes.Equal(renewed.RawSubjectPublicKeyInfo, old.RawSubjectPublicKeyInfo) {
		t.Error("it has the key of before")
	}
	c.eventually(t, "the end of the one before", func(context.Context) error {
		if left := time.Until(old.NotAfter); left > 0 {
			return fmt.Errorf("it is good for %s", left)
		}
		return nil
	})
	create(t, s.Kube, pod(namespace, "later", "echo begun; exec sleep 1000", on(w.Name)))
	c.waitRunning(t, namespace, "later")
	ready()
	after := c.waitRunning(t, namespace, "stays")[0]
	was, is := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]
	if node.UID != known.UID || readySince(node) != readySince(known) || w.PID() != process || after.UID != before.UID || is.ContainerID != was.ContainerID || is.RestartCount != 0 {
		t.Errorf("the node %s, ready since %s, became %s, ready since %s; the pod %s with %+v became %s with %+v",
			known.UID, readySince(known), node.UID, readySince(node), before.UID, was, after.UID, is)
	}
	for _, name := range []string{"stays", "later"} {
		if out := c.berth(t, "logs", name, "-n", namespace); !strings.Contains(out, "begun") {
			t.Errorf("the log of %s is %q", name, out)
		}
		has(t, "exec", c.berth(t, "exec", name, "-n", namespace, "--", "echo", "inside"), "inside")
	}
}

// readySince is when a node's condition Ready became what it is.
func readySince(n *corev1.Node) time.Time {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.LastTransitionTime.UTC()
		}
	}
	return time.Time{}
}
