package vault

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kms "k8s.io/kms/pkg/service"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
)

const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"

// key is one provider's entry with a key of 32 equal bytes.
func key(provider, name string, b byte) string {
	return fmt.Sprintf("  - %s:\n      keys:\n      - {name: %s, secret: %s}\n", provider, name, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32)))
}

func secretsBy(providers ...string) string {
	return head + "- resources: [secrets, configmaps, '*.example.com']\n  providers:\n" + strings.Join(providers, "")
}

func write(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func open(t *testing.T, text string) *Vault {
	t.Helper()
	v, err := Open(Config{File: write(t, filepath.Join(t.TempDir(), "encryption.yaml"), text), Server: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); v.Run(ctx) }()
	t.Cleanup(func() { end(); <-done })
	return v
}

// world is a state that objects can be put into.
type world struct {
	*fsm.State
	index uint64
}

func newWorld(t *testing.T, version int) *world {
	w := &world{State: fsm.NewState()}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "ns"}}
	w.do(t, version, &fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: ns}, Create: true})
	return w
}

func (w *world) do(t *testing.T, version int, c fsm.Command) {
	t.Helper()
	entry, err := fsm.EncodeEntry(fsm.Header{Version: version, TimeUnixNano: 1e18}, []fsm.Proposal{{User: "u", Command: c}})
	if err != nil {
		t.Fatal(err)
	}
	w.index++
	results, err := w.Apply(w.index, 1, entry)
	if err == nil {
		err = results[0].Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}

const canary = "the-canary-sings"

func newSecret() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "s", UID: "u1", Labels: map[string]string{"app": "web"},
			Annotations:   map[string]string{"last-applied": canary},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: canary, Operation: metav1.ManagedFieldsOperationUpdate}},
		},
		Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"password": []byte(canary)},
	}
}

func put(t *testing.T, v *Vault, w *world, resource string, o codec.Object, create bool) *fsm.Object {
	t.Helper()
	raw, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	c := &fsm.PutObject{Resource: resource, Raw: raw, Create: create}
	if err := v.Seal(t.Context(), w.View(), c); err != nil {
		t.Fatal(err)
	}
	w.do(t, fsm.LogVersion, c)
	row, _ := w.View().Objects.Get(fsm.ObjectKey(resource, o.GetNamespace(), o.GetName()))
	return row
}

// What is stored has nothing of what is sealed, in whatever way it is sealed; what is opened is what was written.
func TestSealedAndOpened(t *testing.T) {
	socket := startKMS(t, "k1")
	for name, providers := range map[string]string{
		"aesgcm": key("aesgcm", "k", 1), "aescbc": key("aescbc", "k", 1), "secretbox": key("secretbox", "k", 1),
		"kms": fmt.Sprintf("  - kms: {apiVersion: v2, name: ours, endpoint: 'unix://%s', timeout: 10s}\n", socket),
	} {
		t.Run(name, func(t *testing.T) {
			v, w := open(t, secretsBy(providers)), newWorld(t, fsm.LogVersion)
			eventually(t, "that the keys are there", func() bool { return v.Check(w.View()) == nil })
			row := put(t, v, w, secrets, newSecret(), true)
			raw, err := row.Value.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(raw, []byte(canary)) || bytes.Contains(raw, []byte(base64.StdEncoding.EncodeToString([]byte(canary)))) {
				t.Errorf("the row tells: %q", raw)
			}
			if s := row.Value.(*corev1.Secret); s.Labels["app"] != "web" || s.Type != corev1.SecretTypeOpaque {
				t.Errorf("labels and type are not in clear: %v", s)
			}
			opened, err := v.Open(row)
			if err != nil {
				t.Fatal(err)
			}
			got, want := opened.Value.(*corev1.Secret), newSecret()
			want.ResourceVersion = got.ResourceVersion
			if !equal(t, got, want) {
				t.Errorf("opened: %v\nwant: %v", got, want)
			}
			if again, _ := v.Open(row); again != opened {
				t.Error("it was opened twice")
			}
			if !v.Current(row) {
				t.Error("it is not of the key that is written with")
			}
			var snapshot bytes.Buffer
			if err := w.View().Write(&snapshot); err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(snapshot.Bytes(), []byte(canary)) {
				t.Error("a snapshot tells")
			}
		})
	}
}

