package workloads

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
)

func tokenSecret(name, token string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Type: corev1.SecretTypeServiceAccountToken, Data: map[string][]byte{"namespace": []byte("a")}}
	if token != "" {
		s.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	return s
}

func listerOf(t *testing.T, secrets ...*corev1.Secret) corelisters.SecretLister {
	t.Helper()
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, s := range secrets {
		if err := index.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	return corelisters.NewSecretLister(index)
}

// TestTokenSecretsAreOpened: whose token a secret holds is sealed with it; who fills secrets is told of it, and of secrets of no other type.
func TestTokenSecretsAreOpened(t *testing.T) {
	open := opening(func(row *fsm.Object) (*fsm.Object, error) {
		s := row.Value.(*corev1.Secret).DeepCopy()
		if s.Name == "locked" {
			return nil, errors.New("nobody has the key")
		}
		s.Annotations = map[string]string{corev1.ServiceAccountNameKey: "ci"}
		return &fsm.Object{Resource: row.Resource, Value: s}, nil
	})
	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "other"}, Type: corev1.SecretTypeOpaque}
	token, locked := tokenSecret("token", ""), tokenSecret("locked", "")
	var told []string
	tell := func(what string, o any) {
		s := o.(*corev1.Secret)
		told = append(told, what+" "+s.Name+" "+s.Annotations[corev1.ServiceAccountNameKey])
	}
	want := func(what string, all ...string) {
		t.Helper()
		slices.Sort(told)
		if !slices.Equal(told, all) {
			t.Errorf("%s: %q, not %q", what, told, all)
		}
		told = nil
	}
	l := tokenLister{listerOf(t, other, token, locked), open}
	for what, list := range map[string]func(labels.Selector) ([]*corev1.Secret, error){"all": l.List, "of a namespace": l.Secrets("a").List} {
		secrets, err := list(labels.Everything())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range secrets {
			tell("has", s)
		}
		want(what, "has locked ", "has token ci")
	}
	h := openingHandler{cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { tell("add", o) },
		UpdateFunc: func(old, now any) { tell("from", old); tell("to", now) },
		DeleteFunc: func(o any) { tell("delete", o) },
	}, open}
	h.OnAdd(token, true)
	h.OnUpdate(token, token)
	h.OnDelete(token)
	want("told", "add token ci", "delete token ci", "from token ci", "to token ci")
}

// TestTokensOfKeysThatAreGone: a token that nobody believes any more is taken out of its secret, and no other.
func TestTokensOfKeysThatAreGone(t *testing.T) {
	secrets := []*corev1.Secret{tokenSecret("kept", "new"), tokenSecret("stale", "old"), tokenSecret("strange", "nonsense"), tokenSecret("empty", "")}
	c := fake.NewClientset()
	for _, s := range secrets {
		if _, err := c.CoreV1().Secrets("a").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	keyOf := func(token string) string {
		if token == "nonsense" {
			return ""
		}
		return token
	}
	secrets = append(secrets, tokenSecret("gone", "old"))
	for _, keys := range []map[string]bool{{}, {"new": true}} {
		if err := emptyOf(t.Context(), c, listerOf(t, secrets...), keyOf, keys); err != nil {
			t.Fatal(err)
		}
		for name, has := range map[string]bool{"kept": true, "stale": len(keys) == 0, "strange": len(keys) == 0, "empty": false} {
			s, err := c.CoreV1().Secrets("a").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || (len(s.Data[corev1.ServiceAccountTokenKey]) > 0) != has || len(s.Data["namespace"]) == 0 {
				t.Errorf("with %d keys, %s: %q, %v", len(keys), name, s.Data, err)
			}
		}
	}
}
