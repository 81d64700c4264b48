package apiserver

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/apiserver/tokens"
	"github.com/berth-dev/berth/fsm"
)

// withKey gives the cluster a key to sign tokens with.
func (s *testServer) withKey(t *testing.T, how func(*fsm.AddSigningKey)) {
	t.Helper()
	key, err := tokens.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if how != nil {
		how(key)
	}
	s.double.must(t, key)
}

// as is a client that shows a token.
func (s *testServer) as(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	config := s.anonymous()
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func boundTo(p *corev1.Pod) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID},
	}}
}

func ask(t *testing.T, c kubernetes.Interface, req *authenticationv1.TokenRequest) string {
	t.Helper()
	got, err := c.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", req, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status.Token
}

// TestTokenOfAPod: who shows a pod's token is the pod's service account, may read
// its own namespace and no secret, and is nobody once the pod is gone.
func TestTokenOfAPod(t *testing.T) {
	s := start(t, newDouble(t), nil)
	admin := s.client(t)
	if _, err := admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{}); err == nil ||
		!strings.Contains(err.Error(), tokens.ErrNoKey.Error()) {
		t.Errorf("without a key: %v", err)
	}
	s.withKey(t, nil)
	pod, err := admin.CoreV1().Pods("default").Create(t.Context(), testPod("web"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token := ask(t, admin, boundTo(pod))
	app := s.as(t, token)
	who, err := app.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	u := who.Status.UserInfo
	if u.Username != "system:serviceaccount:default:default" || strings.Join(u.Extra["authentication.kubernetes.io/pod-name"], "") != "web" {
		t.Errorf("it is %+v", u)
	}
	if _, err := app.CoreV1().Pods("default").Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"pods elsewhere": second(app.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{})),
		"all pods":       second(app.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})),
		"secrets":        second(app.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})),
		"a pod made":     second(app.CoreV1().Pods("default").Create(t.Context(), testPod("own"), metav1.CreateOptions{})),
		"another token":  second(app.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	review := func(audiences ...string) bool {
		r, err := admin.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status.Authenticated
	}
	if !review() || review("vault") {
		t.Error("it is for this API, and for nobody else")
	}
	none := int64(0)
	if err := admin.CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
		t.Fatal(err)
	}
	if _, err := app.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) || review() {
		t.Errorf("the pod is gone: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestNoTokenBeforeKeys: as long as a server does not know of keys that sign tokens, no pod waits for a token.
func TestNoTokenBeforeKeys(t *testing.T) {
	s := start(t, newDoubleAt(t, fsm.Since(&fsm.AddSigningKey{})-1), nil)
	pod, err := s.client(t).CoreV1().Pods("default").Create(t.Context(), testPod("web"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pod.Spec.Volumes) > 0 {
		t.Errorf("it has volumes %v", pod.Spec.Volumes)
	}
}

// TestSigningKeysChange: tokens of an earlier key stay good, until it is revoked.
func TestSigningKeysChange(t *testing.T) {
	s := start(t, newDouble(t), nil)
	s.withKey(t, nil)
	before := ask(t, s.client(t), &authenticationv1.TokenRequest{})
	s.withKey(t, nil)
	after := ask(t, s.client(t), &authenticationv1.TokenRequest{})
	good := func(token string) bool {
		_, err := s.as(t, token).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		return err == nil
	}
	if !good(before) || !good(after) {
		t.Error("both are good")
	}
	vault := ask(t, s.client(t), &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}}})
	if good(vault) {
		t.Error("a token for others is believed")
	}
	get := func(path string) string {
		raw, err := s.client(t).CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		if err != nil {
			t.Error(err)
		}
		return string(raw)
	}
	resp := get("/openid/v1/jwks")
	if strings.Count(resp, `"kid"`) != 2 || strings.Contains(resp, `"d"`) {
		t.Errorf("the public keys: %s", resp)
	}
	if resp := get("/.well-known/openid-configuration"); !strings.Contains(resp, tokens.Issuer) {
		t.Error(resp)
	}
	s.withKey(t, func(c *fsm.AddSigningKey) { c.Revoke = true })
	if good(before) || good(after) {
		t.Error("they are revoked")
	}
}

// TestTokenOfANode: a token that is bound to a node is good while that very node is there.
func TestTokenOfANode(t *testing.T) {
	s := start(t, newDouble(t), nil)
	s.withKey(t, nil)
	nodes := s.client(t).CoreV1().Nodes()
	made := func() *corev1.Node {
		node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return node
	}
	request := func(n *corev1.Node) *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: n.Name, UID: n.UID}}}
	}
	bound := func(n *corev1.Node) (good func() error) {
		shown := s.as(t, ask(t, s.client(t), request(n)))
		return func() error { return second(shown.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})) }
	}
	first := made()
	good := bound(first)
	if err := good(); err != nil {
		t.Errorf("its node is there: %v", err)
	}
	if err := nodes.Delete(t.Context(), first.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := good(); !apierrors.IsUnauthorized(err) {
		t.Errorf("its node is gone: %v", err)
	}
	again := made()
	if again.UID == first.UID {
		t.Fatalf("it has the UID %s again", again.UID)
	}
	if err := good(); !apierrors.IsUnauthorized(err) {
		t.Errorf("its node is another one: %v", err)
	}
	if err := bound(again)(); err != nil {
		t.Errorf("a token of the other one: %v", err)
	}
	if _, err := s.client(t).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", request(first), metav1.CreateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a token of the one that is gone: %v", err)
	}
}
