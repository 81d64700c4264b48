package probes

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// to is an action that asks a server.
func to(t *testing.T, s *httptest.Server, path string, headers ...corev1.HTTPHeader) *corev1.HTTPGetAction {
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.HTTPGetAction{Host: host, Port: intstr.FromInt(n), Path: path, Scheme: corev1.URIScheme(strings.ToUpper(u.Scheme)), HTTPHeaders: headers}
}

func TestRedirects(t *testing.T) {
	elsewhere := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away": // the same address by another name
			http.Redirect(w, r, strings.Replace(other.URL, "127.0.0.1", "localhost", 1), http.StatusFound)
		case "/here":
			http.Redirect(w, r, "/ill", http.StatusFound)
		case "/ill":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		}
	}))
	defer s.Close()
	for path, want := range map[string]struct{ warning, failure string }{
		"/":      {},
		"/away":  {warning: "Probe terminated redirects"},
		"/here":  {failure: "HTTP probe failed with statuscode: 503"},
		"/round": {failure: "stopped after 10 redirects"},
	} {
		warning, failure, err := new(HTTP).Probe(t.Context(), to(t, s, path), &corev1.Container{}, "")
		if err != nil || !strings.Contains(warning, want.warning) || !strings.Contains(failure, want.failure) ||
			(warning == "") != (want.warning == "") || (failure == "") != (want.failure == "") {
			t.Errorf("%s: warning %q, failure %q, %v", path, warning, failure, err)
		}
	}
	if elsewhere != 0 {
		t.Error("another host was asked")
	}
}

func TestHeaders(t *testing.T) {
	var got http.Header
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() }))
	defer s.Close()
	h := new(HTTP)
	probe := func(headers ...corev1.HTTPHeader) {
		t.Helper()
		if _, failure, err := h.Probe(t.Context(), to(t, s, "/", headers...), &corev1.Container{}, ""); failure != "" || err != nil {
			t.Fatal(failure, err)
		}
	}
	check := func(agent, accept string) {
		t.Helper()
		if got.Get("User-Agent") != agent || got.Get("Accept") != accept || got.Get("Accept-Encoding") != "" {
			t.Errorf("headers %v", got)
		}
	}
	probe()
	check("kube-probe/1.36", "*/*")
	probe(corev1.HTTPHeader{Name: "user-agent", Value: "mine"}, corev1.HTTPHeader{Name: "accept", Value: "text/html"})
	check("mine", "text/html")
	probe(corev1.HTTPHeader{Name: "Accept", Value: ""})
	check("kube-probe/1.36", "")
	if plain, err := h.Hook(t.Context(), to(t, s, "/"), &corev1.Container{}, ""); plain || err != nil {
		t.Fatal(plain, err)
	}
	check("kube-lifecycle/1.36", "*/*")
}

// Any answer to a hook is a good one, and one that is made over TLS to who does not speak it is made without.
func TestHooks(t *testing.T) {
	var authorized string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorized = r.Header.Get("Authorization")
		w.WriteHeader(http.StatusTeapot)
	}))
	get := to(t, s, "/", corev1.HTTPHeader{Name: "Authorization", Value: "secret"})
	if plain, err := new(HTTP).Hook(t.Context(), get, &corev1.Container{}, ""); plain || err != nil || authorized != "secret" {
		t.Errorf("plain %v, %v, authorized by %q", plain, err, authorized)
	}
	get.Scheme = corev1.URISchemeHTTPS
	if plain, err := new(HTTP).Hook(t.Context(), get, &corev1.Container{}, ""); !plain || err != nil || authorized != "" {
		t.Errorf("plain %v, %v, authorized by %q", plain, err, authorized)
	}
	s.Close()
	if plain, err := new(HTTP).Hook(t.Context(), get, &corev1.Container{}, ""); plain || err == nil {
		t.Errorf("of nobody: plain %v, %v", plain, err)
	}
}
