package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/fsm"
)

const (
	// foreign is a node that no worker of Berth's is behind. Nobody is placed on it.
	foreign = "foreign"
	// unbroken is for how long a node is heard, at the latest, before its lease says that it is well: a leader
	// waits for forty seconds.
	unbroken = 90 * time.Second
	// lostAfter is how long a node may count as well whose lease nobody renews: its forty seconds, those that a leader waits
	// which is new, and its election.
	lostAfter = 3 * time.Minute
)

// keepLease keeps a node as a kubelet does: by a lease that it renews, and by its status when the servers
// have lost it. While every renewal is taken the node is not lost; when they end, it is.
func (u *user) keepLease(ctx context.Context) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		few := corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("1")}
		_, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: foreign},
			Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: "berth.dev/foreign", Effect: corev1.TaintEffectNoExecute}}},
			Status: corev1.NodeStatus{Capacity: few, Allocatable: few, Conditions: []corev1.NodeCondition{ready}}}, metav1.CreateOptions{})
		return err
	})
	holder, seconds := foreign, int32(40)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: foreign}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds}}
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease, metav1.CreateOptions{})
		return err
	})
	go u.remembered(ctx)
	since := time.Now() // every renewal was taken, and the node was well
	every(ctx, u.world.config.Pace.renewed, func() {
		err := u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			have, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, foreign, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if at := have.Spec.RenewTime; at != nil && at.After(time.Now()) {
				u.world.checker.violated("the lease of node %s was renewed at %s, before that time", foreign, at)
			}
			have.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			_, err = c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(ctx, have, metav1.UpdateOptions{})
			return err
		})
		var node *corev1.Node
		if err == nil {
			err = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) (err error) {
				node, err = c.CoreV1().Nodes().Get(ctx, foreign, metav1.GetOptions{})
				return err
			})
		}
		if err != nil {
			since = time.Now()
			return
		}
		if isReady(node) {
			return
		}
		if lasts := time.Since(since); lasts > unbroken {
			u.world.checker.contradicted("node %s is lost, and its lease has been renewed for %s", foreign, lasts)
		}
		since = time.Now()
		_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().Nodes().Patch(ctx, foreign, types.StrategicMergePatchType, sayReady(), metav1.PatchOptions{}, "status")
			return err
		})
	})
}

// remembered: a leader that has taken the renewal of a lease shows it as long as it leads.
func (u *user) remembered(ctx context.Context) {
	every(ctx, u.world.config.Pace.renewed, func() {
		i := slices.IndexFunc(u.world.servers, func(m *machine) bool { return m.leads() && time.Since(m.led.since) > 5*time.Second })
		if i < 0 {
			return
		}
		m, leases := u.world.servers[i], u.clients[i].CoordinationV1().Leases(corev1.NamespaceNodeLease)
		led := m.led
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		lease, err := leases.Get(ctx, foreign, metav1.GetOptions{})
		if err != nil {
			return
		}
		at := metav1.NewMicroTime(time.Now().Truncate(time.Microsecond))
		lease.Spec.RenewTime = &at
		if _, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
			return
		}
		if u.rand.IntN(2) == 0 { // one that was made before comes after it
			before := metav1.NewMicroTime(at.Add(-time.Duration(1 + u.rand.Int64N(int64(time.Second)))))
			late := lease.DeepCopy()
			late.Spec.RenewTime = &before
			_, _ = leases.Update(ctx, late, metav1.UpdateOptions{})
		}
		if lease, err = leases.Get(ctx, foreign, metav1.GetOptions{}); err != nil || !m.leads() || m.server.Term() != led.term {
			return
		}
		if shown := lease.Spec.RenewTime; shown == nil || shown.Before(&at) {
			u.world.checker.contradicted("server %s, which leads, has taken that the lease of node %s was renewed at %s, and shows %s", m.name, foreign, at, shown)
		}
	})
}

// sayReady is the patch of a node's status by which a kubelet says that it is well.
func sayReady() []byte {
	return fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// lost: the node of which nobody renews the lease any more is.
func lost(v *fsm.View) (unsettled []string) {
	if n, ok := v.Nodes.Get(foreign); ok && isReady(n) {
		unsettled = append(unsettled, "node "+foreign+" is well, and nobody renews its lease")
	}
	return unsettled
}
