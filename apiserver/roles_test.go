package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/apiserver/roles"
	"github.com/berth-dev/berth/model"
)

// withRoles starts an API of a new cluster, with a namespace and a role in it.
func withRoles(t *testing.T) (s *testServer, root kubernetes.Interface) {
	t.Helper()
	return withRolesAnd(t, nil)
}

func withRolesAnd(t *testing.T, change func(*Config)) (s *testServer, root kubernetes.Interface) {
	t.Helper()
	d := newDouble(t)
	n := 0
	commands, err := roles.Reconcile(d.View(), true, func(o *metav1.ObjectMeta) { n++; o.UID = types.UID(fmt.Sprint("role-", n)) })
	if err != nil {
		t.Fatal(err)
	}
	d.must(t, commands...)
	s = start(t, d, change)
	root = s.client(t)
	ctx := context.Background()
	if _, err := root.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return s, root
}

func rule(verbs, group, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Fields(verbs), APIGroups: []string{group}, Resources: strings.Fields(resources), ResourceNames: names}
}

// grant makes a role of team and binds it to somebody.
func grant(t *testing.T, by kubernetes.Interface, name, user string, rules ...rbacv1.PolicyRule) error {
	t.Helper()
	ctx := context.Background()
	_, err := by.RbacV1().Roles("team").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = by.RbacV1().RoleBindings("team").Create(ctx, bindingTo(name, user, "Role", name), metav1.CreateOptions{})
	return err
}

func bindingTo(name, user, kind, role string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
}

