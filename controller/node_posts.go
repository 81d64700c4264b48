package controller

import (
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
)

// posts is what this leadership has seen of the nodes that no worker of ours is
// behind (KWOK, virtual-kubelet, an administrator). They are heard by what is
// written: the renewal of their lease, and the heartbeat of their Ready condition.
//
// Whoever writes these has a clock of its own, so the values mean nothing here; that
// one has changed is the heartbeat, and it is as old as the look that found it.
type posts map[string]post

// post is what was written last, and when that was found.
type post struct {
	renewedUnixNano, beatUnixNano int64 // by the writer's clock, 0 for none
	ready                         corev1.ConditionStatus
	atUnixNano                    int64
}

// look compares what is written with what was found before, and remembers it in
// next. It returns when the node was heard last; one that was not looked at before in
// this leadership is heard now.
func (p posts) look(n *corev1.Node, lease *coordinationv1.Lease, nowUnixNano int64, next posts) int64 {
	now := post{atUnixNano: nowUnixNano}
	if lease != nil && lease.Spec.RenewTime != nil {
		now.renewedUnixNano = lease.Spec.RenewTime.UnixNano()
	}
	if c := readyCondition(n); c != nil {
		now.ready = c.Status
		if !c.LastHeartbeatTime.IsZero() {
			now.beatUnixNano = c.LastHeartbeatTime.UnixNano()
		}
	}
	if before, known := p[n.Name]; known && !before.saysMore(now) {
		now.atUnixNano = before.atUnixNano
	}
	next[n.Name] = now
	return now.atUnixNano
}

// saysMore: something was written since. That a node is Unknown is what we write of
// it ourselves, and what is taken away says nothing.
func (p post) saysMore(now post) bool {
	return now.renewedUnixNano != p.renewedUnixNano && now.renewedUnixNano != 0 ||
		now.beatUnixNano != p.beatUnixNano && now.beatUnixNano != 0 ||
		now.ready != p.ready && (now.ready == corev1.ConditionTrue || now.ready == corev1.ConditionFalse)
}

// nodeLeases are the leases that stand for nodes.
type nodeLeases bool

// anyNodeLease says whether there are any: workers of ours have none, so most clusters
// need not be asked for each node.
func anyNodeLease(v *fsm.View) nodeLeases {
	prefix := fsm.ObjectKey("leases", corev1.NamespaceNodeLease, "")
	key, _, ok := v.Objects.First(prefix)
	return nodeLeases(ok && strings.HasPrefix(key, prefix))
}

// of is the lease that stands for a node; nil if there is none.
func (l nodeLeases) of(v *fsm.View, node string) *coordinationv1.Lease {
	if !l {
		return nil
	}
	o, ok := v.Objects.Get(fsm.ObjectKey("leases", corev1.NamespaceNodeLease, node))
	if !ok {
		return nil
	}
	return o.Value.(*coordinationv1.Lease)
}
