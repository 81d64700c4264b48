package apiserver

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/proxy"
)

// upgrading says itself what it answers to whoever wants its connection taken over, and notes how much of it was taken.
func upgrading(t *testing.T, secured bool, answer func(w io.Writer)) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		answer(conn)
		_ = conn.Close()
	}))
	if secured {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// TestProxiedHead: what was taken over may be as long as it likes, and its head may not.
func TestProxiedHead(t *testing.T) {
	const long = 4 * proxyHeadBytes
	for _, secured := range []bool{false, true} {
		for name, tt := range map[string]struct {
			answer func(w io.Writer)
			want   int
		}{
			"a long stream": {func(w io.Writer) {
				_, _ = io.WriteString(w, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"+strings.Repeat("x", long))
			}, http.StatusSwitchingProtocols},
			"a refusal": {func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno") }, http.StatusForbidden},
			"an endless head": {func(w io.Writer) {
				_, err := io.WriteString(w, "HTTP/1.1 101 Switching Protocols\r\n")
				for i := 0; err == nil; i++ {
					_, err = fmt.Fprintf(w, "A%d: %s\r\n", i, strings.Repeat("x", 1000))
				}
			}, http.StatusBadGateway},
		} {
			t.Run(fmt.Sprintf("%s, TLS %t", name, secured), func(t *testing.T) {
				location, err := url.Parse(upgrading(t, secured, tt.answer).URL)
				if err != nil {
					t.Fatal(err)
				}
				front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					to := &http.Transport{DialContext: new(net.Dialer).DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
					w = boundHead(to, w)
					proxy.NewUpgradeAwareHandler(location, to, true, false, badGateway{}).ServeHTTP(w, r)
				}))
				defer front.Close()
				conn, err := net.Dial("tcp", front.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				in := bufio.NewReader(conn)
				answer, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				if answer.StatusCode != tt.want {
					t.Errorf("%s", answer.Status)
				}
				if tt.want == http.StatusSwitchingProtocols {
					if n, err := io.Copy(io.Discard, in); n != long || err != nil {
						t.Errorf("%d bytes, %v", n, err)
					}
				}
			})
		}
	}
}

type badGateway struct{}

// Error implements proxy.ErrorResponder.
func (badGateway) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusBadGateway)
}
