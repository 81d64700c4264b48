package apiserver

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/core/helper"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacconversion "k8s.io/kubernetes/pkg/apis/rbac/v1"
	rbacregistry "k8s.io/kubernetes/pkg/registry/rbac"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
)

// maxCompared is how often what is given is compared when somebody gives rights: each grant with each string of each rule that he has, and
// ruleStrings more for each rule. One takes some fifty nanoseconds.
const maxCompared, ruleStrings = 1 << 25, 8

// givingStorage is what upstream's storages of roles and bindings are.
type givingStorage interface {
	rest.StandardStorage
	rest.Scoper
	rest.SingularNameProvider
	rest.StorageVersionProvider
}

// givers is a storage of roles or bindings by which nobody gives what he does not have. Upstream compares each of what is given with each
// rule that the giver has by all of his bindings: how often, is asked here before.
type givers struct {
	givingStorage
	rights authorizer.Authorizer
	rules  validation.AuthorizationRuleResolver
}

// Create implements rest.Creater.
func (g givers) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	if err := g.check(ctx, obj); err != nil {
		return nil, err
	}
	return g.givingStorage.Create(ctx, obj, validate, o)
}

// Update implements rest.Updater.
func (g givers) Update(
	ctx context.Context, name string, now rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, o *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	checked := rest.WrapUpdatedObjectInfo(now, func(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
		if rbacregistry.IsOnlyMutatingGCFields(obj, old, helper.Semantic) {
			return obj, nil // as upstream has it
		}
		return obj, g.check(ctx, obj)
	})
	return g.givingStorage.Update(ctx, name, checked, create, update, force, o)
}

// check refuses what would take too long to compare.
func (g givers) check(ctx context.Context, obj runtime.Object) error {
	who, ok := request.UserFrom(ctx)
	if !ok || rbacregistry.EscalationAllowed(ctx) {
		return nil
	}
	grants, err := g.given(ctx, obj)
	if grants == 0 || err != nil {
		return err
	}
	namespace, _ := request.NamespaceFrom(ctx)
	rules, _ := g.rules.RulesFor(ctx, who, namespace) // what cannot be found is told of by who compares
	strings := 0
	for i := range rules {
		r := &rules[i]
		strings += ruleStrings + len(r.Verbs) + len(r.APIGroups) + len(r.Resources) + len(r.ResourceNames) + len(r.NonResourceURLs)
	}
	if strings <= maxCompared/grants {
		return nil
	}
	return apierrors.NewForbidden(rbac.Resource("roles"), metaOf(obj).GetName(), fmt.Errorf(
		"user %q has %d rules, and it grants %d rights: that is more than is compared; give them by several roles, or by somebody with fewer rules or the right to escalate or bind",
		who.GetName(), len(rules), grants))
}

// given is how much an object gives that has to be compared.
func (g givers) given(ctx context.Context, obj runtime.Object) (int, error) {
	namespace, _ := request.NamespaceFrom(ctx)
	ofRole := func(rules []rbac.PolicyRule) (int, error) {
		if rbacregistry.RoleEscalationAuthorized(ctx, g.rights) {
			return 0, nil
		}
		return grantsOf(rules), nil
	}
	ofRef := func(ref rbac.RoleRef) (int, error) {
		if rbacregistry.BindingAuthorized(ctx, ref, namespace, g.rights) {
			return 0, nil
		}
		var to rbacv1.RoleRef
		if err := rbacconversion.Convert_rbac_RoleRef_To_v1_RoleRef(&ref, &to, nil); err != nil {
			return 0, err
		}
		granted, err := g.rules.GetRoleReferenceRules(ctx, to, namespace)
		if err != nil {
			return 0, nil // upstream's storage tells of it
		}
		rules := make([]rbac.PolicyRule, len(granted))
		for i := range granted {
			if err := rbacconversion.Convert_v1_PolicyRule_To_rbac_PolicyRule(&granted[i], &rules[i], nil); err != nil {
				return 0, err
			}
		}
		return grantsOf(rules), nil
	}
	switch o := obj.(type) {
	case *rbac.Role:
		return ofRole(o.Rules)
	case *rbac.ClusterRole:
		return ofRole(o.Rules)
	case *rbac.RoleBinding:
		return ofRef(o.RoleRef)
	case *rbac.ClusterRoleBinding:
		return ofRef(o.RoleRef)
	}
	return 0, nil
}
