package fsm

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/model"
)

// SinceRoles is the version of the rules that brought roles and their bindings, and
// classes that not everybody may use. By those before there is none.
const SinceRoles = 8

// The resources of roles and of who has them.
const (
	Roles               = "roles"
	RoleBindings        = "rolebindings"
	ClusterRoles        = "clusterroles"
	ClusterRoleBindings = "clusterrolebindings"
)

func roleKinds() []ObjectKind {
	return []ObjectKind{
		{Group: rbacv1.GroupName, Resource: Roles, Kind: "Role", Since: SinceRoles, New: func() codec.Object { return new(rbacv1.Role) }},
		{
			Group: rbacv1.GroupName, Resource: RoleBindings, Kind: "RoleBinding", Since: SinceRoles,
			New: func() codec.Object { return new(rbacv1.RoleBinding) },
		},
		{
			Group: rbacv1.GroupName, Resource: ClusterRoles, Kind: "ClusterRole", Since: SinceRoles, ClusterScoped: true,
			New: func() codec.Object { return new(rbacv1.ClusterRole) },
		},
		{
			Group: rbacv1.GroupName, Resource: ClusterRoleBindings, Kind: "ClusterRoleBinding", Since: SinceRoles, ClusterScoped: true,
			New: func() codec.Object { return new(rbacv1.ClusterRoleBinding) },
		},
	}
}

// IsRole says whether objects of a resource say who may do what.
func IsRole(resource string) bool {
	switch resource {
	case Roles, RoleBindings, ClusterRoles, ClusterRoleBindings:
		return true
	}
	return false
}

// HasRoles says whether there is any role or binding at all, or was once. Where there was none, the
// cluster is one of before there were roles.
func (v *View) HasRoles() bool { return v.roles > 0 || v.HadRoles() }

// HadRoles says whether the state remembers that there were roles, even if all of them are deleted.
func (v *View) HadRoles() bool {
	ns, ok := v.Namespaces.Get(metav1.NamespaceSystem)
	return ok && ns.Annotations[model.RolesAnnotation] != ""
}

// Role is a role of a namespace, or with an empty one a cluster role; nil if there is none.
func (v *View) Role(namespace, name string) codec.Object {
	resource := Roles
	if namespace == "" {
		resource = ClusterRoles
	}
	o, ok := v.Objects.Get(ObjectKey(resource, namespace, name))
	if !ok {
		return nil
	}
	return o.Value
}

// BindingsOf calls f for the bindings in a namespace that name a user by one of their
// subjects, and for those that name one of the groups. An empty namespace stands for
// cluster role bindings. One binding may be given several times. A service account is the user that its
// tokens say. What it costs grows with what it gives, not with how many bindings there are.
func (v *View) BindingsOf(namespace, user string, groups []string, f func(binding codec.Object)) {
	one := func(_ string, o *Object) bool {
		f(o.Value)
		return true
	}
	v.grants.Scan(grantPlace(namespace, userSubject, user), one)
	for _, g := range groups {
		v.grants.Scan(grantPlace(namespace, groupSubject, g), one)
	}
}

const userSubject, groupSubject = "user", "group"

func grantPlace(namespace, kind, subject string) string {
	return namespace + "\x00" + kind + "\x00" + subject + "\x00"
}

// indexRoles keeps bindings by whom they are for.
func indexRoles(v *live, old, now *Object) {
	if old != nil && IsRole(old.Resource) {
		v.roles--
		grantsOf(old, func(at string) { v.grants.Delete(at) })
	}
	if now != nil && IsRole(now.Resource) {
		v.roles++
		grantsOf(now, func(at string) { v.grants.Set(at, now) })
	}
}

// grantsOf calls f for every place that a binding has in the index.
func grantsOf(o *Object, f func(at string)) {
	var subjects []rbacv1.Subject
	namespace := ""
	switch b := o.Value.(type) {
	case *rbacv1.RoleBinding:
		subjects, namespace = b.Subjects, b.Namespace
	case *rbacv1.ClusterRoleBinding:
		subjects = b.Subjects
	}
	for i := range subjects {
		s := &subjects[i]
		kind, name := userSubject, s.Name
		switch s.Kind {
		case rbacv1.GroupKind:
			kind = groupSubject
		case rbacv1.ServiceAccountKind:
			of := s.Namespace
			if of == "" {
				of = namespace
			}
			name = "system:serviceaccount:" + of + ":" + name
		}
		f(grantPlace(namespace, kind, name) + o.Value.GetName())
	}
}
