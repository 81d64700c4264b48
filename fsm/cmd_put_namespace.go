package fsm

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Names of what every namespace has from the start.
const (
	defaultServiceAccount = "default"
	rootCAConfigMap       = "kube-root-ca.crt"
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
	ns.ResourceVersion = old.ResourceVersion
	if equality.Semantic.DeepEqual(ns, old) {
		return Result{Table: v.Namespaces.Name(), Object: old}
	}
	put(tx, v.Namespaces, ns.Name, ns)
	if !maps.Equal(ns.Labels, old.Labels) {
		tx.namespaceChanged()
	}
	return Result{Table: v.Namespaces.Name(), Object: ns}
}

func (tx *Tx) furnishNamespace(namespace, rootCA string) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: tx.newUID(), CreationTimestamp: tx.now()}
	}
	tx.storeObject(ObjectKey("serviceaccounts", namespace, defaultServiceAccount), &Object{
		Resource: "serviceaccounts", Value: &corev1.ServiceAccount{ObjectMeta: meta(defaultServiceAccount)},
	})
	if rootCA == "" {
		return
	}
	tx.storeObject(ObjectKey("configmaps", namespace, rootCAConfigMap), &Object{
		Resource: "configmaps", Value: &corev1.ConfigMap{ObjectMeta: meta(rootCAConfigMap), Data: map[string]string{"ca.crt": rootCA}},
	})
}
