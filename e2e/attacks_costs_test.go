package e2e

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// meanwhile does something while somebody else asks for his pod again and again, who is always answered.
func (a *attacked) meanwhile(t *testing.T, do func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pods := a.Reader().Kube.CoreV1().Pods(a.ns)
	asked := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			once, end := context.WithTimeout(t.Context(), patience)
			_, err := pods.Get(once, "bystander", metav1.GetOptions{})
			end()
			if err != nil {
				asked <- err
				return
			}
		}
		asked <- nil
	}()
	do()
	cancel()
	if err := <-asked; err != nil {
		t.Errorf("meanwhile a bystander is told: %v", err)
	}
}

// Bodies that cost far more than their bytes.
func (a *attacked) costlyBodies(t *testing.T) {
	ines, ns := a.editor(t, "ines")
	a.berth(t, "create", "rolebinding", "ines-admin", "--clusterrole=admin", "--user=ines", "-n", ns)
	a.berth(t, "create", "clusterrolebinding", "ines-status", "--clusterrole=berth:status", "--user=ines")
	list := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	names := "[" + list(200, `"n%d"`) + "]"
	const maps, rbac = "/api/v1/namespaces/%s/configmaps", "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/roles"
	configMap := func(data string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"costly"},"data":{` + data + `}}`
	}
	long := strings.Repeat("a,", 1_400_000)
	for _, one := range []struct {
		what, verb, path, contentType, body string
		want                                int
	}{
		{"150,000 keys", http.MethodPost, fmt.Sprintf(maps, ns), "application/json", configMap(list(150_000, `"k%d":""`)), http.StatusRequestEntityTooLarge},
		{"12,500 bad keys", http.MethodPost, fmt.Sprintf(maps, ns), "application/json", configMap(list(12_500, `"a/%d":""`)), http.StatusUnprocessableEntity},
		{"a strategic merge of 12,500 finalizers", http.MethodPatch, fmt.Sprintf(maps, ns) + "/kube-root-ca.crt", "application/strategic-merge-patch+json",
			`{"metadata":{"finalizers":[` + list(12_500, `"a.b/c%d"`) + `]}}`, http.StatusRequestEntityTooLarge},
		{"a role of 200 to the fourth", http.MethodPost, fmt.Sprintf(rbac, ns), "application/json",
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"costly"},"rules":[{"verbs":` + names + `,"apiGroups":` + names + `,"resources":` + names + `,"resourceNames":` + names + `}]}`, http.StatusUnprocessableEntity},
		{"a review of a long selector", http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "application/json",
			`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"rawSelector":"` + long + `a"}}}}`, http.StatusUnprocessableEntity},
		{"a plan of 900,000 pods", http.MethodPost, "/apis/berth.dev/v1/plans", "application/json",
			`{"apiVersion":"berth.dev/v1","kind":"Plan","spec":{"pods":[` + strings.TrimSuffix(strings.Repeat("{},", 900_000), ",") + `]}}`, http.StatusRequestEntityTooLarge},
	} {
		a.meanwhile(t, func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			status := 0
			r := ines.Discovery().RESTClient().Verb(one.verb).RequestURI(one.path).SetHeader("Content-Type", one.contentType).Body([]byte(one.body)).MaxRetries(0)
			if err := r.Do(ctx).StatusCode(&status).Error(); status != one.want {
				t.Errorf("%s is answered %d, not %d: %.200v", one.what, status, one.want, err)
			}
		})
	}
}

// A node's key that was stolen takes neither all places for requests for certificates nor everybody's events.
func (a *attacked) nodeTakesAll(t *testing.T) {
	const user = "system:node:w3"
	node := a.userOf(t, a.waitLeader(t), user, "system:nodes")
	request, _ := requestFor(t, pkix.Name{CommonName: user, Organization: []string{"system:nodes"}}, certificatesv1.KubeAPIServerClientKubeletSignerName,
		certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth)
	request.GenerateName = "w3-"
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "w3.", Namespace: metav1.NamespaceDefault}, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "w3"},
		Reason: "Flood", Type: corev1.EventTypeNormal, Source: corev1.EventSource{Component: "kubelet", Host: "w3"},
	}
	// Many at a time, none of which comes again by itself.
	floods := func(what, told string, create func() error) {
		t.Helper()
		a.meanwhile(t, func() {
			const writers, each = 8, 5000
			ends := make(chan error, writers)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for range writers {
				go func() {
					var err error
					for i := 0; i < each && err == nil && ctx.Err() == nil; i++ {
						err = create()
					}
					cancel() // the others need not go on
					ends <- err
				}()
			}
			refused := false
			for range writers {
				switch err := <-ends; {
				case apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), told):
					refused = true
				case err != nil:
					t.Errorf("%s: %v", what, err)
				}
			}
			if !refused {
				t.Errorf("%d %s are taken", writers*each, what)
			}
		})
	}
	floods("requests for certificates", "as many as one may have", func() error {
		return node.CertificatesV1().RESTClient().Post().Resource("certificatesigningrequests").Body(request.DeepCopy()).MaxRetries(0).Do(t.Context()).Error()
	})
	floods("events", "has written", func() error {
		return node.CoreV1().RESTClient().Post().Namespace(event.Namespace).Resource("events").Body(event.DeepCopy()).MaxRetries(0).Do(t.Context()).Error()
	})
	other := event.DeepCopy()
	other.InvolvedObject = corev1.ObjectReference{Kind: "Pod", Namespace: a.ns, Name: "bystander"}
	other.Namespace, other.Source = a.ns, corev1.EventSource{Component: "somebody"}
	if _, err := a.Reader().Kube.CoreV1().Events(a.ns).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Errorf("somebody else's event: %v", err)
	}
}

// Selectors of who shows nothing are not read.
func (a *attacked) selectorsWithoutCredentials(t *testing.T) {
	selector := func(bytes int) string {
		var b strings.Builder
		for i := 0; b.Len() < bytes-16; i++ {
			fmt.Fprintf(&b, "k%d!=v,", i)
		}
		return url.QueryEscape(strings.TrimSuffix(b.String(), ","))
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: a.tls(t)}, Timeout: patience}
	defer client.CloseIdleConnections()
	leader := a.waitLeader(t)
	a.meanwhile(t, func() {
		for bytes, want := range map[int]int{16 << 10: http.StatusUnauthorized, 17 << 10: http.StatusBadRequest} {
			path := "https://" + leader.HTTP() + "/api/v1/pods?labelSelector=" + selector(bytes)
			for range 200 {
				if status, err := statusOf(t, client, http.MethodGet, path, "", nil); err != nil || status != want {
					t.Fatalf("a selector of %d bytes is answered %d, not %d: %v", bytes, status, want, err)
				}
			}
		}
	})
}