func equal(t *testing.T, a, b codec.Object) bool {
	t.Helper()
	x, errX := a.Marshal()
	y, errY := b.Marshal()
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// Config maps and custom objects are sealed as secrets are.
func TestOtherKindsAreSealed(t *testing.T) {
	v, w := open(t, secretsBy(key("aesgcm", "k", 1))), newWorld(t, fsm.LogVersion)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m", UID: "u"}, Data: map[string]string{"k": canary}}
	row := put(t, v, w, configMaps, m, true)
	if got := row.Value.(*corev1.ConfigMap); len(got.Data) != 0 {
		t.Errorf("in clear: %v", got)
	}
	custom := &fsm.Object{Resource: "widgets.example.com", Value: &codec.CustomObject{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "u"}, Content: []byte(`{"spec":"` + canary + `"}`),
	}}
	raw, err := custom.Value.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	c := &fsm.PutObject{Resource: custom.Resource, Raw: raw, Create: true}
	if err := v.Seal(t.Context(), w.View(), c); err != nil {
		t.Fatal(err)
	}
	sealed := &fsm.Object{Resource: custom.Resource, Value: new(codec.CustomObject)}
	if err := sealed.Value.Unmarshal(c.Raw); err != nil || bytes.Contains(c.Raw, []byte(canary)) {
		t.Errorf("%v: %q", err, c.Raw)
	}
	if opened, err := v.Open(sealed); err != nil || !equal(t, opened.Value, custom.Value) {
		t.Errorf("%v: %v", err, opened)
	}
	pods := &fsm.PutObject{Resource: "services", Raw: []byte("not looked at")}
	if err := v.Seal(t.Context(), w.View(), pods); err != nil || string(pods.Raw) != "not looked at" {
		t.Errorf("what cannot be sealed was touched: %v", err)
	}
}

// What is written again unchanged stays in its envelope, until the key that is written with is another one.
func TestWhatIsUnchangedStays(t *testing.T) {
	v, w := open(t, secretsBy(key("aesgcm", "old", 1))), newWorld(t, fsm.LogVersion)
	first := put(t, v, w, secrets, newSecret(), true)
	revision := w.View().Revision()
	if again := put(t, v, w, secrets, newSecret(), false); again != first || w.View().Revision() != revision {
		t.Error("the same was stored again")
	}
	labelled := newSecret()
	labelled.Labels["app"] = "other"
	row := put(t, v, w, secrets, labelled, false)
	if row.Value.GetAnnotations()[annotation] != first.Value.GetAnnotations()[annotation] || row.Value.GetLabels()["app"] != "other" {
		t.Error("a label has changed what is sealed, or not come in")
	}
	both := secretsBy(key("aesgcm", "new", 2), key("aesgcm", "old", 1))
	v = open(t, both)
	if v.Current(row) {
		t.Error("it is of the newest key")
	}
	if h := v.Holdings(w.View()); len(h) != 1 || h[0].Key != `the aesgcm key "old"` || h[0].Objects != 1 || h[0].Stale != 1 || h[0].Problem != "" {
		t.Errorf("holdings: %+v", h)
	}
	n := 0
	v.Stale(w.View(), func(row *fsm.Object) bool {
		c, err := v.Rewrite(t.Context(), w.View(), row)
		if err != nil {
			t.Fatal(err)
		}
		w.do(t, fsm.LogVersion, c)
		n++
		return true
	})
	if h := v.Holdings(w.View()); n != 1 || len(h) != 1 || h[0].Key != `the aesgcm key "new"` || h[0].Stale != 0 {
		t.Errorf("%d were rewritten: %+v", n, h)
	}
	row, _ = w.View().Objects.Get(fsm.ObjectKey(secrets, "default", "s"))
	if opened, err := open(t, secretsBy(key("aesgcm", "new", 2))).Open(row); err != nil || string(opened.Value.(*corev1.Secret).Data["password"]) != canary {
		t.Errorf("by the new key alone: %v", err)
	}
}

