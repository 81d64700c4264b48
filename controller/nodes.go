package controller

import (
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
)

// Rates at which the pods of lost nodes are let go, as in Kubernetes (PD12).
const (
	nodesPerSecond        = 0.1  // of a zone that is well but for single nodes
	nodesPerSecondInPain  = 0.01 // of a large zone of which most is lost
	unhealthyZoneFraction = 0.55
	unhealthyZoneLeast    = 3
	largeZone             = 50
)

// Heartbeats answers when a server last heard of a worker; ok is false for a
// node that no worker has connected for while this server leads.
type Heartbeats interface {
	LastSeenUnixNano(node string) (unixNano int64, ok bool)
	// LeaseSeenUnixNano answers when the renewal of a node's lease was heard that is in no entry
	// of the log; ok is false where there was none.
	LeaseSeenUnixNano(node string) (unixNano int64, ok bool)
}

// NodeLifecycle decides which nodes are lost, which are back, and when the
// pods of lost nodes are let go (PD12). Its memory is that of its rates, of
// a time when every node was lost, and of what was written of nodes that have
// no worker of ours.
type NodeLifecycle struct {
	zones map[zoneName]*zoneRate
	posts posts
	// allLost: every node is. It is more likely then that the servers are cut
	// off than that everything died.
	allLost bool
	// resumed is when that ended: everybody has a grace period to come back.
	resumed int64
	grace   int64
}

// zoneRate is a token bucket that holds at most one node.
type zoneRate struct {
	tokens       float64
	lastUnixNano int64
}

// zoneName names a zone: zones of two regions may share a name.
type zoneName struct{ region, zone string }

type zone struct {
	name          zoneName
	ready, absent int
	toLetGo       []fsm.NodeHealth // not well, and their pods not yet let go
}

// Reconcile compares the nodes' health as it is stored with what their
// heartbeats say. since is when this server began to lead: silence counts from
// then at the earliest.
func (l *NodeLifecycle) Reconcile(v *fsm.View, beats Heartbeats, sinceUnixNano, nowUnixNano int64) []fsm.Command {
	l.grace = seconds(int64(*v.SchedulerConfig().Spec.NodeGraceSeconds))
	var changes []fsm.NodeHealth
	byName := map[zoneName]*zone{}
	var zones []*zone // in the order of their first node
	found := make(posts, len(l.posts))
	leases := anyNodeLease(v)
	v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
		name := zoneOf(n)
		z := byName[name]
		if z == nil {
			z = &zone{name: name}
			byName[name] = z
			zones = append(zones, z)
		}
		var said verdict
		if seen, managed := beats.LastSeenUnixNano(n.Name); managed {
			said = l.ofStream(n, seen, sinceUnixNano, nowUnixNano)
		} else if lease := leases.of(v, n.Name); lease != nil || !everConnected(n) {
			seen = l.posts.look(n, lease, nowUnixNano, found)
			if at, renewed := beats.LeaseSeenUnixNano(n.Name); renewed && lease != nil {
				seen = max(seen, at)
			}
			said = l.ofPosts(n, max(seen, sinceUnixNano), nowUnixNano)
		} else {
			said = l.ofStream(n, 0, sinceUnixNano, nowUnixNano)
		}
		if said.well {
			z.ready++
		} else {
			z.absent++
		}
		if said.health.Name == "" {
			return true
		}
		if h, ok := change(v, n, said.health); ok {
			changes = append(changes, h)
		}
		if key := keepsAway(&said.health); key != "" && !hasTaint(n, key, corev1.TaintEffectNoExecute) {
			z.toLetGo = append(z.toLetGo, fsm.NodeHealth{Name: n.Name, Ready: said.health.Ready, LetGo: true})
		}
		return true
	})
	l.posts = found
	changes = append(changes, l.letGo(zones, nowUnixNano)...)
	return inPieces(v, changes)
}

// verdict is what heartbeats say of a node.
type verdict struct {
	well bool
	// health is what has to be stored of it; without a name as long as nothing is known
	// that would change anything.
	health fsm.NodeHealth
}

