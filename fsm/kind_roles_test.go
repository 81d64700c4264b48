package fsm

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/berth-dev/berth/codec"
)

// subjectsOf: subjects=user:NAME,group:NAME,account:[NAMESPACE/]NAME,…
func subjectsOf(a words) (out []rbacv1.Subject) {
	for _, text := range a.list("subjects") {
		kind, name, _ := strings.Cut(text, ":")
		s := rbacv1.Subject{Name: name}
		switch kind {
		case "user":
			s.Kind, s.APIGroup = rbacv1.UserKind, rbacv1.GroupName
		case "group":
			s.Kind, s.APIGroup = rbacv1.GroupKind, rbacv1.GroupName
		case "account":
			s.Kind = rbacv1.ServiceAccountKind
			if namespace, of, ok := strings.Cut(name, "/"); ok {
				s.Namespace, s.Name = namespace, of
			}
		}
		out = append(out, s)
	}
	return out
}

// fillBinding gives a binding its subjects, and what is in no namespace none.
func fillBinding(kind ObjectKind, o codec.Object, a words) {
	if kind.ClusterScoped {
		o.SetNamespace("")
	}
	switch b := o.(type) {
	case *rbacv1.RoleBinding:
		b.Subjects, b.RoleRef = subjectsOf(a), rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "r"}
	case *rbacv1.ClusterRoleBinding:
		b.Subjects, b.RoleRef = subjectsOf(a), rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "r"}
	}
}

// TestBindingsOf: the index gives those bindings that name who asks, follows their changes, and says
// whether there are roles at all.
func TestBindingsOf(t *testing.T) {
	s := newTranscript(t)
	s.quiet = true
	run := func(lines ...string) {
		t.Helper()
		for _, line := range lines {
			if out := s.line(line); out != "ok" {
				t.Fatalf("%s: %s", line, out)
			}
		}
	}
	expect := func(namespace, user, groups, want string) {
		t.Helper()
		var got []string
		s.view().BindingsOf(namespace, user, strings.Fields(groups), func(b codec.Object) { got = append(got, b.GetName()) })
		slices.Sort(got)
		if text := strings.Join(slices.Compact(got), " "); text != want {
			t.Errorf("in %q, %s of %q has %q, want %q", namespace, user, groups, text, want)
		}
	}
	run("namespace team")
	if s.view().HasRoles() {
		t.Error("a state without roles has some")
	}
	run(
		"object clusterrolebindings all subjects=user:ann,group:ops,account:team/app",
		"object rolebindings some ns=default subjects=user:bob,account:app,account:team/app",
		"object rolebindings some ns=team subjects=group:ops,group:ops",
		"object clusterrolebindings nobody",
	)
	if !s.view().HasRoles() {
		t.Error("a state with bindings has no roles")
	}
	expect("", "ann", "", "all")
	expect("", "an", "", "")
	expect("", "eve", "ops devs", "all")
	expect("", "ops", "ann", "")
	expect("", "system:serviceaccount:team:app", "", "all")
	expect("default", "system:serviceaccount:default:app", "", "some")
	expect("default", "system:serviceaccount:team:app", "", "some")
	expect("team", "system:serviceaccount:team:app", "", "")
	expect("team", "ann", "ops", "some")
	run("object rolebindings some ns=default subjects=user:eve update")
	expect("default", "bob", "", "")
	expect("default", "eve", "", "some")
	run("delete-object rolebindings some ns=default", "delete-object rolebindings some ns=team", "delete-object clusterrolebindings all ns=", "object roles r")
	expect("", "ann", "ops", "")
	if !s.view().HasRoles() {
		t.Error("a state with a role has none")
	}
	run("delete-object roles r", "delete-object clusterrolebindings nobody ns=")
	if s.view().HasRoles() || s.view().grants.Len() != 0 {
		t.Error("a state whose roles were deleted has some")
	}
}
