package apiserver

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	restclient "k8s.io/client-go/rest"
)

// TestRefusalsThatCannotBeTold: where upstream's code asks about rights, what nobody can tell is no refusal, of roles and bindings, approvals,
// policies, and of whom one acts as; what can be told is.
func TestRefusalsThatCannotBeTold(t *testing.T) {
	s, root := withRoles(t)
	ctx := t.Context()
	everywhere := func(name string, rules ...rbacv1.PolicyRule) {
		_, err := root.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "ann"}}}
		if _, err = root.RbacV1().ClusterRoleBindings().Create(ctx, b, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	everywhere("writer",
		rule("create update", rbacv1.GroupName, "roles rolebindings clusterroles clusterrolebindings"),
		rule("update", "certificates.k8s.io", "certificatesigningrequests/approval"),
		rule("create", "admissionregistration.k8s.io", "validatingadmissionpolicies"), rule("list", "", "nodes"))
	ann, as := s.clientOf(t, "ann", "people"), s.config(t, "ann", "people")
	as.Impersonate = restclient.ImpersonationConfig{UserName: "bob"}
	asBob := clientFor(t, as)
	csr, err := root.CertificatesV1().CertificateSigningRequests().Create(ctx, asks(t, "bob", certificatesv1.KubeAPIServerClientSignerName, named("bob"), certificatesv1.UsageClientAuth), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "x"})
	more := []rbacv1.PolicyRule{rule("delete", "", "nodes")}
	refused := map[string]func() error{
		"a role": func() error {
			_, err := ann.RbacV1().Roles("team").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Rules: []rbacv1.PolicyRule{rule("delete", "", "pods")}}, metav1.CreateOptions{})
			return err
		},
		"a binding": func() error {
			_, err := ann.RbacV1().RoleBindings("team").Create(ctx, bindingTo("x", "bob", "ClusterRole", "cluster-admin"), metav1.CreateOptions{})
			return err
		},
		"a cluster role": func() error {
			_, err := ann.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Rules: more}, metav1.CreateOptions{})
			return err
		},
		"more of a cluster role": func() error {
			_, err := ann.RbacV1().ClusterRoles().Update(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "writer"}, Rules: more}, metav1.UpdateOptions{})
			return err
		},
		"an approval": func() error {
			_, err := ann.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
			return err
		},
		"another user": func() error {
			_, err := asBob.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			return err
		},
		"a request": func() error {
			_, err := ann.CoreV1().Secrets("team").List(ctx, metav1.ListOptions{})
			return err
		},
	}
	policy := func() error {
		p := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
		fail, all := admissionv1.Fail, admissionv1.OperationAll
		p.Spec.FailurePolicy, p.Spec.ParamKind = &fail, &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
		p.Spec.MatchConstraints = &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{all}, Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}}}
		p.Spec.Validations = []admissionv1.Validation{{Expression: "true"}}
		_, err := ann.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, p, metav1.CreateOptions{})
		return err
	}
	for what, ask := range refused {
		if err := ask(); err == nil {
			t.Fatalf("%s: it is allowed", what)
		} else {
			wantStatus(t, err, 403, "")
		}
	}
	wantStatus(t, policy(), 422, "paramKind")
	away := errors.New("no leader")
	s.double.failRead.Store(&away)
	refused["a policy"] = policy
	for what, ask := range refused {
		t.Run(what, func(t *testing.T) {
			err := ask()
			if err == nil {
				t.Fatal("it is allowed")
			}
			wantStatus(t, err, 500, "no leader")
		})
	}
	wantStatus(t, refused["a binding"](), 500, `whether User "ann" may bind resource "clusterroles" cannot be told now`)
}

// TestAnswersWithWhatIsNotTold: nothing of what is refused is answered but what could not be told, and all else is answered as it is.
func TestAnswersWithWhatIsNotTold(t *testing.T) {
	for _, tc := range []struct {
		told       bool
		code, want int
	}{{true, 403, 403}, {false, 403, 500}, {false, 422, 500}, {false, 404, 404}, {false, 200, 200}} {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req = req.WithContext(withUntold(req.Context()))
		got := httptest.NewRecorder()
		tellUntold(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if !tc.told {
				noteUntold(req.Context(), authorizer.AttributesRecord{Verb: "get", Path: "/x"}, errors.New("no leader"))
			}
			w.Header().Set("Content-Length", "9")
			w.WriteHeader(tc.code)
			if n, err := w.Write([]byte("upstream's")); n != 10 || err != nil {
				t.Errorf("%d bytes were written, %v", n, err)
			}
		})).ServeHTTP(got, req)
		if body := got.Body.String(); got.Code != tc.want || (body == "upstream's") != (tc.code == tc.want) || tc.code != tc.want && got.Header().Get("Content-Length") != "" {
			t.Errorf("%d, told: %t, is answered with %d %q", tc.code, tc.told, got.Code, body)
		}
	}
}
