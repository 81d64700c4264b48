package controller

import (
	"fmt"
	"math"

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
// pods of lost nodes are let go (PD12). Its memory is only that of its rates.
type NodeLifecycle struct {
	zones map[string]*zoneRate
}

// zoneRate is a token bucket that holds at most one node.
type zoneRate struct {
	tokens       float64
	lastUnixNano int64
}

type zone struct {
	name          string
	ready, absent int
	toLetGo       []*corev1.Node // absent, and their pods not yet let go
}

// Reconcile compares the nodes' health as it is stored with what their
// heartbeats say. since is when this server began to lead: silence counts from
// then at the earliest.
func (l *NodeLifecycle) Reconcile(v *fsm.View, beats Heartbeats, sinceUnixNano, nowUnixNano int64) []fsm.Command {
	grace := seconds(int64(*v.SchedulerConfig().Spec.NodeGraceSeconds))
	var changes []fsm.NodeHealth
	byName := map[string]*zone{}
	var zones []*zone // in the order of their first node
	v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
		seen, managed := beats.LastSeenUnixNano(n.Name)
		if !managed && !everConnected(n) {
			return true // made through the API, with no worker behind it: its health is its maker's to say
		}
		z := byName[zoneOf(n)]
		if z == nil {
			z = &zone{name: zoneOf(n)}
			byName[z.name] = z
			zones = append(zones, z)
		}
		silent := nowUnixNano - max(seen, sinceUnixNano)
		lost := silent > grace
		status := readyStatus(n)
		switch {
		case lost && status == corev1.ConditionTrue:
			changes = append(changes, fsm.NodeHealth{
				Name: n.Name, Ready: string(corev1.ConditionUnknown), Reason: "NodeStatusUnknown",
				Message: fmt.Sprintf("the worker has been silent for %d seconds", silent/seconds(1)),
			})
		case !lost && status != corev1.ConditionTrue && seen >= sinceUnixNano:
			changes = append(changes, fsm.NodeHealth{
				Name: n.Name, Ready: string(corev1.ConditionTrue), Reason: "WorkerReady", Message: "the worker is connected",
			})
		}
		switch {
		case !lost:
			z.ready++
		default:
			z.absent++
			if !hasTaint(n, corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute) {
				z.toLetGo = append(z.toLetGo, n)
			}
		}
		return true
	})
	changes = append(changes, l.letGo(zones, nowUnixNano)...)
	if len(changes) == 0 {
		return nil
	}
	return []fsm.Command{&fsm.SetNodeHealth{Nodes: changes}}
}

// letGo takes as many lost nodes as the zones' rates allow. When every zone is
// lost it is more likely that we are cut off than that everything died, and
// nobody is let go.
func (l *NodeLifecycle) letGo(zones []*zone, nowUnixNano int64) []fsm.NodeHealth {
	allLost := true
	for _, z := range zones {
		allLost = allLost && z.ready == 0
	}
	if l.zones == nil {
		l.zones = map[string]*zoneRate{}
	}
	var out []fsm.NodeHealth
	for _, z := range zones {
		rate := l.zones[z.name]
		if rate == nil {
			rate = &zoneRate{tokens: 1, lastUnixNano: nowUnixNano}
			l.zones[z.name] = rate
		}
		perSecond := z.rate()
		if allLost && len(zones) > 1 || allLost && z.absent >= unhealthyZoneLeast {
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
	r.tokens = math.Min(1, r.tokens+perSecond*float64(nowUnixNano-r.lastUnixNano)/float64(seconds(1)))
	r.lastUnixNano = nowUnixNano
}

func (z *zone) rate() float64 {
	total := z.ready + z.absent
	if z.absent < unhealthyZoneLeast || float64(z.absent)/float64(total) < unhealthyZoneFraction {
		return nodesPerSecond
	}
	if total > largeZone {
		return nodesPerSecondInPain
	}
	return 0
}

func zoneOf(n *corev1.Node) string {
	return n.Labels[corev1.LabelTopologyRegion] + "/" + n.Labels[corev1.LabelTopologyZone]
}

// everConnected: a worker registers with the identity of its machine.
func everConnected(n *corev1.Node) bool { return n.Status.NodeInfo.SystemUUID != "" }

func readyStatus(n *corev1.Node) corev1.ConditionStatus {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return n.Status.Conditions[i].Status
		}
	}
	return corev1.ConditionUnknown
}

func hasTaint(n *corev1.Node, key string, effect corev1.TaintEffect) bool {
	for _, t := range n.Spec.Taints {
		if t.Key == key && t.Effect == effect {
			return true
		}
	}
	return false
}
