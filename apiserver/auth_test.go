package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/access"
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
	robot, stranger := s.anonymous(), s.anonymous()
	robot.BearerToken, stranger.BearerToken = "secret-of-robot", "guess"
	clients := []*http.Client{
		httpClient(t, s.anonymous()), httpClient(t, stranger), httpClient(t, s.configOf(t, pki.Request{Kind: pki.Worker, Name: "w1"})),
		httpClient(t, s.configOf(t, pki.Request{Kind: pki.Server, Name: "s2"})), httpClient(t, s.config(t, "ann", "people")),
		httpClient(t, robot), httpClient(t, s.config(t, "prometheus", "system:monitoring")),
		httpClient(t, s.config(t, "root", "system:masters")),
	}
	names := []string{"nobody", "a wrong token", "a worker", "a server", "a person", "a token", "monitoring", "an administrator"}
	for _, c := range []struct {
		path  string
		codes []int // in the order of clients
		body  string
	}{
		{"/healthz", []int{200, 401, 200, 200, 200, 200, 200, 200}, "ok"},
		{"/livez", []int{200, 401, 200, 200, 200, 200, 200, 200}, "ok"},
		{"/readyz", []int{200, 401, 200, 200, 200, 200, 200, 200}, "ok"},
		{"/version", []int{200, 401, 200, 200, 200, 200, 200, 200}, `"gitVersion": "v1.36.3"`},
		{"/api/v1/namespaces", []int{401, 401, 403, 403, 200, 200, 200, 200}, "NamespaceList"},
		{"/api/v1/pods", []int{401, 401, 403, 403, 200, 200, 200, 200}, "PodList"},
		{"/api/v1/secrets", []int{401, 401, 403, 403, 403, 403, 403, 200}, "SecretList"},
		{"/api/v1/namespaces/default/secrets?watch=true&timeoutSeconds=1", []int{401, 401, 403, 403, 403, 403, 403, 200}, ""},
		{"/apis", []int{401, 401, 403, 403, 200, 200, 200, 200}, "berth.dev"},
		{"/openapi/v2", []int{401, 401, 403, 403, 200, 200, 200, 200}, "dev.berth.v1.QueueEntry"},
		{"/openapi/v3", []int{401, 401, 403, 403, 200, 200, 200, 200}, "apis/berth.dev/v1"},
		{"/openapi/v3/apis/berth.dev/v1", []int{401, 401, 403, 403, 200, 200, 200, 200}, "dev.berth.v1.QueueEntry"},
		{"/berth/v1/members", []int{401, 401, 403, 403, 200, 200, 200, 200}, "members"},
		{"/berth/v1/raft/servers/x", []int{401, 401, 403, 403, 403, 403, 403, 200}, "/berth/v1/raft/servers/x"},
		{"/metrics", []int{401, 401, 403, 403, 403, 403, 200, 200}, "our metrics"},
		{"/healthz/../api/v1/pods", []int{401, 401, 403, 403, 403, 403, 200, 404}, ""},
	} {
		for i, client := range clients {
			code, body := get(t, client, base+c.path)
			if code == 404 && c.codes[i] == 200 && strings.Contains(c.path, "..") {
				continue // allowed below /healthz, where there is nothing
			}
			if code != c.codes[i] || code == 200 && !strings.Contains(body, c.body) {
				t.Errorf("%s, %s: %d %.100q, want %d with %q", names[i], c.path, code, body, c.codes[i], c.body)
			}
		}
	}
}

