package queue

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// Pods with rules about others wait under the places of the pods that the rules
// are about: a namespace, and a label that they must have. So a pod that comes,
// leaves, begins to leave or changes its labels looks up the groups whose rules
// it matches and no others, and wakes one pod of each that the change can have
// helped; the chain of the group does the rest.

// State is what has to be known of the rest of a state to say who is helped.
type State interface {
	// RuledClass is the class by which a pod, by its key, is kept off nodes as
	// things are: with what its profile asks of nodes, and the default spread
	// constraints that can keep it off. With the key "" it is without these.
	RuledClass(pod string, c *model.Class) *model.Class
	// DefaultsCost is what it costs to find out which default constraints hold for the
	// pods of a group, where those can keep it off nodes.
	DefaultsCost(g *Group) int
	// Topology counts for the rules between pods. JudgeCost is what it may cost to
	// ask it about a class for the first time, as the tables say it; below 0: it is
	// not to be asked yet.
	Topology() *model.Topology
	JudgeCost(rules *model.Class) int
	// MayEvict says whether there may be pods that a pod of the class could evict.
	MayEvict(c *model.Class) bool
	// MindsBudgets says whether budgets can keep the class from preempting, those
	// included that give way from a priority of at most `below` on.
	MindsBudgets(c *model.Class, below int64) bool
	// NamespaceLabels are those of a namespace; nil if it is not there.
	NamespaceLabels(namespace string) map[string]string
}

// hardKinds are the rules of a class between pods, of which pods are helped by
// what other pods do.
var hardKinds = [...]model.ReasonKind{model.TopologySpread, model.PodAffinity, model.PodAntiAffinity}

// placeKeys are the keys of an entry of a group by the places of other pods,
// each once.
func placeKeys(e *Entry, group string) []string {
	var keys []string
	if e.ByDefaults {
		keys = append(keys, placePrefix(model.TopologySpread, model.TermPlace{Namespace: e.class.Namespace})+group)
	}
	if e.KeptAway {
		// Who stands in the way has the rule: the namespace is all that is known.
		keys = append(keys, placePrefix(model.ExistingAntiAffinity,
			model.TermPlace{Namespace: e.class.Namespace})+group)
	}
	if e.class.HasHardTopology() {
		for _, kind := range hardKinds {
			for _, p := range e.class.TermPlaces(kind) {
				keys = append(keys, placePrefix(kind, p)+group)
			}
		}
	}
	return keys
}

func placePrefix(kind model.ReasonKind, p model.TermPlace) string {
	return string(rune(kind)) + p.Namespace + "\x00" + p.Label + "\x00" + p.Value + "\x00"
}

// HasRuledGroups says whether anybody waits who minds what other pods do.
func (x *Index) HasRuledGroups() bool { return x.ruledGroups.Len() > 0 }

// RulesOf is the class by which the pods of a group are kept off nodes.
func (x *Index) RulesOf(s State, g *Group) *model.Class {
	if g.Rules != nil {
		return g.Rules
	}
	if _, byDefaults := g.Owner(); byDefaults || g.OfClaims() {
		if e, ok := x.Any(g.Key); ok {
			return s.RuledClass(e.Key(), g.Class)
		}
	}
	return s.RuledClass("", g.Class)
}

// PodChange is what happened to a pod on a node, or to a nomination to it.
type PodChange struct {
	How   model.PodChange
	Pod   *model.Class // what it asks for, as it was when it left or as it is now
	Other *model.Class // of a pod that changed: what it asks for now, or did before; else nil
	Node  string
}

// Concerned are the groups whose rules are about a pod that changed, and those
// that it kept away, each once.
func (x *Index) Concerned(work *Work, c PodChange) []Group {
	var out []Group
	seen := map[string]bool{}
	look := func(prefix string) {
		work.Charge(costLook)
		x.ruledGroups.ScanFrom(prefix, prefix, func(_ string, g Group) bool {
			work.Charge(1)
			if !seen[g.Key] {
				seen[g.Key] = true
				out = append(out, g)
			}
			return true
		})
	}
	places := c.Pod.PlacesOf()
	for _, kind := range hardKinds {
		for _, p := range places {
			look(placePrefix(kind, p))
		}
	}
	if c.How == model.PodCame {
		return out
	}
	for _, ns := range c.Pod.GuardedNamespaces() {
		if ns == model.AnyNamespace {
			look(string(rune(model.ExistingAntiAffinity)))
		} else {
			look(placePrefix(model.ExistingAntiAffinity, model.TermPlace{Namespace: ns}))
		}
	}
	return out
}

// Helped says whether a change of a pod, which the counters know already, can
// have helped a group. came is how many pods came with it. All says that what the
// nominations of the group's own pods hide, and what happened on nodes that are
// gone, counts as well.
func (x *Index) Helped(s State, work *Work, g *Group, c PodChange, came int64, all bool) bool {
	work.Charge(costAsk)
	rules := x.RulesOf(s, g)
	if !rules.HelpedBy(c.How) {
		return false
	}
	if !work.MayJudge(g.Key, func() int { return s.JudgeCost(rules) }) {
		return true
	}
	return s.Topology().Judge(rules).Helped(model.Event{
		Node: c.Node, Pod: c.Pod, Other: c.Other, How: c.How, Came: came, Evicting: s.MayEvict(g.Class), ByItself: !g.Alike(),
		OfNominees: all && len(x.Waiting(g.Key, berthv1.QueueNominated, 1)) > 0, NodeMayBeGone: all,
	})
}

// SelectorChange is a service, or a workload (Owner is its key), that came, went,
// or selects other pods now.
type SelectorChange struct {
	Namespace, Owner string
	Before, After    map[string]string // of a service
}

// Spread are the groups that default constraints spread, and whose constraints
// such a change can have changed.
func (x *Index) Spread(work *Work, c SelectorChange) []string {
	selects := func(selector map[string]string, of *model.Class) bool {
		return len(selector) > 0 && labels.SelectorFromSet(selector).Matches(labels.Set(of.Labels))
	}
	var groups []string
	x.ruledGroups.Scan(placePrefix(model.TopologySpread, model.TermPlace{Namespace: c.Namespace}),
		func(_ string, g Group) bool {
			work.Charge(costAsk)
			owner, ok := g.Owner()
			if ok && (c.Owner != "" && owner == c.Owner || selects(c.Before, g.Class) || selects(c.After, g.Class)) {
				groups = append(groups, g.Key)
			}
			return true
		})
	return groups
}

// mayConcern says whether a class has a hard rule that a pod of these labels can
// have to do with.
func mayConcern(rules *model.Class, how model.PodChange, namespace string, podLabels, nsLabels map[string]string) bool {
	return slices.ContainsFunc(hardKinds[:], func(kind model.ReasonKind) bool {
		return rules.MayConcern(kind, how, namespace, podLabels, nsLabels)
	})
}