// A server without the key says which one, shows nothing and writes nothing in clear beside the others.
func TestWithoutTheKey(t *testing.T) {
	w := newWorld(t, fsm.LogVersion)
	row := put(t, open(t, secretsBy(key("aesgcm", "k7", 1))), w, secrets, newSecret(), true)
	none, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := newSecret().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]*Vault{
		"no configuration": none, "another key": open(t, secretsBy(key("aesgcm", "k8", 1))), "another key of the name": open(t, secretsBy(key("aesgcm", "k7", 2))),
		"in clear": open(t, secretsBy("  - identity: {}\n")),
	} {
		if _, err := v.Open(row); err == nil || !strings.Contains(err.Error(), `the aesgcm key "k7"`) || v.Failures() != 1 {
			t.Errorf("%s: opened: %v, %d failures", name, err, v.Failures())
		}
		if err := v.Check(w.View()); err == nil || !strings.Contains(err.Error(), `the aesgcm key "k7"`) {
			t.Errorf("%s: ready: %v", name, err)
		}
		if v.Current(row) {
			t.Errorf("%s: it is current", name)
		}
		n := 0
		if v.Stale(w.View(), func(*fsm.Object) bool { n++; return true }); n != 0 {
			t.Errorf("%s: %d could be written anew", name, n)
		}
	}
	c := &fsm.PutObject{Resource: secrets, Raw: raw, Create: true}
	if err := none.Seal(t.Context(), w.View(), c); !apierrors.IsInternalError(err) {
		t.Errorf("a server without a configuration writes beside those that encrypt: %v", err)
	}
	if _, err := none.SealKey(t.Context(), w.View(), "id", []byte("0")); !apierrors.IsInternalError(err) {
		t.Errorf("a key in clear beside those that encrypt: %v", err)
	}
}