// TestRoles: who has no role may nothing but discovery and reviews of themselves; a right begins and ends
// with its binding, a watch too.
func TestRoles(t *testing.T) {
	s, root := withRoles(t)
	ctx := context.Background()
	ann := s.clientOf(t, "ann", "people")
	_, err := ann.CoreV1().Pods("team").List(ctx, metav1.ListOptions{})
	wantStatus(t, err, 403, `User "ann" cannot list resource "pods" in API group "" in the namespace "team"`)
	if _, err := ann.Discovery().ServerPreferredResources(); err != nil {
		t.Error(err)
	}
	if who, err := ann.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); err != nil || who.Status.UserInfo.Username != "ann" {
		t.Error(who, err)
	}
	if err := grant(t, root, "reader", "ann", rule("get list watch", "", "pods")); err != nil {
		t.Fatal(err)
	}
	if _, err := ann.CoreV1().Pods("team").List(ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	_, err = ann.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	wantStatus(t, err, 403, "cannot list")
	_, err = ann.CoreV1().Pods("team").Create(ctx, testPod("x"), metav1.CreateOptions{})
	wantStatus(t, err, 403, "cannot create")
	for _, resource := range []string{"roles", "rolebindings", "clusterroles", "clusterrolebindings"} {
		if code, body := get(t, httpClient(t, asTable(s.config(t, "root", "system:masters"))), "https://"+s.Addr().String()+"/apis/rbac.authorization.k8s.io/v1/"+resource); code != 200 || !strings.Contains(body, `"columnDefinitions"`) {
			t.Errorf("a table of %s: %d %.200s", resource, code, body)
		}
	}
	review, err := ann.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "team"}}, metav1.CreateOptions{})
	if err != nil || !strings.Contains(fmt.Sprint(review.Status.ResourceRules), "{[get list watch] [] [pods] []}") {
		t.Error(review, err)
	}
	watch, err := ann.CoreV1().Pods("team").Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	others, err := root.CoreV1().Pods("team").Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer others.Stop()
	if err := root.RbacV1().RoleBindings("team").Delete(ctx, "reader", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = ann.CoreV1().Pods("team").List(ctx, metav1.ListOptions{})
	wantStatus(t, err, 403, "cannot list")
	for range watch.ResultChan() { // it ends
	}
	if _, err := root.CoreV1().Pods("team").Create(ctx, testPod("seen"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if e, ok := <-others.ResultChan(); !ok || e.Type != "ADDED" {
		t.Error("a watch that may go on has ended")
	}
}

// TestEscalation: nobody gives what they do not have, but who may escalate or bind.
func TestEscalation(t *testing.T) {
	s, root := withRoles(t)
	ctx := context.Background()
	bob := s.clientOf(t, "bob", "people")
	write := rule("get create update", rbacv1.GroupName, "roles rolebindings")
	if err := grant(t, root, "boss", "bob", write, rule("get", "", "pods")); err != nil {
		t.Fatal(err)
	}
	if err := grant(t, bob, "less", "eve", rule("get", "", "pods")); err != nil {
		t.Error(err)
	}
	wantStatus(t, grant(t, bob, "more", "eve", rule("get", "", "secrets")), 403, "is attempting to grant RBAC permissions not currently held")
	_, err := bob.RbacV1().RoleBindings("team").Create(ctx, bindingTo("admin", "bob", "ClusterRole", "cluster-admin"), metav1.CreateOptions{})
	wantStatus(t, err, 403, "not currently held")
	role, err := bob.RbacV1().Roles("team").Get(ctx, "less", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = append(role.Rules, rule("*", "*", "*"))
	_, err = bob.RbacV1().Roles("team").Update(ctx, role, metav1.UpdateOptions{})
	wantStatus(t, err, 403, "not currently held")
	if err := grant(t, root, "binder", "bob", rule("bind", rbacv1.GroupName, "clusterroles", "backup", "berth:backup"), rule("escalate", rbacv1.GroupName, "roles")); err != nil {
		t.Fatal(err)
	}
	if _, err := bob.RbacV1().RoleBindings("team").Create(ctx, bindingTo("backup", "eve", "ClusterRole", "berth:backup"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := bob.RbacV1().Roles("team").Update(ctx, role, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	// Annotations make a binding narrower, so taking one away is giving.
	narrow := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "narrow", Annotations: map[string]string{roles.ExceptNamespacesAnnotation: "kube-system"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "carl"}},
	}
	if _, err := root.RbacV1().ClusterRoleBindings().Create(ctx, narrow, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := root.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "writer"}, Rules: []rbacv1.PolicyRule{rule("get update", rbacv1.GroupName, "clusterrolebindings")}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	writer := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "writer"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "writer"}, Subjects: narrow.Subjects}
	if _, err := root.RbacV1().ClusterRoleBindings().Create(ctx, writer, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	carl := s.clientOf(t, "carl", "people")
	if _, err := carl.CoreV1().Secrets("team").List(ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	_, err = carl.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
	wantStatus(t, err, 403, "cannot list")
	wide, err := carl.RbacV1().ClusterRoleBindings().Get(ctx, "narrow", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wide.Annotations = nil
	_, err = carl.RbacV1().ClusterRoleBindings().Update(ctx, wide, metav1.UpdateOptions{})
	wantStatus(t, err, 403, "not currently held")
	if err := root.RbacV1().ClusterRoleBindings().Delete(ctx, "writer", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	_, err = carl.RbacV1().ClusterRoleBindings().Get(ctx, "narrow", metav1.GetOptions{})
	wantStatus(t, err, 403, "cannot get")
	narrow.Name, narrow.Annotations[roles.ExceptGroupsAnnotation] = "typo", "a, b"
	_, err = root.RbacV1().ClusterRoleBindings().Create(ctx, narrow, metav1.CreateOptions{})
	wantStatus(t, err, 422, "metadata.annotations[berth.dev/except-groups]")
}

// TestActingAsOthers: by the verb impersonate and as far as it goes; nobody acts as a part of Berth.
func TestActingAsOthers(t *testing.T) {
	s, root := withRoles(t)
	ctx := context.Background()
	if err := grant(t, root, "reader", "ann", rule("list", "", "pods")); err != nil {
		t.Fatal(err)
	}
	helper := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "helpdesk"}, Rules: []rbacv1.PolicyRule{
		rule("impersonate", "", "users", "ann"), rule("impersonate", "", "groups"),
	}}
	if _, err := root.RbacV1().ClusterRoles().Create(ctx, helper, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "helpdesk"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "helpdesk"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "desk"}}}
	if _, err := root.RbacV1().ClusterRoleBindings().Create(ctx, b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	as := func(config *restclient.Config, user string, groups ...string) error {
		config.Impersonate = restclient.ImpersonationConfig{UserName: user, Groups: groups}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Pods("team").List(ctx, metav1.ListOptions{})
		return err
	}
	if err := as(s.config(t, "hal", "desk"), "ann"); err != nil {
		t.Error(err)
	}
	wantStatus(t, as(s.config(t, "hal", "desk"), "bob"), 403, `cannot impersonate`)
	wantStatus(t, as(s.config(t, "hal", "desk"), "ann", "berth:controllers"), 403, "nobody's to impersonate")
	wantStatus(t, as(s.config(t, "root", "system:masters"), "ann", "berth:use:gold"), 403, "nobody's to impersonate")
	wantStatus(t, as(s.config(t, "root", "system:masters"), "berth:server:a"), 403, "nobody's to impersonate")
	wantStatus(t, as(s.config(t, "root", "system:masters"), "bob"), 403, `User "bob" cannot list`)
}

// TestAccessReviews: whoever may ask, asks what others may.
func TestAccessReviews(t *testing.T) {
	s, root := withRoles(t)
	ctx := context.Background()
	if err := grant(t, root, "reader", "ann", rule("list", "", "pods"), rule("create", "authorization.k8s.io", "localsubjectaccessreviews")); err != nil {
		t.Fatal(err)
	}
	spec := func(user, namespace string) authorizationv1.SubjectAccessReviewSpec {
		return authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods", Namespace: namespace}}
	}
	for user, want := range map[string]bool{"ann": true, "bob": false} {
		review, err := root.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec(user, "team")}, metav1.CreateOptions{})
		if err != nil || review.Status.Allowed != want {
			t.Error(user, review, err)
		}
	}
	ann := s.clientOf(t, "ann", "people")
	local := &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "team"}, Spec: spec("bob", "team")}
	if review, err := ann.AuthorizationV1().LocalSubjectAccessReviews("team").Create(ctx, local, metav1.CreateOptions{}); err != nil || review.Status.Allowed {
		t.Error(review, err)
	}
	_, err := ann.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec("bob", "team")}, metav1.CreateOptions{})
	wantStatus(t, err, 403, "cannot create")
}

