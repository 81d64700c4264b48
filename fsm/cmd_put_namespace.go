package fsm

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Names of what every namespace has from the start.
const (
	defaultServiceAccount = "default"
	rootCAConfigMap       = "kube-root-ca.crt"
	rootCAKey             = "ca.crt"
	serviceAccounts       = "serviceaccounts"
)

// PutNamespace creates (Create) or replaces a namespace. A new one gets its
// service account "default" and, where the cluster's certificate authority is
// given, the config map kube-root-ca.crt, in the same entry: nobody ever finds
// it without.
//
// Refuses: 409 if a namespace to be created exists, or for a stale revision;
// 404 if one to be replaced does not.
type PutNamespace struct {
	Namespace NamespaceWire `msgpack:"namespace"`
	Create    bool          `msgpack:"create,omitempty"`
	Revision  int64         `msgpack:"revision,omitempty"`
	// RootCA is the PEM of the certificate authority of the cluster's API.
	RootCA string `msgpack:"root_ca,omitempty"`
	// Furnish gives a namespace that is replaced what a new one gets, if it
	// lacks it.
	Furnish bool `msgpack:"furnish,omitempty"`
}

// Apply implements Command.
func (c *PutNamespace) Apply(tx *Tx) Result {
	ns := c.Namespace.Object
	if ns == nil || ns.Name == "" {
		return refuseBadRequest("PutNamespace without a namespace that has a name")
	}
	v := tx.view
	old, known := v.Namespaces.Get(ns.Name)
	switch {
	case c.Create && known:
		return refuseExists(namespaceResource.groupResource(), ns.Name)
	case c.Create:
		ns.Status.Phase = corev1.NamespaceActive
		put(tx, v.Namespaces, ns.Name, ns)
		tx.furnishNamespace(ns.Name, c.RootCA)
		return Result{Table: v.Namespaces.Name(), Object: ns}
	case !known:
		return refuseNotFound(namespaceResource.groupResource(), ns.Name)
	}
	if r, ok := (Precondition{UID: string(ns.UID), Revision: c.Revision}).check(old, namespaceResource); !ok {
		return r
	}
	if c.Furnish {
		tx.furnishNamespace(ns.Name, c.RootCA)
	}
	ns.ResourceVersion = old.ResourceVersion
	if equality.Semantic.DeepEqual(ns, old) {
		return Result{Table: v.Namespaces.Name(), Object: old}
	}
	put(tx, v.Namespaces, ns.Name, ns)
	return Result{Table: v.Namespaces.Name(), Object: ns}
}

// furnishNamespace gives a namespace what every one has, and leaves alone what
// is there as it should be. What a quota does not allow now is made when it does.
func (tx *Tx) furnishNamespace(namespace, rootCA string) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: tx.newUID(), CreationTimestamp: tx.now()}
	}
	if !tx.view.hasServiceAccount(namespace, defaultServiceAccount) {
		o := &Object{Resource: serviceAccounts, Value: &corev1.ServiceAccount{ObjectMeta: meta(defaultServiceAccount)}}
		if _, ok := tx.view.checkObjectQuotas(o, nil); ok {
			tx.storeObject(ObjectKey(serviceAccounts, namespace, defaultServiceAccount), o)
		}
	}
	old, right := tx.view.rootCA(namespace, rootCA)
	if right {
		return
	}
	cm := &corev1.ConfigMap{}
	if old == nil {
		cm.ObjectMeta = meta(rootCAConfigMap)
	} else {
		old.DeepCopyInto(cm)
	}
	cm.Data = map[string]string{rootCAKey: rootCA}
	o := &Object{Resource: "configmaps", Value: cm}
	if old == nil {
		if _, ok := tx.view.checkObjectQuotas(o, nil); !ok {
			return
		}
	}
	tx.storeObject(ObjectKey("configmaps", namespace, rootCAConfigMap), o)
}

// Furnished says whether a namespace has what every one has from the start:
// users can delete and change it.
func (v *View) Furnished(namespace, rootCA string) bool {
	_, right := v.rootCA(namespace, rootCA)
	return right && v.hasServiceAccount(namespace, defaultServiceAccount)
}

func (v *View) hasServiceAccount(namespace, name string) bool {
	_, ok := v.Objects.Get(ObjectKey(serviceAccounts, namespace, name))
	return ok
}

// rootCA is the config map with the authority, if there is one, and whether
// that is as it should be.
func (v *View) rootCA(namespace, rootCA string) (*corev1.ConfigMap, bool) {
	o, ok := v.Objects.Get(ObjectKey("configmaps", namespace, rootCAConfigMap))
	if !ok {
		return nil, rootCA == ""
	}
	cm := o.Value.(*corev1.ConfigMap)
	return cm, rootCA == "" || cm.Data[rootCAKey] == rootCA
}

// checkServiceAccount: a pod may not name a service account that is not there.
func (v *View) checkServiceAccount(pod *corev1.Pod) (Result, bool) {
	name := pod.Spec.ServiceAccountName
	if name == "" || v.hasServiceAccount(pod.Namespace, name) {
		return Result{}, true
	}
	return refuseForbidden(podResource.groupResource(), givenName(pod), fmt.Sprintf(
		"error looking up service account %s/%s: serviceaccount %q not found", pod.Namespace, name, name)), false
}
