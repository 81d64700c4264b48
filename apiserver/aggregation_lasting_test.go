package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
)

// serving has an API let somebody else serve the group wardle.test.
func serving(t *testing.T, s *testServer, other http.HandlerFunc) {
	t.Helper()
	at := httptest.NewTLSServer(other)
	t.Cleanup(at.Close)
	s.behind(t, "wardle", at)
	root, err := aggregatorclient.NewForConfig(s.config(t, "root", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	made, err := root.APIServices().Create(t.Context(), apiService("wardle.test", "wardle", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, Reason: "Passed", LastTransitionTime: metav1.Now()}}
	if _, err = root.APIServices().UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A connection that is taken over for the server of an APIService takes nobody's seat, and ends with the right to it.
func TestConnectionsTakenOverForOthersEndWithTheRight(t *testing.T) {
	s, root := withRolesAnd(t, func(c *Config) { c.MaxRequests = 16 })
	serving(t, s, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			http.NotFound(w, r)
			return
		}
		conn, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = io.Copy(io.Discard, in) // until it is ended
		_ = conn.Close()
	})
	if err := grant(t, root, "console", "ann", rule("get", "wardle.test", "flunders/console")); err != nil {
		t.Fatal(err)
	}
	config, err := restclient.TLSConfigFor(s.config(t, "ann"))
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"http/1.1"}
	var consoles []*bufio.Reader
	for range 3 * leastShare {
		conn, err := tls.Dial("tcp", s.Addr().String(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, err = io.WriteString(conn, "GET /apis/wardle.test/v1/namespaces/team/flunders/f/console HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(conn)
		answer, err := http.ReadResponse(in, nil)
		if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("console %d: %v, %v", len(consoles)+1, answer, err)
		}
		consoles = append(consoles, in)
	}
	if err := whoAmI(t.Context(), s.clientOf(t, "ann")); err != nil {
		t.Errorf("beside her consoles: %v", err)
	}
	if err := root.RbacV1().RoleBindings("team").Delete(t.Context(), "console", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, in := range consoles {
		if _, err := in.ReadByte(); err == nil {
			t.Error("a console says something")
		}
	}
}

// What others answer to a part of the process is bounded, since it is kept; what Berth answers is not.
func TestWhatOthersAnswerToThisProcessIsBounded(t *testing.T) {
	s := start(t, newDouble(t), nil)
	serving(t, s, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		n := maxLocalAnswer
		if strings.HasSuffix(r.URL.Path, "/long") {
			n++
		}
		_, _ = w.Write(make([]byte, n))
	})
	client := &http.Client{Transport: s.Local("berth:test", "system:masters")}
	for name, long := range map[string]bool{"short": false, "long": true} {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://local/apis/wardle.test/v1/namespaces/default/flunders/"+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if (err != nil) != long {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if n, _ := io.Copy(io.Discard, answer.Body); n != maxLocalAnswer {
				t.Errorf("%d bytes", n)
			}
			_ = answer.Body.Close()
		}
	}
}
