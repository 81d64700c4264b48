package ecosystem

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/e2e/ecosystem/tools"
)

const certManagerNamespace = "cert-manager"

// issued is a self-signed CA, an Issuer by it, and a Certificate from that.
const issued = `apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: self}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: authority}
spec: {isCA: true, commonName: authority, secretName: authority, privateKey: {algorithm: ECDSA, size: 256}, issuerRef: {name: self, kind: Issuer}}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: authority}
spec: {ca: {secretName: authority}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: site}
spec: {dnsNames: [site.example.com], secretName: site, issuerRef: {name: authority, kind: Issuer}}
`

// TestCertManager: cert-manager by its own chart: controllers, cainjector and webhook in the cluster, and the chart's check of them.
func TestCertManager(t *testing.T) {
	needTool(t, "cert-manager")
	chart := certManagerChart(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("its pods:\n%s", told("-n", certManagerNamespace, "describe", "pods"))
			t.Logf("they say:\n%s", told("-n", certManagerNamespace, "logs", "--prefix", "--tail=50", "-l", "app.kubernetes.io/instance=cert-manager"))
		}
	})
	tool(t, "helm4", "install", "cert-manager", chart, "--namespace", certManagerNamespace, "--create-namespace", "--wait", "--timeout", "5m",
		"--set", "crds.enabled=true,crds.keep=false")
	t.Cleanup(func() {
		atEnd(t, "delete", "namespace", "certificates", "--ignore-not-found", "--wait")
		atEnd(t, "delete", "validatingwebhookconfiguration", "injected", "--ignore-not-found")
	})
	tool(t, "kubectl", "create", "namespace", "certificates")
	k := namespaced{t, "certificates"}
	k.input(issued, "apply", "-f", "-")
	t.Run("certificates are issued", func(t *testing.T) {
		k := k.on(t)
		k.run("wait", "certificate/authority", "certificate/site", "issuer/self", "issuer/authority", "--for=condition=Ready", "--timeout=5m")
		checkIssued(t)
		contains(t, k.run("get", "certificates"), "site", "True")
		contains(t, k.run("describe", "certificate", "site"), "The certificate has been successfully issued")
	})
	t.Run("one that is lost is issued again", func(t *testing.T) {
		k := k.on(t)
		before := secretUID(t)
		k.run("delete", "secret", "site")
		eventually(t, "another secret", func(ctx context.Context) error {
			s, err := kube().CoreV1().Secrets("certificates").Get(ctx, "site", metav1.GetOptions{})
			if err == nil && (s.UID == before || len(s.Data["tls.crt"]) == 0) {
				err = errors.New("it is the old one, or empty")
			}
			return err
		})
		k.run("wait", "certificate/site", "--for=condition=Ready", "--timeout=5m")
		checkIssued(t)
	})
	t.Run("the webhook refuses", func(t *testing.T) {
		refused(t, "admission webhook", "kubectl", "-n", "certificates", "patch", "certificate", "site", "--type=merge", "-p", `{"spec":{"dnsNames":[]}}`)
	})
	t.Run("cainjector fills in", func(t *testing.T) {
		k := k.on(t)
		k.input(`apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: injected, annotations: {cert-manager.io/inject-ca-from: certificates/site}}
webhooks:
- name: injected.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Ignore
  clientConfig: {url: "https://site.example.com/"}
  rules: [{apiGroups: [none.example.com], apiVersions: [v1], operations: [CREATE], resources: [none]}]
`, "apply", "-f", "-")
		eventually(t, "the bundle", func(ctx context.Context) error {
			c, err := kube().AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, "injected", metav1.GetOptions{})
			if err != nil {
				return err
			}
			s, err := kube().CoreV1().Secrets("certificates").Get(ctx, "site", metav1.GetOptions{})
			if err == nil && string(c.Webhooks[0].ClientConfig.CABundle) != string(s.Data["ca.crt"]) {
				err = errors.New("it is another")
			}
			return err
		})
	})
	t.Run("uninstalled", func(t *testing.T) {
		tool(t, "kubectl", "delete", "namespace", "certificates", "--wait")
		tool(t, "helm4", "uninstall", "cert-manager", "--namespace", certManagerNamespace, "--wait", "--timeout", "5m")
		if crds := tool(t, "kubectl", "get", "crd", "-o", "name"); strings.Contains(crds, "cert-manager") {
			t.Errorf("definitions are left:\n%s", crds)
		}
		tool(t, "kubectl", "delete", "namespace", certManagerNamespace, "--wait")
	})
}

func secretUID(t *testing.T) types.UID {
	t.Helper()
	s, err := kube().CoreV1().Secrets("certificates").Get(t.Context(), "site", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s.UID
}

// checkIssued: the certificate is for the name that was asked for, and the CA's.
func checkIssued(t *testing.T) {
	t.Helper()
	s, err := kube().CoreV1().Secrets("certificates").Get(t.Context(), "site", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.Data["ca.crt"]) {
		t.Fatalf("there is no CA in %q", s.Data["ca.crt"])
	}
	block, _ := pem.Decode(s.Data["tls.crt"])
	if block == nil {
		t.Fatalf("there is no certificate in %q", s.Data["tls.crt"])
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "site.example.com"}); err != nil {
		t.Error(err)
	}
}

// certManagerChart is the chart as it is in cert-manager's module, which a release gives a version.
func certManagerChart(t *testing.T) string {
	t.Helper()
	i := slices.IndexFunc(tools.All, func(one tools.Tool) bool { return one.Name == "cert-manager" })
	one := tools.All[i]
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", one.Module)
	list.Dir = one.Dir
	out, err := list.Output()
	if err != nil {
		t.Fatalf("where the sources of cert-manager are: %v", err)
	}
	from, to := filepath.Join(strings.TrimSpace(string(out)), "deploy", "charts", "cert-manager"), filepath.Join(t.TempDir(), "cert-manager")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(from, "Chart.template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.ReplaceAll(string(text), "v0.0.0", one.Version))
	if err := os.WriteFile(filepath.Join(to, "Chart.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}