// TestRefusalsSayWho: a refusal has Kubernetes' words.
func TestRefusalsSayWho(t *testing.T) {
	s := share(t)
	ctx := context.Background()
	ann := s.clientOf(t, "ann", "people")
	_, err := ann.CoreV1().Secrets("default").Get(ctx, "x", metav1.GetOptions{})
	wantStatus(t, err, 403, `secrets "x" is forbidden: User "ann" cannot get resource "secrets" in API group "" in the namespace "default"`)
	_, err = ann.CoreV1().Pods("kube-system").Create(ctx, testPod("x"), metav1.CreateOptions{})
	wantStatus(t, err, 403, `User "ann" cannot create resource "pods" in API group "" in the namespace "kube-system"`)
	err = ann.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{})
	wantStatus(t, err, 403, `User "ann" cannot delete resource "nodes" in API group "" at the cluster scope`)
	worker, err := kubernetes.NewForConfig(s.configOf(t, pki.Request{Kind: pki.Worker, Name: "w1"}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = worker.CoreV1().Nodes().Get(ctx, "w1", metav1.GetOptions{})
	wantStatus(t, err, 403, `User "berth:worker:w1" cannot get resource "nodes" in API group "" at the cluster scope: the certificates of servers and workers`)
}

// TestSecretGuard: who may read no secret makes no pod that tells one.
func TestSecretGuard(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := context.Background()
	ann, root := s.clientOf(t, "ann", "people"), s.clientOf(t, "root", "system:masters")
	const refused = `it refers to the secret "keys", and User "ann" cannot get resource "secrets"`
	byVolume := func(spec *corev1.PodSpec) {
		spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}}}}
	}
	for name, change := range map[string]func(spec *corev1.PodSpec){
		"volume": byVolume,
		"projected": func(spec *corev1.PodSpec) {
			spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}}}},
			}}}}
		},
		"env": func(spec *corev1.PodSpec) {
			spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}, Key: "k",
			}}}}
		},
		"env from, of an init container": func(spec *corev1.PodSpec) {
			c := spec.Containers[0]
			c.Name = "first"
			c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}}}}
			spec.InitContainers = []corev1.Container{c}
		},
	} {
		p := testPod("told")
		change(&p.Spec)
		_, err := ann.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
		wantStatus(t, err, 403, refused)
		_, err = ann.AppsV1().ReplicaSets("default").Create(ctx, replicaSetOf(p.Spec), metav1.CreateOptions{})
		wantStatus(t, err, 403, refused)
		if _, err := root.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Errorf("%s: an administrator: %v", name, err)
		}
	}
	// What an administrator wrote keeps working in others' hands, unchanged.
	p := testPod("kept")
	byVolume(&p.Spec)
	kept, err := root.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kept.Labels = map[string]string{"seen": "yes"}
	if kept, err = ann.CoreV1().Pods("default").Update(ctx, kept, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	kept.Spec.Containers[0].Image = "another"
	_, err = ann.CoreV1().Pods("default").Update(ctx, kept, metav1.UpdateOptions{})
	wantStatus(t, err, 403, refused)
	rs, err := root.AppsV1().ReplicaSets("default").Create(ctx, replicaSetOf(p.Spec), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rs.Spec.Template.Spec.Containers[0].Command = []string{"cat", "/v/k"}
	_, err = ann.AppsV1().ReplicaSets("default").Update(ctx, rs, metav1.UpdateOptions{})
	wantStatus(t, err, 403, refused)
}

// TestRevisionGuard: nobody has a controller write another revision's template, which may ask for what he may not.
func TestRevisionGuard(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := context.Background()
	ann, root := s.clientOf(t, "ann", "people"), s.clientOf(t, "root", "system:masters")
	rs := replicaSetOf(testPod("told").Spec)
	d := &appsv1.Deployment{ObjectMeta: rs.ObjectMeta, Spec: appsv1.DeploymentSpec{Selector: rs.Spec.Selector, Template: rs.Spec.Template}}
	if _, err := ann.AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	back := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"1"}}}`, appsv1.DeprecatedRollbackTo)
	patch := func(c kubernetes.Interface) error {
		_, err := c.AppsV1().Deployments("default").Patch(ctx, d.Name, types.MergePatchType, back, metav1.PatchOptions{})
		return err
	}
	wantStatus(t, patch(ann), 403, "its controller would write a template that nobody is asked about")
	if err := patch(root); err != nil {
		t.Error(err)
	}
	d.Name, d.Annotations = "another", map[string]string{appsv1.DeprecatedRollbackTo: "0"}
	_, err := ann.AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{})
	wantStatus(t, err, 403, appsv1.DeprecatedRollbackTo)
	grantTo(t, root, "ann", rbacv1.PolicyRule{Verbs: []string{"create", "update"}, APIGroups: []string{"apps"}, Resources: []string{"statefulsets", "statefulsets/status"}})
	set := &appsv1.StatefulSet{ObjectMeta: rs.ObjectMeta, Spec: appsv1.StatefulSetSpec{Selector: rs.Spec.Selector, Template: rs.Spec.Template, ServiceName: "told"}}
	if set, err = ann.AppsV1().StatefulSets("default").Create(ctx, set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	set.Status.ObservedGeneration = 1
	status := func(c kubernetes.Interface) error {
		_, err := c.AppsV1().StatefulSets("default").UpdateStatus(ctx, set, metav1.UpdateOptions{})
		return err
	}
	set.Status.CurrentRevision = "told-of-before"
	wantStatus(t, status(ann), 403, "status.currentRevision")
	set.Status.CurrentRevision, set.Status.UpdateRevision = "", "told-of-before"
	wantStatus(t, status(ann), 403, "status.updateRevision")
	if err := status(root); err != nil {
		t.Error(err)
	}
}

func replicaSetOf(spec corev1.PodSpec) *appsv1.ReplicaSet {
	labels := map[string]string{"app": "told"}
	spec.RestartPolicy = corev1.RestartPolicyAlways
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "told"}, Spec: appsv1.ReplicaSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
	}}
}

// TestReviews: `auth can-i` answers from the table, one by one and as a list.
func TestReviews(t *testing.T) {
	s := share(t)
	ctx := context.Background()
	ann := s.clientOf(t, "ann", "people").AuthorizationV1()
	for what, want := range map[authorizationv1.ResourceAttributes]bool{
		{Verb: "create", Resource: "pods", Namespace: "default"}:                         true,
		{Verb: "create", Resource: "pods", Namespace: "kube-system"}:                     false,
		{Verb: "get", Resource: "secrets", Namespace: "default"}:                         false,
		{Verb: "update", Group: "berth.dev", Resource: "schedulerconfigurations"}:        false,
		{Verb: "get", Group: "berth.dev", Resource: "schedulerconfigurations"}:           true,
		{Verb: "get", Resource: "pods", Subresource: "log", Namespace: "default"}:        true,
		{Verb: "create", Resource: "pods", Subresource: "binding", Namespace: "default"}: false,
	} {
		review, err := ann.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &what},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed != want {
			t.Errorf("%+v: %v, want %v", what, review.Status.Allowed, want)
		}
	}
	for namespace, want := range map[string]bool{"default": true, "kube-system": false} {
		list, err := ann.SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
			Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := slices.ContainsFunc(list.Status.ResourceRules, func(r authorizationv1.ResourceRule) bool {
			return slices.Contains(r.Verbs, "create") && slices.Contains(r.Resources, "pods") && slices.Contains(r.APIGroups, "")
		})
		if got != want || list.Status.Incomplete {
			t.Errorf("in %s pods may be created: %v, want %v; %+v", namespace, got, want, list.Status)
		}
	}
}

// TestTableIsServed: the table names no resource that is not there, and every one
// that is there is either in it or for administrators on purpose.
func TestTableIsServed(t *testing.T) {
	s := share(t)
	lists, err := s.client(t).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range l.APIResources {
			group := r.Group
			if group == "" {
				group = gv.Group
			}
			served[access.Resource(group, r.Name, "")] = true
		}
	}
	_, all, err := s.client(t).Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range l.APIResources {
			name, part, _ := strings.Cut(r.Name, "/")
			served[access.Resource(gv.Group, name, part)] = true
		}
	}
	served["customresourcedefinitions.apiextensions.k8s.io"] = true // that there are none, outside of discovery
	for _, asked := range []string{"certificatesigningrequests.certificates.k8s.io/nodeclient", "certificatesigningrequests.certificates.k8s.io/selfnodeclient", "signers.certificates.k8s.io", "resourceclaims.resource.k8s.io/binding"} {
		served[asked] = true // by admission, and by nobody else
	}
	for _, asked := range []string{"nodes/log", "nodes/stats", "nodes/metrics"} {
		served[asked] = true // by kubelets, who ask whether a server may
	}
	named := map[string]bool{"*": true}
	for _, rule := range access.Rules() {
		for _, r := range rule.Resources {
			named[r] = true
			if part, every := strings.CutPrefix(r, "*/"); every {
				for one := range served {
					named[one] = named[one] || strings.HasSuffix(one, "/"+part)
				}
				continue
			}
			if r != "*" && !served[r] {
				t.Errorf("the table names %s, which is not served", r)
			}
		}
	}
	administrators := []string{
		"secrets", "bindings", "pods/binding", "nodes/proxy", "pods/proxy", "services/proxy",
		"namespaces/finalize", "schedulerconfigurations.berth.dev/status", "tokenreviews.authentication.k8s.io",
		"subjectaccessreviews.authorization.k8s.io", "localsubjectaccessreviews.authorization.k8s.io",
		"validatingadmissionpolicies.admissionregistration.k8s.io", "validatingadmissionpolicybindings.admissionregistration.k8s.io",
		"mutatingadmissionpolicies.admissionregistration.k8s.io", "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
		"validatingwebhookconfigurations.admissionregistration.k8s.io", "mutatingwebhookconfigurations.admissionregistration.k8s.io",
		"prioritylevelconfigurations.flowcontrol.apiserver.k8s.io/status", "ipaddresses.networking.k8s.io", "apiservices.apiregistration.k8s.io",
		"ingresses.networking.k8s.io", "ingresses.networking.k8s.io/status", "ingressclasses.networking.k8s.io",
		"csidrivers.storage.k8s.io", "csinodes.storage.k8s.io", "csistoragecapacities.storage.k8s.io",
		"volumeattachments.storage.k8s.io", "volumeattachments.storage.k8s.io/status", "volumeattributesclasses.storage.k8s.io",
		"deviceclasses.resource.k8s.io",
		"resourceclaimtemplates.resource.k8s.io", "resourceslices.resource.k8s.io",
		"roles.rbac.authorization.k8s.io", "rolebindings.rbac.authorization.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io",
	}
	for r := range served {
		if !named[r] && !slices.Contains(administrators, r) {
			t.Errorf("%s is served, and the table says nothing of it", r)
		}
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

// TestDiscovery: what is served, with its verbs and short names.
func TestDiscovery(t *testing.T) {
	s := share(t)
	lists, err := s.client(t).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string][]string{}
	for _, l := range lists {
		if l.GroupVersion == "metrics.k8s.io/v1beta1" {
			continue // its resources are called as others are
		}
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
	wantStatus(t, as(s.config(t, "ann", "people")), 403, `User "ann" cannot impersonate`)
	if err := as(s.config(t, "root", "system:masters")); err != nil {
		t.Fatal(err)
	}
}
