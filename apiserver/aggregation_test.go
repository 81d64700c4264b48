package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	restclient "k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/berth-dev/berth/apiserver/roles"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
)

// flunders serves a group of the API as another server does, and tells who asks.
func flunders(t *testing.T) *httptest.Server {
	t.Helper()
	ca, err := authority()
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(ca.CertPEM())
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, o any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(o) // who asks may be gone
	}
	mux.HandleFunc("GET /apis/wardle.test/v1", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "wardle.test/v1",
			APIResources: []metav1.APIResource{{Name: "flunders", SingularName: "flunder", Kind: "Flunder", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}}},
		})
	})
	mux.HandleFunc("GET /openapi/v3/apis/wardle.test/v1", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"openapi": "3.0.0", "info": map[string]any{"title": "wardle", "version": "v1"}})
	})
	mux.HandleFunc("GET /apis/wardle.test/v1/namespaces/default/flunders", func(w http.ResponseWriter, r *http.Request) {
		answer(w, map[string]any{
			"by": r.TLS.PeerCertificates[0].Subject.CommonName, "user": r.Header.Values("X-Remote-User"), "groups": r.Header.Values("X-Remote-Group"),
			"token": r.Header.Get("Authorization"), "query": r.URL.RawQuery, "extra": r.Header.Get("X-Remote-Extra-Spoofed"),
			"alias": r.Header.Get("X_Remote_User"),
		})
	})
	s := httptest.NewUnstartedServer(mux)
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// behind makes a service and what is behind it, as controllers would.
func (s *testServer) behind(t *testing.T, name string, at *httptest.Server) {
	t.Helper()
	host, port, err := net.SplitHostPort(at.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	meta := func(kind string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(kind + name)}
	}
	for resource, o := range map[string]codec.Object{
		"services":  &corev1.Service{ObjectMeta: meta("s"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}},
		"endpoints": &corev1.Endpoints{ObjectMeta: meta("e"), Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: host}}, Ports: []corev1.EndpointPort{{Port: int32(number)}}}}},
	} {
		raw, err := o.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		s.double.must(t, &fsm.PutObject{Resource: resource, Create: true, Raw: raw})
	}
}

func apiService(group, service string, at *httptest.Server) *apiregistrationv1.APIService {
	out := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1." + group},
		Spec:       apiregistrationv1.APIServiceSpec{Group: group, Version: "v1", GroupPriorityMinimum: 2000, VersionPriority: 200},
	}
	if service != "" {
		out.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "default", Name: service}
		out.Spec.InsecureSkipTLSVerify = at == nil
	}
	return out
}

