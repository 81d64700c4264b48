package roles

import (
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/auth/rbac/reconciliation"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
)

// Reconcile gives the commands after which a state has the roles and bindings that every cluster has,
// with at least the rules and subjects that they have from the beginning; none if it has. What an administrator
// took out of reconciliation by upstream's annotation stays as it is. A cluster of before there were roles also gets
// what lets everybody go on as before (founded: it is none of those). finish gives a new object what every
// object has.
func Reconcile(v *fsm.View, founded bool, finish func(*metav1.ObjectMeta)) ([]fsm.Command, error) {
	w := &writer{view: v, finish: finish}
	if !founded && !v.HasRoles() {
		wide, accounts := BindingsBefore(namespacesOf(v))
		for i := range wide {
			w.create(fsm.ClusterRoleBindings, &wide[i])
		}
		for i := range accounts {
			w.create(fsm.RoleBindings, &accounts[i])
		}
	}
	wanted := ClusterRoles()
	for i := range wanted {
		if has(v, &wanted[i]) {
			continue // upstream compares every rule with every other, which is most of what it costs to begin to lead
		}
		o := reconciliation.ReconcileRoleOptions{
			Role: reconciliation.ClusterRoleRuleOwner{ClusterRole: &wanted[i]}, Client: clusterRoles{w}, Confirm: true,
		}
		if _, err := o.Run(); err != nil {
			return nil, fmt.Errorf("cluster role %s: %w", wanted[i].Name, err)
		}
	}
	bound := ClusterRoleBindings()
	for i := range bound {
		o := reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &bound[i]}, Client: clusterRoleBindings{w}, Confirm: true,
		}
		if _, err := o.Run(); err != nil {
			return nil, fmt.Errorf("cluster role binding %s: %w", bound[i].Name, err)
		}
	}
	return w.out, w.err
}

// has says whether a state's role is just as it is wanted.
func has(v *fsm.View, wanted *rbacv1.ClusterRole) bool {
	role, ok := v.Role("", wanted.Name).(*rbacv1.ClusterRole)
	return ok && equality.Semantic.DeepEqual(role.Rules, wanted.Rules) && equality.Semantic.DeepEqual(role.AggregationRule, wanted.AggregationRule) &&
		maps.Equal(role.Labels, wanted.Labels) && maps.Equal(role.Annotations, wanted.Annotations)
}

func namespacesOf(v *fsm.View) (out []string) {
	v.Namespaces.Scan("", func(name string, ns *corev1.Namespace) bool {
		if ns.DeletionTimestamp == nil {
			out = append(out, name)
		}
		return true
	})
	return out
}

// writer is upstream's client for roles: it reads a view, and what it writes are commands.
type writer struct {
	view   *fsm.View
	finish func(*metav1.ObjectMeta)
	out    []fsm.Command
	err    error
}

func (w *writer) put(c *fsm.PutObject, o codec.Object) {
	raw, err := o.Marshal()
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("encoding %s %s: %w", c.Resource, o.GetName(), err)
	}
	c.Raw = raw
	w.out = append(w.out, c)
}

func (w *writer) create(resource string, o interface {
	codec.Object
	metav1.ObjectMetaAccessor
},
) {
	w.finish(o.GetObjectMeta().(*metav1.ObjectMeta))
	w.put(&fsm.PutObject{Resource: resource, Create: true}, o)
}

func (w *writer) update(resource string, o codec.Object) {
	revision, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("the revision of %s %s: %w", resource, o.GetName(), err)
	}
	w.put(&fsm.PutObject{Resource: resource, Revision: revision}, o)
}

// clusterRoles implements reconciliation.RuleOwnerModifier.
type clusterRoles struct{ *writer }

// Get implements reconciliation.RuleOwnerModifier.
func (c clusterRoles) Get(_, name string) (reconciliation.RuleOwner, error) {
	role, ok := c.view.Role("", name).(*rbacv1.ClusterRole)
	if !ok {
		return nil, apierrors.NewNotFound(rbacv1.Resource(fsm.ClusterRoles), name)
	}
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: role.DeepCopy()}, nil
}

// Create implements reconciliation.RuleOwnerModifier.
func (c clusterRoles) Create(in reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	c.create(fsm.ClusterRoles, in.GetObject().(*rbacv1.ClusterRole))
	return in, nil
}

// Update implements reconciliation.RuleOwnerModifier.
func (c clusterRoles) Update(in reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	c.update(fsm.ClusterRoles, in.GetObject().(*rbacv1.ClusterRole))
	return in, nil
}

// clusterRoleBindings implements reconciliation.RoleBindingModifier.
type clusterRoleBindings struct{ *writer }

// Get implements reconciliation.RoleBindingModifier.
func (c clusterRoleBindings) Get(_, name string) (reconciliation.RoleBinding, error) {
	o, ok := c.view.Objects.Get(fsm.ObjectKey(fsm.ClusterRoleBindings, "", name))
	if !ok {
		return nil, apierrors.NewNotFound(rbacv1.Resource(fsm.ClusterRoleBindings), name)
	}
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: o.Value.(*rbacv1.ClusterRoleBinding).DeepCopy()}, nil
}

// Delete implements reconciliation.RoleBindingModifier.
func (c clusterRoleBindings) Delete(_, name string, uid types.UID) error {
	c.out = append(c.out, &fsm.DeleteObject{
		Resource: fsm.ClusterRoleBindings, Name: name, Precondition: fsm.Precondition{UID: string(uid)},
	})
	return nil
}

// Create implements reconciliation.RoleBindingModifier.
func (c clusterRoleBindings) Create(in reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	c.create(fsm.ClusterRoleBindings, in.GetObject().(*rbacv1.ClusterRoleBinding))
	return in, nil
}

// Update implements reconciliation.RoleBindingModifier.
func (c clusterRoleBindings) Update(in reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	c.update(fsm.ClusterRoleBindings, in.GetObject().(*rbacv1.ClusterRoleBinding))
	return in, nil
}
