package users

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// TestWhatAWebhookSays is told from that it says nothing, and is heard as far as it may be.
func TestWhatAWebhookSays(t *testing.T) {
	var sent atomic.Int64
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		switch review.Spec.Token {
		case "away":
			w.WriteHeader(http.StatusForbidden)
		case "endless":
			_, _ = io.WriteString(w, `{"kind":"`) // the server may be gone
			for some := strings.Repeat("x", 64<<10); ; {
				n, err := io.WriteString(w, some)
				if sent.Add(int64(n)); err != nil || sent.Load() > 256*maxFarBytes {
					return
				}
			}
		default:
			review.Status.Error = "it is nobody's"
			_ = json.NewEncoder(w).Encode(review) // likewise
		}
	}))
	defer hook.Close()
	u := open(t, Sources{Webhook: write(t, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: hook, cluster: {server: %s}}]
users: [{name: us}]
contexts: [{name: hook, context: {cluster: hook, user: us}}]
current-context: hook
`, hook.URL))})
	for token, away := range map[string]bool{"away": true, "none": false} {
		r := httptest.NewRequest(http.MethodGet, "/api", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		if _, ok, err := u.Tokens.AuthenticateRequest(r); ok || err == nil || errors.Is(err, ErrAway) != away {
			t.Errorf("%s: %v", token, err)
		}
	}
	if got := who(u, "endless"); !strings.HasPrefix(got, "error: ") || !strings.Contains(got, "the answer is too long") {
		t.Error(got)
	}
	if n := sent.Load(); n > 64*maxFarBytes {
		t.Errorf("it has sent %d bytes, and was not stopped", n)
	}
}