// TestAggregation: what an APIService names is served by those behind its service, who are told who asks by a
// certificate of this server; and it is there for whoever looks around, as long as it is.
func TestAggregation(t *testing.T) {
	ca, err := authority()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(time.Now(), pki.Request{Kind: pki.Server, Name: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	d := newDouble(t)
	n := 0
	commands, err := roles.Reconcile(d.View(), true, func(o *metav1.ObjectMeta) { n++; o.UID = types.UID(fmt.Sprint("role-", n)) })
	if err != nil {
		t.Fatal(err)
	}
	d.must(t, commands...)
	s := start(t, d, func(c *Config) {
		c.ProxyCertificate = func() (cert, key []byte) { return pair.CertPEM, pair.KeyPEM }
	})
	ctx := t.Context()
	other := flunders(t)
	s.behind(t, "wardle", other)
	root, err := aggregatorclient.NewForConfig(s.config(t, "root", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	wanted := apiService("wardle.test", "wardle", nil)
	made, err := root.APIServices().Create(ctx, wanted, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := s.config(t, "root", "system:masters", "people")
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper { return spoofing{next} }
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	flundersPath := "https://" + s.Addr().String() + "/apis/wardle.test/v1/namespaces/default/flunders"
	if code, body := get(t, client, flundersPath); code != 503 || !strings.Contains(body, "it was not looked at yet") {
		t.Errorf("before it is available: %d %s", code, body)
	}
	// As the leader's controller says it.
	made.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, Reason: "Passed", LastTransitionTime: metav1.Now()}}
	if made, err = root.APIServices().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Its certificate is not signed by anybody known here.
	made.Spec.InsecureSkipTLSVerify = false
	if made, err = root.APIServices().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, body := get(t, client, flundersPath); code != 503 || !strings.Contains(body, "was not reached") {
		t.Errorf("by a certificate of somebody else's: %d %s", code, body)
	}
	made.Spec.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw})
	made.Spec.InsecureSkipTLSVerify = false
	if _, err = root.APIServices().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, body := get(t, client, flundersPath); code != 503 || !strings.Contains(body, "not valid for") && !strings.Contains(body, "was not reached") {
		t.Errorf("by a certificate of another name: %d %s", code, body)
	}
	if made, err = root.APIServices().Get(ctx, made.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	made.Spec.CABundle, made.Spec.InsecureSkipTLSVerify = nil, true
	if _, err = root.APIServices().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	code, body := get(t, client, flundersPath+"?limit=5")
	want := `{"alias":"","by":"berth:server:s1","extra":"","groups":["people","system:masters","system:authenticated"],"query":"limit=5","token":"","user":["root"]}`
	if code != 200 || strings.TrimSpace(body) != want {
		t.Errorf("it is asked: %d %s", code, body)
	}
	if code, body := get(t, client, flundersPath+"/%2e%2e/%2E%2e/other/flunders"); code != 400 || !strings.Contains(body, "what is asked for must be what is handed on") {
		t.Errorf("by a path that leads elsewhere: %d %s", code, body)
	}
	ann, err := restclient.HTTPClientFor(s.config(t, "ann", "people"))
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := get(t, ann, flundersPath); code != 403 {
		t.Errorf("who may not is handed on: %d", code)
	}
	if code, body := get(t, client, "https://"+s.Addr().String()+"/openapi/v3/apis/wardle.test/v1"); code != 200 || !strings.Contains(body, `"title":"wardle"`) {
		t.Errorf("its description: %d %s", code, body)
	}
	if code, body := get(t, client, "https://"+s.Addr().String()+"/openapi/v3"); code != 200 || !strings.Contains(body, `"apis/wardle.test/v1"`) {
		t.Errorf("the descriptions: %d %.300s", code, body)
	}
	discovery := s.client(t).Discovery()
	eventually(t, "discovery to know it", func() bool {
		_, lists, err := discovery.ServerGroupsAndResources()
		return err == nil && strings.Contains(fmt.Sprint(lists), "flunders")
	})
	if err := root.APIServices().Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, _ := get(t, client, flundersPath); code != 404 {
		t.Errorf("when it is gone: %d", code)
	}
	eventually(t, "discovery to forget it", func() bool {
		groups, err := discovery.ServerGroups()
		return err == nil && !strings.Contains(fmt.Sprint(groups), "wardle")
	})
}

// spoofing says that somebody else asks.
type spoofing struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s spoofing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Remote-User", "berth:server:s1")
	r.Header.Set("X-Remote-Group", "system:everything")
	r.Header.Set("X-Remote-Extra-Spoofed", "yes")
	r.Header["X_Remote_User"] = []string{"berth:server:s1"}
	return s.next.RoundTrip(r)
}

// TestAPIServicesOfBerthsOwn: nobody serves what Berth goes by, but metrics may come from elsewhere.
func TestAPIServicesOfBerthsOwn(t *testing.T) {
	s := share(t)
	root, err := aggregatorclient.NewForConfig(s.config(t, "root", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	_, err = root.APIServices().Create(ctx, apiService("apps", "wardle", nil), metav1.CreateOptions{})
	wantStatus(t, err, 422, `spec.service: Forbidden: Berth serves the group "apps" itself`)
	local, err := root.APIServices().Create(ctx, apiService("apps", "", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.APIServices().Delete(ctx, local.Name, metav1.DeleteOptions{}) }()
	if c := local.Status.Conditions; len(c) != 1 || c[0].Reason != "Local" {
		t.Errorf("a local one has %v", c)
	}
	local.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "default", Name: "x"}
	_, err = root.APIServices().Update(ctx, local, metav1.UpdateOptions{})
	wantStatus(t, err, 422, "spec.service: Forbidden")
	if _, err := s.client(t).AppsV1().Deployments("default").List(ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	long := apiService("long.test", "x", nil)
	long.Spec.InsecureSkipTLSVerify, long.Spec.CABundle = false, make([]byte, maxCABundle+1)
	_, err = root.APIServices().Create(ctx, long, metav1.CreateOptions{})
	wantStatus(t, err, 422, "spec.caBundle: Too long")
	metrics := apiService("metrics.k8s.io", "x", nil)
	metrics.Name, metrics.Spec.Version = "v1beta1.metrics.k8s.io", "v1beta1"
	if _, err := root.APIServices().Create(ctx, metrics, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Error(err)
	}
}