// lost: a node that was heard then has been silent for longer than the grace.
func (l *NodeLifecycle) lost(seenUnixNano, nowUnixNano int64) bool {
	return nowUnixNano-max(seenUnixNano, l.resumed) > l.grace
}

// ofStream judges the node of a worker of ours: it is ready while it is heard, unless it says itself that it is not.
func (l *NodeLifecycle) ofStream(n *corev1.Node, seen, since, now int64) verdict {
	// A worker that registers is heard, though no server has reported it yet.
	seen = max(seen, nodeReadySince(n, now))
	silent := now - max(seen, since)
	heard := seen >= since && silent <= l.grace
	switch {
	case l.lost(max(seen, since), now):
		return verdict{health: fsm.NodeHealth{
			Name: n.Name, Ready: string(corev1.ConditionUnknown), Reason: fsm.NodeStatusUnknown,
			Message: fmt.Sprintf("the worker has been silent for %d seconds", silent/seconds(1)),
		}}
	case heard && fsm.SaidUnready(n):
		return verdict{health: fsm.NodeHealth{Name: n.Name, Ready: string(corev1.ConditionFalse)}}
	case heard:
		return verdict{well: true, health: fsm.NodeHealth{
			Name: n.Name, Ready: string(corev1.ConditionTrue), Reason: "WorkerReady", Message: "the worker is connected",
		}}
	}
	// One that was lost and was not heard of since is not well either, although it has
	// another grace period.
	return verdict{well: readyStatus(n) == corev1.ConditionTrue}
}

// ofPosts judges a node that no worker of ours is behind: it is what was written of
// it, as long as something is.
func (l *NodeLifecycle) ofPosts(n *corev1.Node, seen, now int64) verdict {
	c := readyCondition(n)
	h := fsm.NodeHealth{Name: n.Name, Ready: string(corev1.ConditionUnknown), Reason: fsm.NodeStatusUnknown}
	lost := l.lost(seen, now)
	known := c != nil && (c.Status == corev1.ConditionTrue || c.Status == corev1.ConditionFalse)
	switch {
	case known && !lost:
		return verdict{well: c.Status == corev1.ConditionTrue, health: fsm.NodeHealth{Name: n.Name, Ready: string(c.Status)}}
	case !lost && hasTaint(n, corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule):
		return verdict{} // it is new: no pods go there until its status is posted
	case !known && (c == nil || c.Reason == fsm.NodeStatusNeverUpdated):
		h.Reason, h.Message = fsm.NodeStatusNeverUpdated, "the node's status was never posted"
	case !lost:
		h.Message = "the node's status does not say whether it is ready"
	default:
		h.Message = fmt.Sprintf("the node's lease was not renewed, nor its status posted, for %d seconds", (now-seen)/seconds(1))
	}
	return verdict{health: h}
}

// healthPods is how many nodes and pods on them one command is about: those of a
// lost node are no longer ready.
const healthPods = 250

// inPieces makes commands of about equal cost of what has to be stored.
func inPieces(v *fsm.View, changes []fsm.NodeHealth) []fsm.Command {
	var out []fsm.Command
	cost := int64(0)
	for _, h := range changes {
		pods := int64(1)
		if h.Ready != string(corev1.ConditionTrue) {
			pods += min(v.Usage(h.Name).Requested.Pods, fsm.MaxUnready)
		}
		if len(out) == 0 || cost+pods > healthPods {
			out, cost = append(out, &fsm.SetNodeHealth{}), 0
		}
		cost += pods
		c := out[len(out)-1].(*fsm.SetNodeHealth)
		c.Nodes = append(c.Nodes, h)
	}
	return out
}

func hasReadyPods(v *fsm.View, node string) (found bool) {
	v.ReadyPodsOnNode(node, func(*corev1.Pod) bool {
		found = true
		return false
	})
	return found
}

// change is what has to be stored of a node's health, if anything.
func change(v *fsm.View, n *corev1.Node, h fsm.NodeHealth) (fsm.NodeHealth, bool) {
	c, key := readyCondition(n), keepsAway(&h)
	switch {
	case c == nil || string(c.Status) != h.Ready:
		return h, true
	case key == "":
		return h, tainted(n)
	case !hasTaint(n, key, corev1.TaintEffectNoSchedule):
		return h, true
	}
	// Said again, without new words, for the pods that were too many at once.
	return fsm.NodeHealth{Name: h.Name, Ready: h.Ready}, v.Usage(n.Name).Requested.Pods > fsm.MaxUnready && hasReadyPods(v, n.Name)
}

