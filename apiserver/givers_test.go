package apiserver

import (
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWhatIsGivenIsBounded: what somebody gives is compared with all that he has, which is of many roles: the product is asked about before,
// of roles and of bindings, of new ones and of changed ones. Who need not be asked gives as he likes.
func TestWhatIsGivenIsBounded(t *testing.T) {
	s, root := withRoles(t)
	ctx, ann := t.Context(), s.clientOf(t, "ann", "people")
	// 8,192 rules of ann's in the namespace, of two roles.
	var rules []rbacv1.PolicyRule
	for i := range maxRules {
		rules = append(rules, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"things"}, ResourceNames: []string{fmt.Sprint("n", i)}})
	}
	rules[0] = rbacv1.PolicyRule{Verbs: []string{"get", "create", "update"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "rolebindings"}}
	for _, name := range []string{"first", "second"} {
		if _, err := root.RbacV1().Roles("team").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := root.RbacV1().RoleBindings("team").Create(ctx, bindingTo(name, "ann", "Role", name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// 512 grants are too many to compare with those, and 200 are not.
	gives := func(name string, n int) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"things"}, ResourceNames: many(n+1, "n%d")[1:]}}}
	}
	const over = "more than is compared"
	roles, bindings := ann.RbacV1().Roles("team"), ann.RbacV1().RoleBindings("team")
	_, err := roles.Create(ctx, gives("much", 512), metav1.CreateOptions{})
	wantStatus(t, err, 403, over)
	few, err := roles.Create(ctx, gives("few", 200), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	few.Rules = gives("few", 512).Rules
	_, err = roles.Update(ctx, few, metav1.UpdateOptions{})
	wantStatus(t, err, 403, over)
	if _, err := root.RbacV1().Roles("team").Create(ctx, gives("much", 512), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = bindings.Create(ctx, bindingTo("much", "bob", "Role", "much"), metav1.CreateOptions{})
	wantStatus(t, err, 403, over)
	if _, err := bindings.Create(ctx, bindingTo("few", "bob", "Role", "few"), metav1.CreateOptions{}); err != nil {
		t.Errorf("what can be compared: %v", err)
	}
	_, err = bindings.Create(ctx, bindingTo("nobody's", "bob", "Role", "nobody's"), metav1.CreateOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("a role that is not there: %v", err)
	}
	grantTo(t, root, "ann", rbacv1.PolicyRule{Verbs: []string{"bind"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "clusterroles"}})
	if _, err := bindings.Create(ctx, bindingTo("much", "bob", "Role", "much"), metav1.CreateOptions{}); err != nil {
		t.Errorf("who may bind: %v", err)
	}
}
