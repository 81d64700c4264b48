package apiserver

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/apiserver/vault"
)

// sealedBy is a vault whose keys are as many equal bytes as their number says; the first writes.
func sealedBy(t *testing.T, keys ...int) *vault.Vault {
	t.Helper()
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" +
		"- resources: [secrets, widgets.custom.example.com]\n  providers:\n"
	for _, k := range keys {
		text += fmt.Sprintf("  - aesgcm: {keys: [{name: key%d, secret: %s}]}\n", k, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(k)}, 32)))
	}
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := vault.Open(vault.Config{File: file})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// tells says whether a double's state has a word, in clear or as JSON has bytes.
func tells(t *testing.T, d *double, word string) bool {
	t.Helper()
	var all bytes.Buffer
	if err := d.View().Write(&all); err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(all.Bytes(), []byte(word)) || bytes.Contains(all.Bytes(), []byte(base64.StdEncoding.EncodeToString([]byte(word))))
}

// Whoever asks the API sees nothing of it that secrets are sealed: writes, patches, applies, lists, tables, watches, selectors.
func TestSealedSecretsAreServed(t *testing.T) {
	const word = "the-canary-sings"
	d := newDouble(t)
	s := start(t, d, func(c *Config) { c.Vault = sealedBy(t, 1) })
	ns := s.namespace(t)
	secrets := s.client(t).CoreV1().Secrets(ns)
	watch, err := secrets.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	applied := `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","labels":{"a":"b"},"annotations":{"note":"` + word + `"}},"type":"team/x","stringData":{"k":"` + word + `"}}`
	made, err := secrets.Patch(t.Context(), "s", types.ApplyPatchType, []byte(applied), metav1.PatchOptions{FieldManager: "m"})
	if err != nil {
		t.Fatal(err)
	}
	if string(made.Data["k"]) != word || made.Annotations["note"] != word || len(made.Annotations) != 1 || len(made.ManagedFields) != 1 {
		t.Errorf("made: %v", made)
	}
	if tells(t, d, word) {
		t.Error("the state tells")
	}
	again, err := secrets.Patch(t.Context(), "s", types.ApplyPatchType, []byte(applied), metav1.PatchOptions{FieldManager: "m"})
	if err != nil || again.ResourceVersion != made.ResourceVersion {
		t.Errorf("the same was stored again: %v", err)
	}
	if e := <-watch.ResultChan(); string(e.Object.(*corev1.Secret).Data["k"]) != word {
		t.Errorf("watched: %v", e)
	}
	changed, err := secrets.Patch(t.Context(), "s", types.MergePatchType, []byte(`{"stringData":{"k2":"`+word+`2"}}`), metav1.PatchOptions{})
	if err != nil || string(changed.Data["k2"]) != word+"2" || string(changed.Data["k"]) != word {
		t.Errorf("changed: %v, %v", changed, err)
	}
	for selector, want := range map[string]int{"type=team/x": 1, "type=other": 0} {
		if list, err := secrets.List(t.Context(), metav1.ListOptions{FieldSelector: selector}); err != nil || len(list.Items) != want {
			t.Errorf("%s: %v, %v", selector, list, err)
		} else if want == 1 && len(list.Items[0].Data) != 2 {
			t.Errorf("listed: %v", list)
		}
	}
	table, err := s.client(t).CoreV1().RESTClient().Get().Namespace(ns).Resource("secrets").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	if err != nil || !strings.Contains(string(table), `"cells":["s","team/x",2,`) {
		t.Errorf("%v: %s", err, table)
	}
	if tried, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "dry"}, StringData: map[string]string{"k": word}},
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil || string(tried.Data["k"]) != word {
		t.Errorf("tried: %v, %v", tried, err)
	}
	frozen := changed.DeepCopy()
	yes := true
	frozen.Immutable, frozen.Finalizers = &yes, []string{"example.com/wait"}
	if frozen, err = secrets.Update(t.Context(), frozen, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	frozen.Data["k"] = []byte("other")
	_, err = secrets.Update(t.Context(), frozen, metav1.UpdateOptions{})
	wantStatus(t, err, 422, "field is immutable when `immutable` is set")
	if err := secrets.Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if ending, err := secrets.Get(t.Context(), "s", metav1.GetOptions{}); err != nil || ending.DeletionTimestamp == nil || string(ending.Data["k"]) != word {
		t.Errorf("ending: %v, %v", ending, err)
	}
	if _, err := secrets.Patch(t.Context(), "s", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	big := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "big"}, Data: map[string][]byte{"k": bytes.Repeat([]byte("x"), corev1.MaxSecretSize)}}
	if _, err := secrets.Create(t.Context(), big, metav1.CreateOptions{}); err != nil {
		t.Errorf("as large as one may be: %v", err)
	}
	big.Name, big.Data["k"] = "bigger", append(big.Data["k"], 'x')
	_, err = secrets.Create(t.Context(), big, metav1.CreateOptions{})
	wantStatus(t, err, 422, "Too long")
	envelope := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "forged", Annotations: map[string]string{"berth.dev/sealed/v1": "x"}}}
	_, err = secrets.Create(t.Context(), envelope, metav1.CreateOptions{})
	wantStatus(t, err, 422, "metadata.annotations")
}

