// Package issuertest is an issuer of web tokens for tests: it serves its discovery and its
// keys, and signs what it is told. Nothing but tests may import it.
package issuertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
)

// Issuer is one that listens.
type Issuer struct {
	t      testing.TB
	server *httptest.Server

	mu    sync.Mutex
	id    string
	key   *ecdsa.PrivateKey
	made  int // keys
	asked int
	away  bool
}

// Start starts an issuer that ends with the test.
func Start(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{t: t}
	i.Rotate()
	i.server = httptest.NewTLSServer(i)
	t.Cleanup(i.server.Close)
	return i
}

// URL is the issuer's name, CA the PEM of who vouches for it.
func (i *Issuer) URL() string { return i.server.URL }

// CA is the PEM of the certificate that it has.
func (i *Issuer) CA() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.server.Certificate().Raw}))
}

// Asked is how often somebody wanted to have its keys.
func (i *Issuer) Asked() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

// SetAway lets it answer nobody until it is back.
func (i *Issuer) SetAway(away bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.away = away
}

// Rotate gives it another key.
func (i *Issuer) Rotate() {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.made++
	i.key, i.id = key, fmt.Sprint("key-", i.made)
}

// Token signs claims, for an hour where they do not say.
func (i *Issuer) Token(claims map[string]any) string {
	i.t.Helper()
	all := map[string]any{"iss": i.URL(), "exp": jwt.NewNumericDate(time.Now().Add(time.Hour))}
	for k, v := range claims {
		all[k] = v
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: i.id}}, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(all).CompactSerialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return token
}

// ServeHTTP implements http.Handler.
func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.away {
		http.Error(w, "away", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{ // who has gone does not want it
			"issuer": i.server.URL, "jwks_uri": i.server.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"},
		})
	case "/keys":
		i.asked++
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &i.key.PublicKey, KeyID: i.id, Algorithm: "ES256", Use: "sig"}}})
	default:
		http.NotFound(w, r)
	}
}
