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
// node that no worker has ever connected for.
type Heartbeats interface {
	LastSeenUnixNano(node string) (unixNano int64, ok bool)
}

// NodeLifecycle decides which nodes are lost, which are back, and when the
// pods of lost nodes are let go (PD12). Its memory is that of its rates, and of
// a time when every node was lost.
type NodeLifecycle struct {
	zones map[zoneName]*zoneRate
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
	toLetGo       []*corev1.Node // lost, and their pods not yet let go
}

// Reconcile compares the nodes' health as it is stored with what their
// heartbeats say. since is when this server began to lead: silence counts from
// then at the earliest.
func (l *NodeLifecycle) Reconcile(v *fsm.View, beats Heartbeats, sinceUnixNano, nowUnixNano int64) []fsm.Command {
	l.grace = seconds(int64(*v.SchedulerConfig().Spec.NodeGraceSeconds))
	var changes []fsm.NodeHealth
	byName := map[zoneName]*zone{}
	var zones []*zone // in the order of their first node
	v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
		seen, managed := beats.LastSeenUnixNano(n.Name)
		if !managed && !everConnected(n) {
			return true // made through the API, with no worker behind it: its health is its maker's to say
		}
		name := zoneOf(n)
		z := byName[name]
		if z == nil {
			z = &zone{name: name}
			byName[name] = z
			zones = append(zones, z)
		}
		// A worker that registers is heard, though no server has reported it yet.
		seen = max(seen, nodeReadySince(n, nowUnixNano))
		silent := nowUnixNano - max(seen, sinceUnixNano)
		lost := nowUnixNano-max(seen, sinceUnixNano, l.resumed) > l.grace
		heard := seen >= sinceUnixNano && silent <= l.grace
		if h, ok := change(n, lost, heard, silent); ok {
			changes = append(changes, h)
		} else if lost && v.Usage(n.Name).Requested.Pods > fsm.MaxUnready && hasReadyPods(v, n.Name) {
			// Said again, in the same words, for the pods that were too many at once.
			h := unreachable(n.Name, silent)
			h.Message = readyMessage(n)
			changes = append(changes, h)
		}
		// One that was lost and was not heard of since is not well either,
		// although it has another grace period.
		if lost || !heard && readyStatus(n) != corev1.ConditionTrue {
			z.absent++
		} else {
			z.ready++
		}
		if lost && !hasTaint(n, corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute) {
			z.toLetGo = append(z.toLetGo, n)
		}
		return true
	})
	changes = append(changes, l.letGo(zones, nowUnixNano)...)
	return inPieces(v, changes)
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

func unreachable(node string, silent int64) fsm.NodeHealth {
	return fsm.NodeHealth{
		Name: node, Ready: string(corev1.ConditionUnknown), Reason: "NodeStatusUnknown",
		Message: fmt.Sprintf("the worker has been silent for %d seconds", silent/seconds(1)),
	}
}

// change is what has to be stored of a node's health, if anything.
func change(n *corev1.Node, lost, heard bool, silent int64) (fsm.NodeHealth, bool) {
	status := readyStatus(n)
	switch {
	case lost && (status != corev1.ConditionUnknown || !hasTaint(n, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule)):
		return unreachable(n.Name, silent), true
	case heard && (status != corev1.ConditionTrue || tainted(n)):
		return fsm.NodeHealth{
			Name: n.Name, Ready: string(corev1.ConditionTrue), Reason: "WorkerReady", Message: "the worker is connected",
		}, true
	}
	return fsm.NodeHealth{}, false
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
		for _, n := range z.toLetGo {
			if perSecond == 0 || rate.tokens < 1 {
				break
			}
			rate.tokens--
			out = append(out, fsm.NodeHealth{
				Name: n.Name, Ready: string(corev1.ConditionUnknown), Reason: "NodeStatusUnknown",
				Message: "the worker is silent", LetGo: true,
			})
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

// everConnected: a worker registers with the identity of its machine.
func everConnected(n *corev1.Node) bool { return n.Status.NodeInfo.SystemUUID != "" }

// tainted: the node bears a taint that only one that is not ready has.
func tainted(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeUnreachable || t.Key == corev1.TaintNodeNotReady
	})
}

func readyStatus(n *corev1.Node) corev1.ConditionStatus {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return n.Status.Conditions[i].Status
		}
	}
	return corev1.ConditionUnknown
}

// readyMessage is what was said of the node's health last.
func readyMessage(n *corev1.Node) string {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return n.Status.Conditions[i].Message
		}
	}
	return ""
}

// nodeReadySince is when the node became ready, 0 if it is not. What lies ahead of the
// state's time was written by somebody, and says nothing.
func nodeReadySince(n *corev1.Node, nowUnixNano int64) int64 {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			if at := c.LastTransitionTime.UnixNano(); at <= nowUnixNano {
				return at
			}
		}
	}
	return 0
}

func hasTaint(n *corev1.Node, key string, effect corev1.TaintEffect) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key && t.Effect == effect })
}
