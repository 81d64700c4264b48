package fsm

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/berth-dev/berth/api/berthv1"
)

// DeleteNamespace ends a namespace. While there is something in it, it is
// marked as terminating and takes nothing new in; once it is empty it goes.
// Whoever proposed the first one proposes it again when the content is gone.
//
// Refuses: 404 if there is none; 409 if a precondition fails; 403 for the
// namespaces that every cluster has.
type DeleteNamespace struct {
	Name         string       `msgpack:"name"`
	Precondition Precondition `msgpack:"precondition"`
}

// SystemNamespaces exist in every cluster; the first of them is where objects
// go that name none.
func SystemNamespaces() []string {
	return []string{corev1.NamespaceDefault, "kube-system", "kube-public", corev1.NamespaceNodeLease}
}

// Apply implements Command.
func (c *DeleteNamespace) Apply(tx *Tx) Result {
	v := tx.view
	old, ok := v.Namespaces.Get(c.Name)
	if !ok {
		return refuseNotFound(namespaceResource.groupResource(), c.Name)
	}
	if r, ok := c.Precondition.check(old, namespaceResource); !ok {
		return r
	}
	for _, name := range SystemNamespaces()[:3] {
		if name == c.Name {
			return refuseForbidden(namespaceResource.groupResource(), c.Name, "this namespace may not be deleted")
		}
	}
	if v.namespaceEmpty(c.Name) && len(old.Finalizers) == 0 {
		tx.forgetPreemptions(c.Name)
		remove(tx, v.Namespaces, c.Name)
		return Result{Table: v.Namespaces.Name(), Object: old, Deleted: true}
	}
	if old.DeletionTimestamp != nil {
		return Result{Table: v.Namespaces.Name(), Object: old}
	}
	next := old.DeepCopy()
	now := tx.now()
	next.DeletionTimestamp = &now
	next.Status.Phase = corev1.NamespaceTerminating
	put(tx, v.Namespaces, c.Name, next)
	return Result{Table: v.Namespaces.Name(), Object: next}
}

func (v *View) namespaceEmpty(namespace string) bool {
	prefix, empty := namespace+"/", true
	v.Pods.Scan(prefix, func(string, *corev1.Pod) bool {
		empty = false
		return false
	})
	v.NamespaceObjects(namespace, func(*Object) bool {
		empty = false
		return false
	})
	v.Budgets.Scan(prefix, func(string, *policyv1.PodDisruptionBudget) bool {
		empty = false
		return false
	})
	v.Events.Scan(prefix, func(string, *corev1.Event) bool {
		empty = false
		return false
	})
	return empty
}

// forgetPreemptions removes what is remembered of preemptions for pods of a
// namespace; there are at most maxPreemptions in all.
func (tx *Tx) forgetPreemptions(namespace string) {
	var keys []string
	tx.view.Preemptions.Scan(namespace+"/", func(key string, _ *berthv1.Preemption) bool {
		keys = append(keys, key)
		return true
	})
	for _, key := range keys {
		remove(tx, tx.view.Preemptions, key)
	}
}

// NamespaceObjects calls f for the plain objects in a namespace.
func (v *View) NamespaceObjects(namespace string, f func(o *Object) bool) {
	goOn := true
	of := func(resource string) bool {
		v.Objects.Scan(ObjectKey(resource, namespace, ""), func(_ string, o *Object) bool {
			goOn = f(o)
			return goOn
		})
		return goOn
	}
	for _, kind := range ObjectKinds() {
		if !of(kind.Resource) {
			return
		}
	}
	v.Definitions(func(d *apiextensionsv1.CustomResourceDefinition) bool { return of(d.Name) })
}