// An envelope opens for its own object only, and damage opens nothing.
func TestEnvelopesAreBound(t *testing.T) {
	v, w := open(t, secretsBy(key("aesgcm", "k", 1))), newWorld(t, fsm.LogVersion)
	row := put(t, v, w, secrets, newSecret(), true)
	envelope := row.Value.GetAnnotations()[annotation]
	for name, change := range map[string]func(s *corev1.Secret){
		"another name":       func(s *corev1.Secret) { s.Name = "other" },
		"another namespace":  func(s *corev1.Secret) { s.Namespace = "other" },
		"another object":     func(s *corev1.Secret) { s.UID = "u2" },
		"no base64":          func(s *corev1.Secret) { s.Annotations[annotation] = "!" },
		"cut off":            func(s *corev1.Secret) { s.Annotations[annotation] = envelope[:len(envelope)-8] },
		"empty":              func(s *corev1.Secret) { s.Annotations[annotation] = "" },
		"nobody's beginning": func(s *corev1.Secret) { s.Annotations[annotation] = base64.StdEncoding.EncodeToString([]byte("plain")) },
	} {
		s := row.Value.(*corev1.Secret).DeepCopy()
		change(s)
		if _, err := v.Open(&fsm.Object{Resource: secrets, Value: s}); !apierrors.IsInternalError(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	forged := newSecret()
	forged.Annotations[annotation] = envelope
	raw, err := forged.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Seal(t.Context(), w.View(), &fsm.PutObject{Resource: secrets, Raw: raw, Create: true}); !apierrors.IsBadRequest(err) {
		t.Errorf("somebody brings an envelope: %v", err)
	}
}

func TestOlderServersBeside(t *testing.T) {
	v, w := open(t, secretsBy(key("aesgcm", "k", 1))), newWorld(t, fsm.SinceSealed-1)
	raw, err := newSecret().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Seal(t.Context(), w.View(), &fsm.PutObject{Resource: secrets, Raw: raw, Create: true}); !apierrors.IsBadRequest(err) {
		t.Errorf("a secret: %v", err)
	}
	if _, err := v.SealKey(t.Context(), w.View(), "id", []byte("0")); !apierrors.IsBadRequest(err) {
		t.Errorf("a key: %v", err)
	}
}

func TestSigningKeyIsSealed(t *testing.T) {
	v, w := open(t, secretsBy(key("aesgcm", "k", 1))), newWorld(t, fsm.LogVersion)
	private, err := v.SealKey(t.Context(), w.View(), "id", []byte(canary))
	if err != nil || bytes.Contains(private, []byte(canary)) {
		t.Fatalf("%v: %q", err, private)
	}
	if plain, err := v.OpenKey("id", private); err != nil || string(plain) != canary {
		t.Errorf("%v: %q", err, plain)
	}
	if _, err := v.OpenKey("another", private); err == nil {
		t.Error("it opens for another key")
	}
	w.do(t, fsm.LogVersion, &fsm.AddSigningKey{ID: "id", Private: private, Public: []byte("p")})
	if !v.KeyCurrent(w.View()) || open(t, secretsBy(key("aesgcm", "new", 2), key("aesgcm", "k", 1))).KeyCurrent(w.View()) {
		t.Error("whether it is of the newest key")
	}
	w.do(t, fsm.LogVersion, &fsm.AddSigningKey{ID: "id2", Private: []byte{0x30, 1}, Public: []byte("p")})
	if v.KeyCurrent(w.View()) {
		t.Error("a key in clear is as it would be written")
	}
}

// Files that say what cannot be are refused, in the line in which they do, and no error has a key in it.
func TestFilesThatAreRefused(t *testing.T) {
	secret := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 31))
	for text, want := range map[string]string{
		"kind: nonsense\n": "Object 'apiVersion' is missing",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n":                                                 "not an EncryptionConfiguration",
		head + "- resources: [pods]\n  providers: [{identity: {}}]\n":                                                                 `:4: resources[0].resources[0]: Invalid value: "pods": the servers read it`,
		head + "- resources: [deployments.apps]\n  providers: [{identity: {}}]\n":                                                     "custom resources",
		head + "- resources: [leases.coordination.k8s.io]\n  providers: [{identity: {}}]\n":                                           "the servers read it",
		head + "- resources: ['*.*']\n  providers: [{identity: {}}]\n":                                                                "it stands for kinds that the scheduler's state machine reads",
		head + "- resources: ['*.']\n  providers: [{identity: {}}]\n":                                                                 "it stands for kinds",
		head + "- resources: [secrets]\n  providers: [{identity: {}}]\n  provides: 1\n":                                               `:6: unknown field "resources[0].provides"`,
		head + "- resources: [secrets]\n  providers:\n  - aesgcm: {keys: [{name: k, secret: " + secret + "}]}\n":                      "resources[0].providers[0].aesgcm.keys[0].secret",
		head + "- resources: [secrets]\n  providers:\n  - aesgcm: {keys: [{name: k, secret: '" + secret + "!'}]}\n":                   "resources[0].providers[0].aesgcm.keys[0].secret",
		head + "- resources: [secrets]\n  providers:\n  - kms: {apiVersion: v1, name: a, endpoint: 'unix:///a.sock', cachesize: 1}\n": "KMSv1",
	} {
		_, err := Open(Config{File: write(t, filepath.Join(t.TempDir(), "e.yaml"), text)})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s\n%v\nwant: %s", text, err, want)
		}
	}
}

