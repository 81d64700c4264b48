package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/pki"
)

func httpClient(t testing.TB, c *restclient.Config) *http.Client {
	t.Helper()
	client, err := restclient.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func get(t testing.TB, client *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestWhoMay(t *testing.T) {
	s := start(t, newDouble(t), func(c *Config) {
		c.Handlers = map[string]http.Handler{
			"/berth/v1/members": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "members") }),
			"/berth/v1/raft/":   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) }),
			"/metrics":          http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "our metrics") }),
		}
	})
	base := "https://" + s.Addr().String()
	anonymous, known := httpClient(t, s.anonymous()), httpClient(t, s.config(t, "ann"))
	robot := s.anonymous()
	robot.BearerToken = "secret-of-robot"
	stranger := s.anonymous()
	stranger.BearerToken = "guess"
	for _, c := range []struct {
		path      string
		anonymous int
		known     int
		body      string
	}{
		{"/healthz", 200, 200, "ok"},
		{"/livez", 200, 200, "ok"},
		{"/readyz", 200, 200, "ok"},
		{"/version", 200, 200, `"gitVersion": "v1.36.3"`},
		{"/api/v1/namespaces", 401, 200, "NamespaceList"},
		{"/apis", 401, 200, "berth.dev"},
		{"/openapi/v2", 401, 200, "dev.berth.v1.QueueEntry"},
		{"/berth/v1/members", 401, 200, "members"},
		{"/berth/v1/raft/servers/x", 401, 200, "/berth/v1/raft/servers/x"},
		{"/metrics", 401, 200, "our metrics"},
		{"/healthz/../api/v1/pods", 401, 404, ""},
	} {
		if code, _ := get(t, anonymous, base+c.path); code != c.anonymous {
			t.Errorf("anonymous %s: %d, want %d", c.path, code, c.anonymous)
		}
		code, body := get(t, known, base+c.path)
		if code != c.known || !strings.Contains(body, c.body) {
			t.Errorf("known %s: %d %.100q, want %d with %q", c.path, code, body, c.known, c.body)
		}
	}
	if code, _ := get(t, httpClient(t, robot), base+"/api/v1/pods"); code != 200 {
		t.Errorf("token: %d", code)
	}
	if code, _ := get(t, httpClient(t, stranger), base+"/api/v1/pods"); code != 401 {
		t.Errorf("wrong token: %d", code)
	}
	if code, _ := get(t, httpClient(t, stranger), base+"/healthz"); code != 401 {
		t.Errorf("wrong token where none is needed: %d", code)
	}
}

// TestWhoProposes: the user and the groups of a request stand in its entry.
func TestWhoProposes(t *testing.T) {
	d := newDouble(t)
	s := start(t, d, nil)
	robot := s.anonymous()
	robot.BearerToken = "secret-of-robot"
	for user, config := range map[string]*restclient.Config{"bob": s.config(t, "bob", "people"), "robot": robot} {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Pods("default").Create(context.Background(), testPod(user), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if users := d.proposers(); users[len(users)-1] != user {
			t.Errorf("%q proposed, want %q", users[len(users)-1], user)
		}
	}
}

// TestStrangers: a certificate of another CA fails in the handshake, one that
// speaks for nobody is refused.
func TestStrangers(t *testing.T) {
	s := share(t)
	other, err := pki.NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := other.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.caPEM)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: pki.ServerDNSName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil },
	}}}
	defer client.CloseIdleConnections()
	if resp, err := client.Get("https://" + s.Addr().String() + "/api/v1/pods"); err == nil {
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Fatalf("a stranger got %d", resp.StatusCode)
		}
	}
}

// TestOwnCertificate: without TLS configured it is HTTPS all the same.
func TestOwnCertificate(t *testing.T) {
	s := start(t, newDouble(t), func(c *Config) { c.TLS = nil })
	config := &restclient.Config{Host: "https://" + s.Addr().String(), BearerToken: "secret-of-robot", TLSClientConfig: restclient.TLSClientConfig{Insecure: true}}
	code, body := get(t, httpClient(t, config), config.Host+"/api/v1/namespaces/default")
	var ns struct{ Metadata struct{ Name string } }
	if err := json.Unmarshal([]byte(body), &ns); code != 200 || err != nil || ns.Metadata.Name != "default" {
		t.Fatalf("got %d %s", code, body)
	}
}

// TestDiscovery: what is served, with its verbs and short names.
func TestDiscovery(t *testing.T) {
	s := share(t)
	lists, err := s.client(t).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string][]string{}
	for _, l := range lists {
		for _, r := range l.APIResources {
			verbs[r.Name] = r.Verbs
		}
	}
	all := []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	for resource, want := range map[string][]string{
		"pods": all, "nodes": all, "events": all, "configmaps": all, "leases": all, "priorityclasses": all,
		"queueentries": {"get", "list", "watch"}, "preemptions": {"get", "list", "watch"},
		"plans": {"create"}, "schedulerconfigurations": {"get", "list", "patch", "update", "watch"},
	} {
		got := slices.Clone(verbs[resource])
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", resource, got, want)
		}
	}
}

// TestImpersonation: who is not an administrator acts as nobody else, or AD5
// would mean nothing.
func TestImpersonation(t *testing.T) {
	s := share(t)
	as := func(c *restclient.Config) error {
		c.Impersonate = restclient.ImpersonationConfig{UserName: "bob"}
		client, err := kubernetes.NewForConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Namespaces().List(context.Background(), metav1.ListOptions{})
		return err
	}
	wantStatus(t, as(s.config(t, "ann", "people")), 403, "only members of system:masters may act as somebody else")
	if err := as(s.config(t, "root", "system:masters")); err != nil {
		t.Fatal(err)
	}
}
