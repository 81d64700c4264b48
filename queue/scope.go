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
	// Budgets: whoever may not violate budgets; below a priority, also whoever
	// may not violate those that say from which one on they give way.
	Budgets bool  `msgpack:"budgets,omitempty"`
	Below   int64 `msgpack:"below,omitempty"`
	// Volumes: whoever claims volumes.
	Volumes bool `msgpack:"volumes,omitempty"`
}

// maxScopeNames bounds what a scope lists; beyond it everybody with rules is
// meant.
const maxScopeNames = 256

// None says whether nobody is meant.
func (s *Scope) None() bool {
	return !s.All && !s.Ruled && !s.Labels && !s.Taints && !s.Spaces && !s.Budgets && !s.Volumes &&
		len(s.Keys)+len(s.NewKeys) == 0
}

// Domains says whether the scope is about rules between pods.
func (s *Scope) Domains() bool {
	return s.All || s.Ruled || s.Labels || s.Taints || s.Spaces || len(s.Keys)+len(s.NewKeys) > 0
}

// Budget means those whom a budget may let evict more than it did.
func (s *Scope) Budget(b *policyv1.PodDisruptionBudget) {
	s.Budgets = true
	if from, ok := model.ProtectsBelow(b); ok {
		s.Below = max(s.Below, from)
	}
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

func (s *Scope) nodeChanged(old, now *corev1.Node) {
	if !maps.Equal(old.Labels, now.Labels) {
		s.Labels = true
		both := maps.Clone(old.Labels)
		if both == nil {
			both = map[string]string{}
		}
		maps.Copy(both, now.Labels)
		for _, key := range slices.Sorted(maps.Keys(both)) {
			was, had := old.Labels[key]
			if is, has := now.Labels[key]; had != has || was != is {
				s.name(&s.Keys, key)
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
	s.Spaces, s.Budgets, s.Below = s.Spaces || o.Spaces, s.Budgets || o.Budgets, max(s.Below, o.Below)
	s.Volumes = s.Volumes || o.Volumes
	for _, key := range o.Keys {
		s.name(&s.Keys, key)
	}
	for _, key := range o.NewKeys {
		s.name(&s.NewKeys, key)
	}
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
		s.Taints && c.HonorsTaints(), s.Labels && c.HonorsLabels():
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
// others. Waking them is charged when it is done.
func (x *Index) Sweep(of State, work *Work, s *Scope, from string) (meant []Swept, next string) {
	will := work.spent // with the waking
	first := string(rune(byCPU))
	x.groups.ScanFrom(first, max(from, first), func(key string, g Group) bool {
		if will >= maxWork {
			next = key
			return false
		}
		will += costLook + of.DefaultsCost(&g)
		all := x.means(of, s, &g)
		if all || s.Budgets && of.MindsBudgets(g.Class, s.Below) {
			meant = append(meant, Swept{Group: g.Key, Nominees: all})
			will += costWake
		}
		return true
	})
	work.spent = will - len(meant)*costWake
	return meant, next
}
