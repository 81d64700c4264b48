package apiserver

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// proxied asks through the API for what a pod says.
func proxied(kube kubernetes.Interface, verb, ns, resource, name string, path ...string) (string, error) {
	b, err := kube.CoreV1().RESTClient().Verb(verb).Namespace(ns).Resource(resource).Name(name).SubResource("proxy").Suffix(path...).
		Param("q", "1").SetHeader("Content-Type", "text/plain").Body([]byte("said")).DoRaw(context.Background())
	return string(b), err
}

// TestProxy: requests go on to the pod, or to one that is behind the service, by any method, with path, query and body and without
// who asked.
func TestProxy(t *testing.T) {
	s := share(t)
	pods, ns, node := podsOn(t, s, "a", "crowded", "away", "waits", "here")
	kube := s.client(t)
	addresses := map[string]string{"a": "10.1.2.3", "crowded": "10.1.2.4", "away": "10.1.2.5", "here": "127.0.0.1"}
	for name, ip := range addresses {
		if err := bind(pods, name, node); err != nil {
			t.Fatal(err)
		}
		p, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Status.PodIP, p.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
		if _, err := pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "other", Port: 81}}}}
	if _, err := kube.CoreV1().Services(ns).Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	at := func(ip, pod string) corev1.EndpointAddress {
		return corev1.EndpointAddress{IP: ip, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: pod, Namespace: ns}}
	}
	// One address is no pod's, one is another pod's.
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: "10.9.9.9"}, at("10.9.9.8", "a"), at("10.1.2.3", "a")}, Ports: []corev1.EndpointPort{{Name: "http", Port: 8080}},
	}}}
	if _, err := kube.CoreV1().Endpoints(ns).Create(t.Context(), endpoints, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ verb, resource, name, path, want string }{
		{"GET", "pods", "a:8080", "x/y", `a 8080 GET /x/y?q=1 "said", authorization ""`},
		{"PUT", "pods", "http:a:90", "", `a 90 PUT /?q=1 "said", authorization ""`},
		{"DELETE", "pods", "a", "x", `a 80 DELETE /x?q=1 "said", authorization ""`},
		{"PUT", "pods", "crowded:1", "", `crowded 1 PUT /?q=1 "said", authorization ""`},
		{"POST", "services", "web:http", "x", `a 8080 POST /x?q=1 "said", authorization ""`},
		{"PATCH", "services", "http:web:80", "x", `a 8080 PATCH /x?q=1 "said", authorization ""`},
	} {
		got, err := proxied(kube, c.verb, ns, c.resource, c.name, c.path)
		if err != nil || got != c.want {
			t.Errorf("%s %s %s: %q, %v; want %q", c.verb, c.resource, c.name, got, err, c.want)
		}
	}
	for name, code := range map[string]int32{
		"pods/none": 404, "pods/a:b:c:d": 400, "pods/waits": 400, "pods/here:80": 400, "pods/away:80": 503, // not on loopback interfaces
		"services/none": 404, "services/web:82": 503, "services/web:other": 503,
	} {
		resource, name, _ := strings.Cut(name, "/")
		_, err := proxied(kube, "GET", ns, resource, name)
		wantStatus(t, err, code, "")
	}
	_, err := proxied(s.clientOf(t, "ann", "people"), "GET", "kube-system", "pods", "a")
	wantStatus(t, err, 403, "")
}
