package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/api/operator"
)

// encrypting is an EncryptionConfiguration of secrets with keys that are as many equal bytes as their numbers say.
func encrypting(keys ...int) string {
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n"
	for _, k := range keys {
		text += fmt.Sprintf("  - secretbox: {keys: [{name: key%d, secret: %s}]}\n", k, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(k)}, 32)))
	}
	return text
}

// encrypt writes the configuration of a server that was made by encryptingServer.
func (c *cluster) encrypt(t *testing.T, file string, keys ...int) {
	t.Helper()
	if err := os.WriteFile(file, []byte(encrypting(keys...)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Servers() {
		c.eventually(t, s.Name+" to have the keys", func(ctx context.Context) error {
			var status operator.EncryptionStatus
			if err := s.Call(ctx, http.MethodGet, operator.PathEncryption, &status); err != nil {
				return err
			}
			for _, h := range status.Holdings {
				if h.Problem != "" || h.Key != fmt.Sprintf("the secretbox key %q", fmt.Sprintf("key%d", keys[0])) && h.Stale == 0 {
					return fmt.Errorf("%+v", h)
				}
			}
			return nil
		})
	}
}

// holding are the files below directories that have a word in them, or what bytes are in JSON that have it at their beginning.
func holding(t *testing.T, word string, dirs ...string) (files []string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if bytes.Contains(data, []byte(word)) || bytes.Contains(data, []byte(base64.StdEncoding.EncodeToString([]byte(word)))) {
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// What a secret holds is in no file of the servers and in no backup; keys are changed while the cluster serves; whoever has a
// backup and no key has no secret.
func TestSecretsAtRest(t *testing.T) {
	const secret, open = "the-canary-sings-for-nobody", "the-sparrow-sings-for-everybody"
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(file, []byte(encrypting(1)), 0o600); err != nil {
		t.Fatal(err)
	}
	configured := fmt.Sprintf("encryption_config = %q", file)
	c := newCluster(t, server("s1", "bootstrap_expect = 3", configured), server("s2", "bootstrap_expect = 3", configured), server("s3", "bootstrap_expect = 3", configured))
	c.waitLeader(t)
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: canary, namespace: default, annotations: {said: %s}}\nstringData: {word: %s}\n", secret, secret) +
		fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: sparrow, namespace: default}\ndata: {word: %s}\n", open)
	c.eventually(t, "the first write", func(context.Context) error {
		if r := run(t, c.env, manifest, "apply", "-f", "-"); r.code != 0 {
			return fmt.Errorf("%s", r.err)
		}
		return nil
	})
	c.berth(t, "create", "token", "default")
	backup := filepath.Join(c.Dir, "backup.snapshot")
	c.berth(t, "operator", "snapshot", "save", backup)
	var dirs []string
	for _, s := range c.Servers() {
		c.mustHave(t, s, secret)
		if len(holding(t, open, s.DataDir)) == 0 {
			t.Errorf("what is not encrypted is not found on %s", s.Name)
		}
		dirs = append(dirs, s.DataDir)
	}
	dirs = append(dirs, backup)

	c.encrypt(t, file, 1, 2) // every server can open what the new key will write
	c.encrypt(t, file, 2, 1)
	has(t, "status", c.berth(t, "operator", "encryption", "status"), `the secretbox key "key1"`, "2 are stale")
	has(t, "rewrite", c.berth(t, "operator", "encryption", "rewrite"), "1 objects were encrypted anew", "signed with a new key")
	has(t, "status", c.berth(t, "operator", "encryption", "status"), `the secretbox key "key2"`, "all are of the first key")
	c.encrypt(t, file, 2)
	for _, s := range c.Servers() {
		s.Kill()
	}
	for _, s := range c.Servers() {
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
	}
	c.waitLeader(t)
	for _, s := range c.Servers() {
		c.mustHave(t, s, secret)
	}
	c.berth(t, "create", "token", "default")
	c.verify(t, 3)
	if files := holding(t, secret, dirs...); len(files) > 0 {
		t.Errorf("the secret is in %v", files)
	}
	restoreWithoutKey(t, backup, secret)
}

// mustHave waits until a server shows the secret.
func (c *cluster) mustHave(t *testing.T, s *fleet.Process, word string) {
	t.Helper()
	c.eventually(t, s.Name+" to show the secret", func(ctx context.Context) error {
		got, err := s.Kube.CoreV1().Secrets("default").Get(ctx, "canary", metav1.GetOptions{})
		if err == nil && string(got.Data["word"]) != word {
			return fmt.Errorf("it is %v", got)
		}
		return err
	})
}

// restoreWithoutKey brings a backup into a cluster that has another key, and then its own.
func restoreWithoutKey(t *testing.T, backup, word string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(file, []byte(encrypting(3)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, server("r1", "bootstrap_expect = 1", fmt.Sprintf("encryption_config = %q", file)))
	s := c.waitLeader(t)
	c.eventually(t, "the restore", func(context.Context) error {
		if r := run(t, c.env, "", "operator", "snapshot", "restore", backup); r.code != 0 {
			return fmt.Errorf("%s", r.err)
		}
		return nil
	})
	if _, err := s.Kube.CoreV1().ConfigMaps("default").Get(t.Context(), "sparrow", metav1.GetOptions{}); err != nil {
		t.Errorf("what is not encrypted: %v", err)
	}
	const missing = `the secretbox key "key1"`
	if got, err := s.Kube.CoreV1().Secrets("default").Get(t.Context(), "canary", metav1.GetOptions{}); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), missing) {
		t.Errorf("without the key: %v, %v", got, err)
	}
	if list, err := s.Kube.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsInternalError(err) {
		t.Errorf("without the key: %v, %v", list, err)
	}
	r := run(t, c.env, "", "operator", "encryption", "status")
	has(t, "status", r.out, missing, "CANNOT OPEN ALL OF IT")
	if r.code == 0 {
		t.Error("the status is that all is well")
	}
	c.eventually(t, "a server that is not ready", func(ctx context.Context) error {
		err := s.Kube.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil || !strings.Contains(err.Error(), "[-]encryption failed") {
			return fmt.Errorf("it says: %v", err)
		}
		return nil
	})
	if _, err := s.Kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("a new secret, with its own key: %v", err)
	}
	c.encrypt(t, file, 3, 1)
	c.mustHave(t, s, word)
	c.eventually(t, "a server that is ready", func(ctx context.Context) error {
		return s.Kube.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}
