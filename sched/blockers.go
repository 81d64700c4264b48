package sched

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// Who is in the way is named for those who ask about one pod, and only then: counters know how many pods a rule is
// about, not which. The first verdict that a rule is in looks its pods up in all domains at once, so that a question
// costs the pods that the rules are about, however many nodes they keep the pod off.

// Reason is one reason of one node, with those whom it is about.
type Reason struct {
	model.Reason
	// Blockers are who is in the way by anti-affinity, of the pod or of those who are there: one for each rule. For
	// want of a resource or a port they are those for whom it is kept (NM4), together and without a Key.
	Blockers []*Blockers
	// Skews are the domains with too many pods, one for each hard spread constraint that would be broken.
	Skews []model.Bar
}

// Blockers is the pods of one domain that one rule is about. The verdicts of all nodes of the domain share it.
type Blockers struct {
	// Key and Value are the label that the nodes of the domain have in common; Shared says that there are several.
	Key, Value string
	Shared     bool
	// Pods are the most important first, and by key.
	Pods []Blocker
}

// Blocker is a pod that others are kept off nodes by.
type Blocker struct {
	Key      string
	UID      types.UID
	Priority int32
	// Node is where it is, or is to come when it is Nominated. Ending says that its deletion has begun.
	Node              string
	Nominated, Ending bool
}

// Before orders pods that are in the way as they are to be told of.
func (p *Blocker) Before(o *Blocker) int {
	return cmp.Or(cmp.Compare(o.Priority, p.Priority), cmp.Compare(p.Key, o.Key))
}

// keptFrom is for whom a node keeps what a class lacks there: the nominations without which it would lack less.
func keptFrom(c *model.Class, n *node, r *model.Reason) []*Blockers {
	var kept *Blockers
	for _, nom := range n.noms {
		var takes bool
		switch r.Kind {
		case model.InsufficientResource:
			takes = nom.Class.Request.Get(r.Resource) > 0
		case model.Ports:
			takes = c.TakesPortOf(nom.Class)
		}
		if !takes || !nom.TakesFrom(c.Priority, c.RunsAtMostSeconds) {
			continue
		}
		if kept == nil {
			kept = &Blockers{}
		}
		kept.Pods = append(kept.Pods, Blocker{Key: nom.Key, UID: nom.UID, Priority: nom.Priority, Node: n.name,
			Nominated: true})
	}
	if kept == nil {
		return nil
	}
	slices.SortFunc(kept.Pods, func(x, y Blocker) int { return x.Before(&y) })
	return []*Blockers{kept}
}

// blockerSearch looks up who is in the way, for one question.
type blockerSearch struct {
	state *fsm.View
	view  *View // of all nodes
	judge *model.Judge
	class *model.Class
	asked *corev1.Pod
	list  func(n *node) // the node's pods, if they are not yet
	terms map[uint64]map[int32]*Blockers
}

// reasons are a node's, with who is in the way.
func (k *blockerSearch) reasons(node string) []Reason {
	found := k.judge.Reasons(node)
	if len(found) == 0 {
		return nil
	}
	out := make([]Reason, len(found))
	bars := k.judge.Bars(node)
	for i := range found {
		out[i].Reason = found[i]
		for j := range bars {
			switch b := &bars[j]; {
			case b.Kind != found[i].Kind:
			case b.Kind == model.TopologySpread:
				out[i].Skews = append(out[i].Skews, *b)
			default:
				out[i].Blockers = append(out[i].Blockers, k.of(b))
			}
		}
	}
	return out
}

// of is who is in the way by a rule.
func (k *blockerSearch) of(b *model.Bar) *Blockers {
	domains, ok := k.terms[b.Term()]
	if !ok {
		domains = k.gather(b)
		k.terms[b.Term()] = domains
	}
	c, ok := domains[b.Domain()]
	if !ok {
		c = &Blockers{}
		domains[b.Domain()] = c
	}
	c.Key, c.Value, c.Shared = b.Key, b.Value, b.Shared
	return c
}

// gather finds the pods that a rule is about, by domain.
func (k *blockerSearch) gather(b *model.Bar) map[int32]*Blockers {
	domains := map[int32]*Blockers{}
	add := func(p Blocker, class *model.Class) {
		d, counts := b.Counts(p.Node, class)
		if !counts {
			return
		}
		if domains[d] == nil {
			domains[d] = &Blockers{}
		}
		domains[d].Pods = append(domains[d].Pods, p)
	}
	seen := map[string]bool{}
	b.Nodes(func(node string) {
		if seen[node] {
			return
		}
		seen[node] = true
		slot, known := k.view.byName[node]
		if !known {
			return
		}
		n := &k.view.nodes[slot]
		k.list(n)
		for _, p := range n.pods {
			add(Blocker{Key: p.key, UID: p.UID, Priority: p.Priority, Node: node, Ending: p.isLeaving()}, p.class)
		}
	})
	own, _ := k.state.Nominations.Get(fsm.PodKey(k.asked.Namespace, k.asked.Name))
	k.state.Nominations.Scan("", func(key string, n *fsm.Nomination) bool {
		if n.Priority >= k.class.Priority && !yieldsTo(n, own, k.asked.UID) { // NM4
			add(Blocker{Key: key, UID: n.UID, Priority: n.Priority, Node: n.Node, Nominated: true}, n.Class())
		}
		return true
	})
	// order does not matter: each by itself.
	for _, c := range domains {
		slices.SortFunc(c.Pods, func(x, y Blocker) int { return x.Before(&y) })
	}
	return domains
}

// yieldsTo says whether a nomination does not stand in a pod's way: its own, and those of its priority that were made
// after it. own is the one that its name has, or nil: for rules about other pods wherever it is, for room if it is on
// the node.
func yieldsTo(n, own *fsm.Nomination, uid types.UID) bool {
	return n.UID == uid || own != nil && own.UID == uid && n.YieldsTo(own)
}
