package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/berth-dev/berth/agent/fleet"
)

// A server of somebody else's, that authenticates as all do that are written with Kubernetes' library, serves a group; every
// server of the cluster hands on to it, and says so when it is gone.
func TestAggregatedAPI(t *testing.T) {
	c := newCluster(t, server("s1", "bootstrap_expect = 3"), server("s2", "bootstrap_expect = 3"), server("s3", "bootstrap_expect = 3"))
	s := c.waitLeader(t)
	namespace := c.namespace(t, "wardle")
	other := wardle(t, c, s)
	c.serviceAt(t, s, namespace, other)
	services, err := aggregatorclient.NewForConfig(s.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	port := int32(443)
	if _, err := services.APIServices().Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1alpha1.wardle.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "wardle.example.com", Version: "v1alpha1", GroupPriorityMinimum: 2000, VersionPriority: 200, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: "api", Port: &port},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	condition := func(want apiregistrationv1.ConditionStatus) {
		t.Helper()
		c.eventually(t, "its condition to be "+string(want), func(ctx context.Context) error {
			o, err := services.APIServices().Get(ctx, "v1alpha1.wardle.example.com", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range o.Status.Conditions {
				if c.Type == apiregistrationv1.Available && c.Status == want {
					return nil
				}
			}
			return fmt.Errorf("it has %v", o.Status.Conditions)
		})
	}
	condition(apiregistrationv1.ConditionTrue)
	for _, p := range c.Servers() {
		c.eventually(t, p.Name+" to hand on", func(ctx context.Context) error {
			raw, err := p.Kube.Discovery().RESTClient().Get().AbsPath("/apis/wardle.example.com/v1alpha1/flunders").DoRaw(ctx)
			if err == nil && !strings.Contains(string(raw), "system:masters") {
				err = fmt.Errorf("it says %s", raw)
			}
			return err
		})
	}
	c.eventually(t, "kubectl to know the kind", func(context.Context) error {
		out := c.berth(t, "api-resources", "--api-group", "wardle.example.com")
		if !strings.Contains(out, "Flunder") {
			return errors.New(out)
		}
		return nil
	})
	other.Close()
	if err := s.Kube.DiscoveryV1().EndpointSlices(namespace).Delete(t.Context(), "api", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	condition(apiregistrationv1.ConditionFalse)
	_, err = s.Kube.Discovery().RESTClient().Get().AbsPath("/apis/wardle.example.com/v1alpha1/flunders").DoRaw(t.Context())
	if !apierrors.IsServiceUnavailable(err) {
		t.Errorf("when it is gone: %v", err)
	}
}

// wardle serves a group at an address of this machine, to whom the cluster says may say who asks.
func wardle(t *testing.T, c *cluster, s *fleet.Process) *httptest.Server {
	t.Helper()
	var data map[string]string
	c.eventually(t, "what others authenticate by", func(ctx context.Context) error {
		m, err := s.Kube.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if data = m.Data; strings.Count(data["requestheader-allowed-names"], "berth:server:") != 3 {
			return fmt.Errorf("it names %s", data["requestheader-allowed-names"])
		}
		return nil
	})
	list := func(key string) headerrequest.StringSliceProvider {
		var out []string
		if err := json.Unmarshal([]byte(data[key]), &out); err != nil {
			t.Fatal(key, err)
		}
		return headerrequest.StaticStringSlice(out)
	}
	ca, err := dynamiccertificates.NewStaticCAContent("cluster", []byte(data["requestheader-client-ca-file"]))
	if err != nil {
		t.Fatal(err)
	}
	who, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{RequestHeaderConfig: &authenticatorfactory.RequestHeaderConfig{
		UsernameHeaders: list("requestheader-username-headers"), UIDHeaders: list("requestheader-uid-headers"), GroupHeaders: list("requestheader-group-headers"),
		ExtraHeaderPrefixes: list("requestheader-extra-headers-prefix"), CAContentProvider: ca, AllowedClientNames: list("requestheader-allowed-names"),
	}}.New()
	if err != nil {
		t.Fatal(err)
	}
	out := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		is, ok, err := who.AuthenticateRequest(r)
		if err != nil || !ok {
			http.Error(w, fmt.Sprint("who are you? ", err), http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis/wardle.example.com/v1alpha1":
			_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
				TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "wardle.example.com/v1alpha1",
				APIResources: []metav1.APIResource{{Name: "flunders", SingularName: "flunder", Kind: "Flunder", Verbs: metav1.Verbs{"list"}}},
			})
		case "/apis/wardle.example.com/v1alpha1/flunders":
			_ = json.NewEncoder(w).Encode(map[string]any{"user": is.User.GetName(), "groups": is.User.GetGroups()})
		default:
			http.NotFound(w, r)
		}
	}))
	if out.Listener, err = net.Listen("tcp", net.JoinHostPort(ownAddress(t), "0")); err != nil {
		t.Fatal(err)
	}
	out.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	out.StartTLS()
	t.Cleanup(out.Close)
	return out
}

// ownAddress is one of this machine's that a service may have behind it: no loopback address.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	t.Skip("this machine has no address but loopback ones")
	return ""
}

// serviceAt makes the service api, with what is behind it.
func (c *cluster) serviceAt(t *testing.T, s *fleet.Process, namespace string, at *httptest.Server) {
	t.Helper()
	address := at.Listener.Addr().(*net.TCPAddr)
	port, name, ready, ctx := int32(address.Port), "", true, t.Context()
	if _, err := s.Kube.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "api"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Kube.CoreV1().Endpoints(namespace).Create(ctx, &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "api", Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}},
		Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: address.IP.String()}}, Ports: []corev1.EndpointPort{{Port: port}}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Kube.DiscoveryV1().EndpointSlices(namespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "api", Labels: map[string]string{discoveryv1.LabelServiceName: "api"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address.IP.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
