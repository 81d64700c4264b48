package fsm

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node whose certificates are revoked has a lease of the system's namespace, which stays when
// the node goes: certificates that were issued until its renewTime count no more. It is never
// sealed, so every server can go by it.
const (
	leases        = "leases"
	revokedPrefix = "revoked-node-"
)

// RevocationName is the name of the lease by which a node's certificates are revoked.
func RevocationName(node string) string { return revokedPrefix + node }

// RevokedNode is the node that an object is the revocation of; empty: it is none.
func RevokedNode(o *Object) string {
	if o == nil || o.Resource != leases || o.Value.GetNamespace() != metav1.NamespaceSystem {
		return ""
	}
	node, _ := strings.CutPrefix(o.Value.GetName(), revokedPrefix)
	if node == o.Value.GetName() {
		return ""
	}
	return node
}

// NodeRevoked says until when the certificates of a node were issued that count no more; ok is
// false if all of them count.
func (v *View) NodeRevoked(node string) (until time.Time, ok bool) {
	l, ok := objectIn[coordinationv1.Lease](v, leases, metav1.NamespaceSystem, RevocationName(node))
	if !ok || l.Spec.RenewTime == nil {
		return time.Time{}, false
	}
	return l.Spec.RenewTime.Time, true
}
