package e2e

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// farSecret is by what a server shows a far who it is.
const farSecret = "what-the-servers-show"

// far is somebody elsewhere whom servers ask by HTTPS: he answers, hangs, or is not there.
type far struct {
	*httptest.Server
	answer http.HandlerFunc

	mu    sync.Mutex
	away  bool
	hangs chan struct{} // nil, or closed when those who wait may go
	waits int           // who wait for that, or have
}

// newFar starts one that answers, and ends with the test.
func newFar(t *testing.T, answer http.HandlerFunc) *far {
	t.Helper()
	f := &far{answer: answer}
	f.Server = httptest.NewTLSServer(f)
	t.Cleanup(func() {
		f.back()
		f.Close()
	})
	return f
}

// ServeHTTP implements http.Handler. Whoever had to wait for an answer gets none.
func (f *far) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	away, hangs := f.away, f.hangs
	if hangs != nil {
		f.waits++
	}
	f.mu.Unlock()
	if hangs != nil {
		select {
		case <-hangs:
		case <-r.Context().Done():
		}
	}
	if away || hangs != nil {
		panic(http.ErrAbortHandler) // the connection ends
	}
	f.answer(w, r)
}

// gone lets nobody have an answer until he is back.
func (f *far) gone() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = true
}

// hang lets everybody wait until he is back.
func (f *far) hang() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hangs == nil {
		f.hangs = make(chan struct{})
	}
}

// waited says whether somebody has waited for him in vain.
func (f *far) waited() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waits > 0
}

// back lets him answer again.
func (f *far) back() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hangs != nil {
		close(f.hangs)
	}
	f.away, f.hangs = false, nil
}

func (f *far) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})
}

// kubeconfig is a file by which a server comes to a path of his, with farSecret.
func (f *far) kubeconfig(t *testing.T, path string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: far, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: us, user: {token: %s}}]
contexts: [{name: far, context: {cluster: far, user: us}}]
current-context: far
`, f.URL+path, base64.StdEncoding.EncodeToString(f.ca()), farSecret)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// admits is how a server asks him, at a path, about what is written.
func (f *far) admits(path string) admissionv1.WebhookClientConfig {
	url := f.URL + path
	return admissionv1.WebhookClientConfig{URL: &url, CABundle: f.ca()}
}

// exchange reads what a server asks, lets f fill in the answer, and writes it. What is none is answered with 400.
func exchange[T any](w http.ResponseWriter, r *http.Request, f func(*T) bool) {
	asked := new(T)
	if err := json.NewDecoder(r.Body).Decode(asked); err != nil || !f(asked) {
		http.Error(w, "it is nothing that is answered here", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(asked) // the server may be gone
}
