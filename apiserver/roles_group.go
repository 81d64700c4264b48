package apiserver

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	clusterrolepolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/policybased"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	clusterrolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/policybased"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	rolepolicy "k8s.io/kubernetes/pkg/registry/rbac/role/policybased"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	rolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/policybased"

	// The group's types, conversions and defaults register themselves in
	// Kubernetes' scheme.
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"

	"github.com/berth-dev/berth/apiserver/roles"
	"github.com/berth-dev/berth/fsm"
)

// rolesGroup serves roles and bindings. Nobody gives by them what they may not do
// themselves, unless they may escalate or bind: upstream's storages see to it.
func (g *registry) rolesGroup() (genericapiserver.APIGroupInfo, error) {
	made := map[string]*served{}
	for _, d := range []description{
		description{
			kind: plainKind[rbac.Role, rbacv1.Role](rbac.Resource(fsm.Roles)), singular: "role",
			list:  func() runtime.Object { return new(rbac.RoleList) },
			table: rest.NewDefaultTableConvertor(rbac.Resource(fsm.Roles)),
		}.by(role.Strategy),
		description{
			kind: plainKind[rbac.RoleBinding, rbacv1.RoleBinding](rbac.Resource(fsm.RoleBindings)), singular: "rolebinding",
			list: func() runtime.Object { return new(rbac.RoleBindingList) },
		}.by(bindingStrategy{rolebinding.Strategy, false}),
		description{
			kind: inNoNamespace(plainKind[rbac.ClusterRole, rbacv1.ClusterRole](rbac.Resource(fsm.ClusterRoles))), singular: "clusterrole",
			list:  func() runtime.Object { return new(rbac.ClusterRoleList) },
			table: rest.NewDefaultTableConvertor(rbac.Resource(fsm.ClusterRoles)),
		}.by(clusterrole.Strategy),
		description{
			kind: inNoNamespace(plainKind[rbac.ClusterRoleBinding, rbacv1.ClusterRoleBinding](rbac.Resource(fsm.ClusterRoleBindings))), singular: "clusterrolebinding",
			list: func() runtime.Object { return new(rbac.ClusterRoleBindingList) },
		}.by(bindingStrategy{clusterrolebinding.Strategy, true}),
	} {
		if d.version = rbacv1.SchemeGroupVersion; d.table == nil {
			d.table = kubernetesTable()
		}
		s, err := g.resource(plain(d))
		if err != nil {
			return genericapiserver.APIGroupInfo{}, err
		}
		made[d.kind.resource.Resource] = s
	}
	rules := g.rights.roles.Resolver()
	giving := func(s givingStorage) rest.Storage { return givers{s, g.rights, rules} }
	return groupOf(rbacv1.SchemeGroupVersion, map[string]rest.Storage{
		fsm.Roles:               giving(rolepolicy.NewStorage(made[fsm.Roles], g.rights, rules)),
		fsm.RoleBindings:        giving(rolebindingpolicy.NewStorage(made[fsm.RoleBindings], g.rights, rules)),
		fsm.ClusterRoles:        giving(clusterrolepolicy.NewStorage(made[fsm.ClusterRoles], g.rights, rules)),
		fsm.ClusterRoleBindings: giving(clusterrolebindingpolicy.NewStorage(made[fsm.ClusterRoleBindings], g.rights, rules)),
	}), nil
}

// bindingStrategy is upstream's, which knows nothing of the annotations that make a
// binding narrower.
type bindingStrategy struct {
	strategy
	clusterWide bool
}

// Validate implements rest.RESTCreateStrategy.
func (s bindingStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return append(s.strategy.Validate(ctx, obj), roles.ValidateExceptions(metaOf(obj).GetAnnotations(), s.clusterWide)...)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s bindingStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return append(s.strategy.ValidateUpdate(ctx, obj, old), roles.ValidateExceptions(metaOf(obj).GetAnnotations(), s.clusterWide)...)
}
