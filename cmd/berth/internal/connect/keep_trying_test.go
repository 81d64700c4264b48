package connect

import (
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// away is servers of which none can be reached, until they are back.
type away struct {
	err   error
	tries int
	back  int // at this try they are
	said  []string
}

func (a *away) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.tries++; a.tries < a.back || a.back == 0 {
		return nil, a.err
	}
	body, err := io.ReadAll(r.Body)
	a.said = append(a.said, string(body))
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}"))}, err
}

// TestKeepTryingWaitsForServers: who is told to keep trying goes on also where no server can be reached, says so once, and asks for the same
// when one can. Nobody goes on where a server is not trusted, and without being told to.
func TestKeepTryingWaitsForServers(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, tt := range []struct {
		what    string
		insists bool
		err     error
		back    int
		told    int
		took    time.Duration
	}{
		{"kept trying", true, refused, 7, 1, 3 * anyAfter},
		{"not told to", false, refused, 7, 0, 0},
		{"not trusted", true, x509.UnknownAuthorityError{}, 7, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			next := &away{err: tt.err, back: tt.back}
			var told []string
			f := &failover{next: next, notice: func(text string) { told = append(told, text) }, answers: &answers{insists: tt.insists}}
			for _, host := range []string{"a", "b"} {
				f.targets = append(f.targets, &url.URL{Scheme: "https", Host: host})
			}
			r := httptest.NewRequest(http.MethodPost, "https://any/api/v1/pods", strings.NewReader("a pod"))
			began := time.Now()
			resp, err := f.RoundTrip(r)
			switch answered := err == nil; {
			case answered != (tt.took > 0), len(told) != tt.told, time.Since(began) != tt.took:
				t.Errorf("%s: %v after %s and %d tries; told was %q", tt.what, err, time.Since(began), next.tries, told)
			case answered && (len(next.said) != 1 || next.said[0] != "a pod"):
				t.Errorf("%s: asked was %q", tt.what, next.said)
			}
			if err == nil {
				_ = resp.Body.Close()
			}
		})
	}
}
