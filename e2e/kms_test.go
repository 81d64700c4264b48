package e2e

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kms "k8s.io/kms/pkg/service"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/api/operator"
)

// kmsTimeout bounds one answer of the plugin.
const kmsTimeout = 10 * time.Second

// keeper is a KMS plugin of version 2: it has keys by their names, and encrypts with the newest.
type keeper struct {
	socket string
	server *kms.GRPCService
	served chan error

	mu   sync.Mutex
	keys map[string]cipher.AEAD
	now  string
}

func newKeeper(t *testing.T) *keeper {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{socket: filepath.Join(dir, "s"), keys: map[string]cipher.AEAD{}}
	t.Cleanup(func() {
		k.stop(t)
		_ = os.RemoveAll(dir)
	})
	k.rotate(t)
	return k
}

// start lets it listen, until it is stopped.
func (k *keeper) start(t *testing.T) {
	t.Helper()
	k.server, k.served = kms.NewGRPCService(k.socket, kmsTimeout, k), make(chan error, 1)
	go func(server *kms.GRPCService, served chan error) { served <- server.ListenAndServe() }(k.server, k.served)
	for {
		var dialer net.Dialer
		conn, err := dialer.DialContext(t.Context(), "unix", k.socket)
		if err == nil {
			_ = conn.Close() // it was only to see whether it listens
			return
		}
		select {
		case err := <-k.served:
			t.Fatal(err)
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(pollEvery):
		}
	}
}

func (k *keeper) stop(t *testing.T) {
	t.Helper()
	if k.server == nil {
		return
	}
	k.server.Close()
	if err := <-k.served; err != nil {
		t.Error(err)
	}
	k.server = nil
}

// rotate makes another key.
func (k *keeper) rotate(t *testing.T) {
	t.Helper()
	key := make([]byte, 32)
	_, err := rand.Read(key)
	block, err2 := aes.NewCipher(key)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	sealer, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now = fmt.Sprintf("key-%d", len(k.keys)+1)
	k.keys[k.now] = sealer
}

// forget makes what only a key has encrypted worthless.
func (k *keeper) forget(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys[id] = nil
}

// Encrypt implements kms.Service.
func (k *keeper) Encrypt(_ context.Context, _ string, data []byte) (*kms.EncryptResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	nonce := make([]byte, k.keys[k.now].NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return &kms.EncryptResponse{Ciphertext: k.keys[k.now].Seal(nonce, nonce, data, nil), KeyID: k.now}, nil
}

// Decrypt implements kms.Service.
func (k *keeper) Decrypt(_ context.Context, _ string, r *kms.DecryptRequest) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := k.keys[r.KeyID]
	if key == nil || len(r.Ciphertext) < key.NonceSize() {
		return nil, fmt.Errorf("there is no key %q", r.KeyID)
	}
	return key.Open(nil, r.Ciphertext[:key.NonceSize()], r.Ciphertext[key.NonceSize():], nil)
}

// Status implements kms.Service.
func (k *keeper) Status(context.Context) (*kms.StatusResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &kms.StatusResponse{Version: "v2", Healthz: "ok", KeyID: k.now}, nil
}

