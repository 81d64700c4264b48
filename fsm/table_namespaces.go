package fsm

import corev1 "k8s.io/api/core/v1"

var namespaceTable = protoTable[corev1.Namespace]("namespaces", indexNamespace)

// checkNamespace refuses what would be created in a namespace that is not
// there or on its way out.
func (v *View) checkNamespace(namespace string, res resource, name string) (Result, bool) {
	ns, ok := v.Namespaces.Get(namespace)
	switch {
	case !ok:
		return refuseNotFound(namespaceResource.groupResource(), namespace), false
	case ns.DeletionTimestamp != nil:
		return refuseTerminating(res, name, namespace), false
	}
	return Result{}, true
}