// The file is read again when it changes; while it is wrong, what it said before counts.
func TestFileIsFollowed(t *testing.T) {
	w := newWorld(t, fsm.LogVersion)
	v := open(t, secretsBy(key("aesgcm", "old", 1)))
	row := put(t, v, w, secrets, newSecret(), true)
	was := v.Fingerprint()
	write(t, v.File(), "nonsense")
	eventually(t, "the refusal", func() bool { return v.RefusedFiles() == 1 })
	if _, err := v.Open(row); err != nil || v.Fingerprint() != was {
		t.Error("a file that is wrong counts", err)
	}
	write(t, v.File(), secretsBy(key("aesgcm", "new", 2), key("aesgcm", "old", 1)))
	eventually(t, "the new key", func() bool { return v.Fingerprint() != was })
	if _, err := v.Open(row); err != nil || v.Current(row) {
		t.Error("the new key does not write, or the old one does not open", err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	c := newCache()
	c.most = 100
	rows := make([]*fsm.Object, 10)
	for i := range rows {
		rows[i] = &fsm.Object{}
		c.put(rows[i], rows[i], 20)
		c.get(rows[0])
	}
	if _, ok := c.get(rows[0]); !ok || c.bytes > 100 || len(c.rows) != 5 || c.last.Len() != 5 {
		t.Errorf("the first is there: %v; %d bytes, %d rows", ok, c.bytes, len(c.rows))
	}
	if c.put(&fsm.Object{}, nil, 26); len(c.rows) != 5 {
		t.Error("what takes a quarter of it was kept")
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("no sign of %s", what)
		case <-tick.C:
		}
	}
}

// Whose secret cannot be encrypted is told that it is for the KMS, and not where that is; what is not encrypted is taken.
func TestWithoutTheKMS(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	v := open(t, head+fmt.Sprintf("- resources: [secrets]\n  providers:\n  - kms: {apiVersion: v2, name: ours, endpoint: 'unix://%s', timeout: 10s}\n", socket))
	w := newWorld(t, fsm.LogVersion)
	raw, err := newSecret().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	err = v.Seal(t.Context(), w.View(), &fsm.PutObject{Resource: secrets, Raw: raw, Create: true})
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), errNoKMS.Error()) || strings.Contains(err.Error(), socket) {
		t.Errorf("a secret: %v", err)
	}
	if _, err := v.SealKey(t.Context(), w.View(), "k", []byte("private")); !errors.Is(err, errNoKMS) || strings.Contains(err.Error(), socket) {
		t.Errorf("the key of tokens: %v", err)
	}
	if err := v.Check(w.View()); err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("whoever asks whether it is ready is told: %v", err)
	}
	put(t, v, w, configMaps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "u2"}}, true)
}

// keeper is a KMS plugin that hides nothing.
type keeper struct{ id string }

func (k *keeper) Encrypt(_ context.Context, _ string, data []byte) (*kms.EncryptResponse, error) {
	return &kms.EncryptResponse{Ciphertext: flip(data), KeyID: k.id}, nil
}

func (k *keeper) Decrypt(_ context.Context, _ string, r *kms.DecryptRequest) ([]byte, error) {
	if r.KeyID != k.id {
		return nil, fmt.Errorf("no key %q", r.KeyID)
	}
	return flip(r.Ciphertext), nil
}

func (k *keeper) Status(context.Context) (*kms.StatusResponse, error) {
	return &kms.StatusResponse{Version: "v2", Healthz: "ok", KeyID: k.id}, nil
}

func flip(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = b[i] ^ 0xff
	}
	return out
}

func startKMS(t *testing.T, id string) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	server := kms.NewGRPCService(socket, 10*time.Second, &keeper{id})
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe() }()
	eventually(t, "the socket", func() bool { _, err := os.Stat(socket); return err == nil })
	t.Cleanup(func() {
		server.Shutdown()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return socket
}