// TestUseOfClasses: a class whose use is restricted is for those who have the verb use on it, for pods and for templates.
func TestUseOfClasses(t *testing.T) {
	s, root := withRoles(t)
	ctx := context.Background()
	for _, user := range []string{"ann", "bob"} {
		if err := grant(t, root, user, user, rule("create", "", "pods"), rule("create", "apps", "replicasets")); err != nil {
			t.Fatal(err)
		}
	}
	if err := grant(t, root, "gold", "ann", rule("use", "scheduling.k8s.io", "priorityclasses", "gold", "system-node-critical")); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"gold": "true", "silver": "false"} {
		_, err := root.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{model.RestrictedUseAnnotation: value}}, Value: 10,
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := root.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: "odd", Annotations: map[string]string{model.RestrictedUseAnnotation: "yes"}},
	}, metav1.CreateOptions{})
	wantStatus(t, err, 422, "metadata.annotations[berth.dev/restricted-use]")
	ann, bob := s.clientOf(t, "ann", "people"), s.clientOf(t, "bob", "people")
	try := func(by kubernetes.Interface, class string) (pod, template error) {
		p := testPod("p")
		p.Name, p.GenerateName, p.Spec.PriorityClassName = "", "p-", class
		_, pod = by.CoreV1().Pods("team").Create(ctx, p, metav1.CreateOptions{})
		rs := replicaSetOf(p.Spec)
		rs.Name, rs.GenerateName = "", "rs-"
		_, template = by.AppsV1().ReplicaSets("team").Create(ctx, rs, metav1.CreateOptions{})
		return pod, template
	}
	for _, tt := range []struct {
		by    kubernetes.Interface
		class string
		may   bool
	}{
		{ann, "gold", true},
		{ann, "silver", true},
		{ann, "system-node-critical", true},
		{ann, "system-cluster-critical", false},
		{bob, "gold", false},
		{bob, "silver", true},
		{bob, "", true},
		{bob, "system-node-critical", false},
		{root, "gold", true},
		{root, "system-node-critical", true},
	} {
		for _, err := range func() []error { a, b := try(tt.by, tt.class); return []error{a, b} }() {
			if tt.may && err != nil || !tt.may && !apierrors.IsForbidden(err) {
				t.Errorf("class %q: %v, want allowed %v", tt.class, err, tt.may)
			}
		}
	}
	// A class that is not there yet may come to be restricted: its pods would be made without asking.
	if err := grant(t, root, "later", "ann", rule("use", "scheduling.k8s.io", "priorityclasses", "later")); err != nil {
		t.Fatal(err)
	}
	for _, by := range []kubernetes.Interface{ann, root} {
		if _, template := try(by, "later"); template != nil {
			t.Error(template)
		}
	}
	_, template := try(bob, "later")
	wantStatus(t, template, 403, "no PriorityClass with name later was found: as it may come to be restricted")
	// Revisions hold templates, whatever a role says.
	if err := grant(t, root, "all", "bob", rule("*", "*", "*")); err != nil {
		t.Fatal(err)
	}
	_, err = bob.AppsV1().ControllerRevisions("team").Create(ctx, revision("r"), metav1.CreateOptions{})
	wantStatus(t, err, 403, "revisions hold templates of pods")
}

func revision(name string) *appsv1.ControllerRevision {
	return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: runtime.RawExtension{Raw: []byte(`{"a":1}`)}, Revision: 1}
}

// asTable asks for what kubectl prints.
func asTable(c *restclient.Config) *restclient.Config {
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
			return next.RoundTrip(r)
		})
	})
	return c
}

type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
