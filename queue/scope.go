package queue

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/berth-dev/berth/model"
)

// Scope says of what kind the groups are that something may have helped
// that has nothing to do with any one node or pod. A sweep goes through all
// groups and wakes one pod of each that is meant.
type Scope struct {
	// All: everybody.
	All bool `msgpack:"all,omitempty"`
	// Ruled: whoever has rules about other pods, or is kept away by theirs.
	Ruled bool `msgpack:"ruled,omitempty"`
	// Keys: whoever has rules by one of these topology keys, for nodes changed
	// their domains, or is kept away.
	Keys []string `msgpack:"keys,omitempty"`
	// NewKeys: whoever counts the domains of one of these keys.
	NewKeys []string `msgpack:"new_keys,omitempty"`
	// Labels: whoever says by labels which nodes are domains. Taints: by taints.
	Labels bool `msgpack:"labels,omitempty"`
	Taints bool `msgpack:"taints,omitempty"`
	// Spaces: whoever chooses namespaces by their labels, or is kept away.
	Spaces bool `msgpack:"spaces,omitempty"`
	// LabelKeys is Labels, and SpaceKeys Spaces, for those who look at one of these
	// labels: others of the node, or the namespace, have not changed.
	LabelKeys []string `msgpack:"label_keys,omitempty"`
	SpaceKeys []string `msgpack:"space_keys,omitempty"`
	// Budgets: whoever may not violate budgets; below a priority, also whoever
	// may not violate those that say from which one on they give way. Of these only
	// those whom it helps to evict Victims (nil: whomever).
	Budgets bool     `msgpack:"budgets,omitempty"`
	Below   int64    `msgpack:"below,omitempty"`
	Victims *Victims `msgpack:"victims,omitempty"`
	// Volumes: whoever claims volumes.
	Volumes bool `msgpack:"volumes,omitempty"`
}

// maxScopeNames bounds what a scope lists; beyond it everybody with rules is
// meant.
const maxScopeNames = 256

// None says whether nobody is meant.
func (s *Scope) None() bool {
	return !s.All && !s.Ruled && !s.Labels && !s.Taints && !s.Spaces && !s.Budgets && !s.Volumes &&
		len(s.Keys)+len(s.NewKeys)+len(s.LabelKeys)+len(s.SpaceKeys) == 0
}

// Domains says whether the scope is about rules between pods.
func (s *Scope) Domains() bool {
	return s.All || s.Ruled || s.Labels || s.Taints || s.Spaces || len(s.Keys)+len(s.NewKeys)+len(s.LabelKeys)+len(s.SpaceKeys) > 0
}

// Budget means those whom a budget may let evict more than it did, of the victims.
func (s *Scope) Budget(b *policyv1.PodDisruptionBudget, victims *Victims) {
	if victims.nobody() {
		return
	}
	s.mindful(victims)
	if from, ok := model.ProtectsBelow(b); ok {
		s.Below = max(s.Below, from)
	}
}

// mindful means those who may not violate budgets, as far as it helps them to evict the victims.
func (s *Scope) mindful(victims *Victims) {
	if s.Budgets {
		victims = s.Victims.And(victims)
	}
	s.Budgets, s.Victims = true, victims
}

func (s *Scope) name(list *[]string, name string) {
	at, found := slices.BinarySearch(*list, name)
	switch {
	case found:
	case len(*list) >= maxScopeNames:
		s.Ruled = true
	default:
		*list = slices.Insert(*list, at, name)
	}
}

// nodeAdded: more domains can lift what a constraint demands while there are
// few; pods and nominations that wait on the node (awaited) count from now on.
func (s *Scope) nodeAdded(n *corev1.Node, awaited bool) {
	list := &s.NewKeys
	if awaited {
		list = &s.Keys
	}
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		s.name(list, key)
	}
}

// nodeGone: its domains may be gone, and its pods are in none.
func (s *Scope) nodeGone(n *corev1.Node) {
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		s.name(&s.Keys, key)
	}
}

func (s *Scope) nodeChanged(old, now *corev1.Node, byLabel bool) {
	if !maps.Equal(old.Labels, now.Labels) {
		s.Labels = s.Labels || !byLabel
		for _, key := range changedKeys(old.Labels, now.Labels) {
			s.name(&s.Keys, key)
			if byLabel {
				s.name(&s.LabelKeys, key)
			}
		}
	}
	if old.Spec.Unschedulable != now.Spec.Unschedulable ||
		!slices.EqualFunc(old.Spec.Taints, now.Spec.Taints, sameTaint) {
		s.Taints = true
	}
}

func sameTaint(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }

// Add makes a scope mean also what another does.
func (s *Scope) Add(o *Scope) {
	s.All, s.Ruled, s.Labels, s.Taints = s.All || o.All, s.Ruled || o.Ruled, s.Labels || o.Labels, s.Taints || o.Taints
	s.Spaces, s.Below, s.Volumes = s.Spaces || o.Spaces, max(s.Below, o.Below), s.Volumes || o.Volumes
	if o.Budgets {
		s.mindful(o.Victims)
	}
	add := func(to *[]string, keys []string) {
		for _, key := range keys {
			s.name(to, key)
		}
	}
	add(&s.Keys, o.Keys)
	add(&s.NewKeys, o.NewKeys)
	add(&s.LabelKeys, o.LabelKeys)
	add(&s.SpaceKeys, o.SpaceKeys)
}

// means says whether a group is of the kinds that the scope names, but for
// Budgets.
func (x *Index) means(of State, s *Scope, g *Group) bool {
	if s.All || s.Volumes && g.OfClaims() {
		return true
	}
	c := g.Class
	if _, byDefaults := g.Owner(); byDefaults {
		c = x.RulesOf(of, g)
	}
	if !c.HasHardTopology() && !g.Alike() {
		return false
	}
	switch {
	case s.Ruled, s.Spaces && (g.Alike() || c.ChoosesNamespaces()),
		s.Taints && c.HonorsTaints(), s.Labels && c.HonorsLabels(), c.HonorsLabelsOf(s.LabelKeys):
		return true
	case len(s.SpaceKeys) > 0 && (g.Alike() || c.ChoosesNamespacesBy(s.SpaceKeys)):
		return true
	case len(s.Keys) > 0 && (g.Alike() && of.Topology().KeepsAwayBy(s.Keys) || c.RulesBy(s.Keys)):
		return true
	}
	return len(s.NewKeys) > 0 && c.CountsDomainsBy(s.NewKeys)
}

// Swept is a group that a sweep means.
type Swept struct {
	Group string
	// Nominees: those that wait for their victims are meant too. By what budgets
	// allow they are not: for who waits for victims nobody else has to go.
	Nominees bool
}

// Sweep gives the groups that a scope means, from a key on ("" for the first),
// or as many as the entry has time for, and where to go on; "" if there are no
// others. Waking them is charged when it is done. gains says of a group that
// minds budgets whether it helps to evict the scope's victims, and charges that.
func (x *Index) Sweep(of State, work *Work, s *Scope, from string, gains func(g *Group) bool) (meant []Swept, next string) {
	first := string(rune(byCPU))
	x.groups.ScanFrom(first, max(from, first), func(key string, g Group) bool {
		if work.spent+len(meant)*costWake >= maxWork {
			next = key
			return false
		}
		work.Charge(costLook + of.DefaultsCost(&g))
		all := x.means(of, s, &g)
		if all || s.Budgets && of.MindsBudgets(g.Class, s.Below) && gains(&g) {
			meant = append(meant, Swept{Group: g.Key, Nominees: all})
		}
		return true
	})
	return meant, next
}