// A server with a newer first key writes with it what is written again; one without the key serves none of it, and all else.
func TestSealedSecretsAndOtherKeys(t *testing.T) {
	d := newDouble(t)
	s := start(t, d, func(c *Config) { c.Vault = sealedBy(t, 1) })
	ns := s.namespace(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "word"}}
	made, err := s.client(t).CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	newer := start(t, d, func(c *Config) { c.Vault = sealedBy(t, 2, 1) }).client(t).CoreV1().Secrets(ns)
	same, err := newer.Get(t.Context(), "s", metav1.GetOptions{})
	if err != nil || string(same.Data["k"]) != "word" {
		t.Fatalf("%v: %v", same, err)
	}
	replaced, err := newer.Update(t.Context(), same, metav1.UpdateOptions{})
	if err != nil || replaced.ResourceVersion == made.ResourceVersion {
		t.Errorf("what is replaced by the same stays with the old key: %v", err)
	}
	if again, err := newer.Update(t.Context(), replaced, metav1.UpdateOptions{}); err != nil || again.ResourceVersion != replaced.ResourceVersion {
		t.Errorf("what has the new key is written again: %v", err)
	}
	secrets := s.client(t).CoreV1().Secrets(ns)
	_, err = secrets.Get(t.Context(), "s", metav1.GetOptions{})
	wantStatus(t, err, 500, `the aesgcm key "key2"`)
	_, err = secrets.List(t.Context(), metav1.ListOptions{})
	wantStatus(t, err, 500, `the aesgcm key "key2"`)
	if _, err := s.client(t).CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("what is not sealed: %v", err)
	}
}

// Objects of custom kinds are sealed by name, in whatever version they are asked for.
func TestSealedCustomObjects(t *testing.T) {
	const word = "the-canary-sings"
	d := newDouble(t)
	s := start(t, d, func(c *Config) { c.Vault = sealedBy(t, 1) })
	define(t, s, definition("widgets", "Widget", apiextensionsv1.NamespaceScoped))
	ns := s.namespace(t)
	client := dynamicClient(t, s)
	v1 := client.Resource(schema.GroupVersionResource{Group: "custom.example.com", Version: "v1", Resource: "widgets"}).Namespace(ns)
	w := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "custom.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"},
		"spec": map[string]any{}, "status": map[string]any{"word": word},
	}}
	made, err := v1.Create(t.Context(), w, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Object["status"] = map[string]any{"word": word}
	if made, err = v1.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if again, err := v1.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil || again.GetResourceVersion() != made.GetResourceVersion() {
		t.Errorf("the same was stored again: %v", err)
	}
	if tells(t, d, word) {
		t.Error("the state tells")
	}
	list, err := client.Resource(schema.GroupVersionResource{Group: "custom.example.com", Version: "v1beta1", Resource: "widgets"}).Namespace(ns).
		List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v: %v", list, err)
	}
	if got, _, _ := unstructured.NestedString(list.Items[0].Object, "status", "word"); got != word {
		t.Errorf("listed: %v", list.Items[0].Object)
	}
}
