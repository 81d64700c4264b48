package verb

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/pki"
)

// What kubelets join by is a kubeconfig that nobody else reads, with a token that the servers know, and the CA's certificate.
func TestTokensForKubelets(t *testing.T) {
	ca, err := pki.NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	root, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]string{"ca.crt": string(ca.CertPEM())}})
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t)
	s.answers["GET /api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt"] = answer{http.StatusOK, root}
	s.answers["POST /api/v1/namespaces/kube-system/secrets"] = answer{http.StatusCreated, []byte(`{"apiVersion":"v1","kind":"Secret"}`)}
	file := filepath.Join(t.TempDir(), "bootstrap.conf")
	for said, want := range map[string]string{
		"": s.server.URL, "10.0.0.1:7640": "https://10.0.0.1:7640", "https://berth.example:7640": "https://berth.example:7640", "[fd00::1]:7640": "https://[fd00::1]:7640",
	} {
		s.asked = nil
		got := s.run("", "token", "create", "--kubeconfig-file", file, "--server-address", said)
		c, err := clientcmd.LoadFromFile(file)
		if err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		cluster, token := c.Clusters["berth"], c.AuthInfos["berth"].Token
		if !strings.HasPrefix(got, file+": kubelets join by it at "+want) || strings.Contains(got, token[7:]) {
			t.Errorf("it says %q", got)
		}
		if cluster.Server != want || string(cluster.CertificateAuthorityData) != string(ca.CertPEM()) || c.CurrentContext != "berth" {
			t.Errorf("it has %+v", c)
		}
		var kept corev1.Secret
		made := slices.IndexFunc(s.asked, func(line string) bool { return strings.HasPrefix(line, "POST ") })
		_, body, _ := strings.Cut(s.asked[max(made, 0)], " {")
		if err := json.Unmarshal([]byte("{"+body), &kept); err != nil || kept.StringData["token-id"]+"."+kept.StringData["token-secret"] != token {
			t.Errorf("the servers know %+v, %v, and not %s", kept.StringData, err, token)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %v, %v", info, err)
	}
	if got := s.run("", "token", "create", "--kubeconfig-file", "-"); !strings.Contains(got, "certificate-authority-data") {
		t.Errorf("to the terminal: %s", got)
	}
	// Whether anybody can join by it is told where the leader says that it cannot sign.
	for status, warns := range map[string]bool{
		`{"name":"s1","leader":"s1","signs":false}`: true, `{"name":"s1","leader":"s1","signs":true}`: false, `{"name":"s1","leader":"s1"}`: false, `{"name":"s1"}`: false,
	} {
		s.answers["GET /berth/v1/status"] = answer{http.StatusOK, []byte(status)}
		if got := s.run("", "token", "create"); strings.Contains(got, "Warning: s1, which leads, does not have the key") != warns {
			t.Errorf("of %s it says %s", status, got)
		}
	}
	s.asked = nil
	for _, wrong := range [][]string{
		{"--kubeconfig-file", file, "--server-address", "10.0.0.1"}, {"--kubeconfig-file", file, "--server-address", "http://10.0.0.1:1"},
		{"--kubeconfig-file", file, "--server-address", "https://10.0.0.1:1/path"}, {"--server-address", "10.0.0.1:7640"},
	} {
		if got := s.run("", append([]string{"token", "create"}, wrong...)...); !strings.HasPrefix(got, "usage: --server-address") || len(s.asked) > 0 {
			t.Errorf("%q: %s, and asked %q", wrong, got, s.asked)
		}
	}
}