// kmsConfig is an EncryptionConfiguration by which a keeper keeps the key of secrets.
func kmsConfig(k *keeper) string {
	return fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - kms: {apiVersion: v2, name: ours, endpoint: 'unix://%s', timeout: 5s}
`, k.socket)
}

// sealedBy waits until what is there is encrypted, and so much of it not by the plugin's newest key.
func (c *cluster) sealedBy(t *testing.T, s *fleet.Process, stale int) {
	t.Helper()
	c.eventually(t, fmt.Sprintf("%d to be stale", stale), func(ctx context.Context) error {
		_ = s.Kube.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() // it asks the plugin for the name of its key
		var status operator.EncryptionStatus
		if err := s.Call(ctx, http.MethodGet, operator.PathEncryption, &status); err != nil {
			return err
		}
		n := 0
		for _, h := range status.Holdings {
			if h.Key != `the KMS provider "ours"` || h.Problem != "" {
				return fmt.Errorf("%+v", h)
			}
			n += h.Stale
		}
		if n != stale {
			return fmt.Errorf("%d are stale: %+v", n, status.Holdings)
		}
		return nil
	})
}

// ready waits until a server says that it is, or that it is not because of its keys.
func (c *cluster) ready(t *testing.T, s *fleet.Process, is bool) {
	t.Helper()
	c.eventually(t, fmt.Sprintf("%s to be ready: %t", s.Name, is), func(ctx context.Context) error {
		err := s.Kube.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if is {
			return err
		}
		return says(err, "[-]encryption failed")
	})
}

// A plugin keeps the key of secrets: no file has them in clear; its key is changed while the server serves, and the one before
// is forgotten; without the plugin everything else goes on, and when it is back all is well by itself.
func TestSecretsByKMS(t *testing.T) {
	t.Parallel() // it waits, mostly
	const secret = "the-wren-sings-for-nobody"
	k := newKeeper(t)
	k.start(t)
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(file, []byte(kmsConfig(k)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, server("s1", "bootstrap_expect = 1", fmt.Sprintf("encryption_config = %q", file)))
	s := c.waitLeader(t)
	put := func(name string) error {
		_, err := s.Kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"word": secret}}, metav1.CreateOptions{})
		return err
	}
	c.eventually(t, "the first secret", func(context.Context) error { return put("canary") })
	c.berth(t, "create", "token", "default")
	c.sealedBy(t, s, 0)

	k.rotate(t)
	c.sealedBy(t, s, 2) // the secret, and the key that signs tokens
	if err := put("newer"); err != nil {
		t.Fatal(err)
	}
	has(t, "rewrite", c.berth(t, "operator", "encryption", "rewrite"), "1 objects were encrypted anew", "signed with a new key")
	c.sealedBy(t, s, 0)
	backup := filepath.Join(c.Dir, "backup.snapshot")
	c.berth(t, "operator", "snapshot", "save", backup)
	k.forget("key-1")
	again := func() {
		t.Helper()
		s.Kill()
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		c.waitLeader(t)
	}
	again()
	c.mustHave(t, s, secret)

	// What is known goes on while the plugin is away; after a restart nothing of it is.
	k.stop(t)
	c.mustHave(t, s, secret)
	again()
	c.ready(t, s, false)
	if err := put("early"); !apierrors.IsInternalError(err) || says(err, "a KMS of this server's encryption configuration does not answer as it should") != nil {
		t.Errorf("a secret without the plugin: %v", err)
	}
	if got, err := s.Kube.CoreV1().Secrets("default").Get(t.Context(), "canary", metav1.GetOptions{}); !apierrors.IsInternalError(err) || says(err, `the KMS provider "ours"`) != nil {
		t.Errorf("without the plugin: %v, %v", got, err)
	}
	c.put(t, "meanwhile")
	create(t, s.Kube, pod("default", "pending", "true"))
	if _, err := s.Kube.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "meanwhile"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if err := s.Kube.CoreV1().Pods("default").Delete(t.Context(), "pending", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	k.start(t)
	c.ready(t, s, true)
	c.mustHave(t, s, secret)
	if err := put("early"); err != nil {
		t.Error(err)
	}
	c.berth(t, "create", "token", "default")
	again()
	c.mustHave(t, s, secret)
	if !stored(t, s, "meanwhile") {
		t.Error("what was written meanwhile is lost")
	}
	if files := holding(t, secret, s.DataDir, s.Log, backup); len(files) > 0 {
		t.Errorf("the secret is in %v", files)
	}
	if len(holding(t, "meanwhile", s.DataDir)) == 0 {
		t.Error("what is not encrypted is not found")
	}
}