// keepsAway is the taint of a node of this health, "" if it is well.
func keepsAway(h *fsm.NodeHealth) string {
	switch corev1.ConditionStatus(h.Ready) {
	case corev1.ConditionTrue:
		return ""
	case corev1.ConditionFalse:
		return corev1.TaintNodeNotReady
	}
	return corev1.TaintNodeUnreachable
}

// Held: pods of unreachable nodes stay for now, because all nodes are lost, or
// were so a moment ago.
func (l *NodeLifecycle) Held(nowUnixNano int64) bool {
	return l.allLost || l.resumed != 0 && nowUnixNano-l.resumed <= l.grace
}

// letGo takes as many lost nodes as the zones' rates allow. When every zone is
// lost nobody is let go.
func (l *NodeLifecycle) letGo(zones []*zone, nowUnixNano int64) []fsm.NodeHealth {
	was := l.allLost
	l.allLost = len(zones) > 0
	for _, z := range zones {
		l.allLost = l.allLost && z.ready == 0
	}
	if was && !l.allLost {
		l.resumed = nowUnixNano
	}
	before := l.zones
	l.zones = map[zoneName]*zoneRate{}
	var out []fsm.NodeHealth
	for _, z := range zones {
		rate := before[z.name]
		if rate == nil {
			rate = &zoneRate{tokens: 1, lastUnixNano: nowUnixNano}
		}
		l.zones[z.name] = rate
		perSecond := z.rate()
		if l.Held(nowUnixNano) {
			perSecond = 0
		}
		rate.refill(perSecond, nowUnixNano)
		for _, h := range z.toLetGo {
			if perSecond == 0 || rate.tokens < 1 {
				break
			}
			rate.tokens--
			out = append(out, h)
		}
	}
	return out
}

func (r *zoneRate) refill(perSecond float64, nowUnixNano int64) {
	r.tokens = math.Min(1, r.tokens+perSecond*float64(max(0, nowUnixNano-r.lastUnixNano))/float64(seconds(1)))
	r.lastUnixNano = nowUnixNano
}

// rate is that of Kubernetes' ReducedQPSFunc for a zone of which most is lost.
// A zone that is lost whole, while others are well, goes at the normal rate.
func (z *zone) rate() float64 {
	total := z.ready + z.absent
	switch {
	case z.ready == 0, z.absent < unhealthyZoneLeast, float64(z.absent)/float64(total) < unhealthyZoneFraction:
		return nodesPerSecond
	case total > largeZone:
		return nodesPerSecondInPain
	}
	return 0
}

func zoneOf(n *corev1.Node) zoneName {
	return zoneName{n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelTopologyZone]}
}

// everConnected: a worker registers with the identity of its machine. So does a kubelet, which has a port of its own.
func everConnected(n *corev1.Node) bool {
	return n.Status.NodeInfo.SystemUUID != "" && n.Status.DaemonEndpoints.KubeletEndpoint.Port == 0
}

// tainted: the node bears a taint that only one that is not ready has.
func tainted(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeUnreachable || t.Key == corev1.TaintNodeNotReady
	})
}

// readyCondition is what was said of the node's health last; nil if nothing was.
func readyCondition(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

func readyStatus(n *corev1.Node) corev1.ConditionStatus {
	if c := readyCondition(n); c != nil {
		return c.Status
	}
	return corev1.ConditionUnknown
}

// nodeReadySince is when the node became ready, 0 if it is not. What lies ahead of the
// state's time was written by somebody, and says nothing.
func nodeReadySince(n *corev1.Node, nowUnixNano int64) int64 {
	if c := readyCondition(n); c != nil && c.Status == corev1.ConditionTrue {
		if at := c.LastTransitionTime.UnixNano(); at <= nowUnixNano {
			return at
		}
	}
	return 0
}

func hasTaint(n *corev1.Node, key string, effect corev1.TaintEffect) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key && t.Effect == effect })
}
