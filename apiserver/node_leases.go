package apiserver

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/coordination"
)

// Renewal is the renewal of a node's lease: the lease as it is stored, by its UID and resource
// version, and its new time.
type Renewal struct {
	Node, UID, ResourceVersion string
	At                         time.Time
}

// Leases remembers renewals of nodes' leases. A thousand kubelets renew theirs a hundred times a
// second, and nothing that the state decides depends on when: so most renewals are no entries of the
// log. They change no resource version. Who changes anything else of a lease is in the log as ever.
type Leases interface {
	// Renew takes note of a renewal. false: nobody did, and it has to be stored.
	Renew(ctx context.Context, r *Renewal) bool
	// Renewed is the newest renewal of a lease that is stored so; zero: none is known.
	Renewed(ctx context.Context, node, uid, resourceVersion string) time.Time
}

// nodeLease is a lease that stands for a node, whose renewals are remembered; "" for others.
func (t *tables) nodeLease(ctx context.Context, key string) (node string) {
	if t.leases == nil || dryRunFrom(ctx) != nil {
		return ""
	}
	node, ok := strings.CutPrefix(t.rowKey(key), corev1.NamespaceNodeLease+"/")
	if !ok {
		return ""
	}
	return node
}

// renewed tells of an update that renews a node's lease and does nothing else. false: it has to be stored.
func (t *tables) renewed(ctx context.Context, key string, cur *current, next runtime.Object) bool {
	node := t.nodeLease(ctx, key)
	if node == "" || cur.shown == nil {
		return false
	}
	before, now := cur.shown.(*coordination.Lease), next.(*coordination.Lease)
	if now.Spec.RenewTime == nil || !onlyRenewed(before, now) {
		return false
	}
	return t.leases.Renew(ctx, &Renewal{
		Node: node, UID: string(before.UID), ResourceVersion: before.ResourceVersion, At: now.Spec.RenewTime.Time,
	})
}

// onlyRenewed: nothing else differs but when its managers wrote last.
func onlyRenewed(before, now *coordination.Lease) bool {
	a, b := *before, *now
	a.ManagedFields, b.ManagedFields = timeless(before.ManagedFields), timeless(now.ManagedFields)
	a.Spec.RenewTime, b.Spec.RenewTime = nil, nil
	a.ResourceVersion, b.ResourceVersion = "", ""
	return equality.Semantic.DeepEqual(&a, &b)
}

func timeless(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	out := make([]metav1.ManagedFieldsEntry, len(entries))
	for i := range entries {
		out[i] = entries[i]
		out[i].Time = nil
	}
	return out
}

// upToDate gives a node's lease the time of its newest renewal. It is the caller's own.
func (t *tables) upToDate(ctx context.Context, key string, obj runtime.Object, resourceVersion string) {
	node := t.nodeLease(ctx, key)
	if node == "" {
		return
	}
	lease := obj.(*coordination.Lease)
	if at := t.leases.Renewed(ctx, node, string(lease.UID), resourceVersion); !at.IsZero() {
		renewed := metav1.NewMicroTime(at)
		lease.Spec.RenewTime = &renewed
	}
}

// keepRenewal: who changes something else of a node's lease does not take back when it was renewed.
func (t *tables) keepRenewal(ctx context.Context, key string, cur *current, next runtime.Object) {
	if t.nodeLease(ctx, key) == "" || cur.shown == nil {
		return
	}
	before, now := cur.shown.(*coordination.Lease), next.(*coordination.Lease)
	if equality.Semantic.DeepEqual(before.Spec.RenewTime, now.Spec.RenewTime) {
		t.upToDate(ctx, key, now, before.ResourceVersion)
	}
}
