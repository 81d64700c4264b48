package fsm

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// What an entry does to wake others is bounded, in units of about a tenth of a
// microsecond: what does not fit is remembered in rows, and done by the entries
// that follow. The scheduler sees to it that there are such (WakesPending).
const (
	maxWakeWork = 100_000
	costLook    = 10  // to look for a group
	costAsk     = 10  // to ask whether a group is helped
	costWake    = 200 // to wake a pod
)

// sweepScope says of what kind the groups are that something may have helped
// that has nothing to do with any one node or pod. A sweep goes through all
// groups and wakes one pod of each that is meant.
type sweepScope struct {
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
}

// maxScopeNames bounds what a scope lists; beyond it everybody with rules is
// meant.
const maxScopeNames = 256

func (s *sweepScope) none() bool {
	return !s.All && !s.Ruled && !s.Labels && !s.Taints && !s.Spaces && !s.Budgets &&
		len(s.Keys)+len(s.NewKeys) == 0
}

// domains says whether the scope is about rules between pods.
func (s *sweepScope) domains() bool {
	return s.All || s.Ruled || s.Labels || s.Taints || s.Spaces || len(s.Keys)+len(s.NewKeys) > 0
}

// budget: one allows more than it did.
func (s *sweepScope) budget(b *policyv1.PodDisruptionBudget) {
	s.Budgets = true
	if from, ok := model.ProtectsBelow(b); ok {
		s.Below = max(s.Below, from)
	}
}

func (s *sweepScope) name(list *[]string, name string) {
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
// few; pods and nominations that wait on the node count from now on.
func (s *sweepScope) nodeAdded(v *live, n *corev1.Node) {
	list := &s.NewKeys
	v.PodsOnNode(n.Name, func(*corev1.Pod) bool {
		list = &s.Keys
		return false
	})
	v.NominationsOnNode(n.Name, func(*Nomination) bool {
		list = &s.Keys
		return false
	})
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		s.name(list, key)
	}
}

// nodeGone: its domains may be gone, and its pods are in none.
func (s *sweepScope) nodeGone(n *corev1.Node) {
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		s.name(&s.Keys, key)
	}
}

func (s *sweepScope) nodeChanged(old, new *corev1.Node) {
	if !maps.Equal(old.Labels, new.Labels) {
		s.Labels = true
		both := maps.Clone(old.Labels)
		if both == nil {
			both = map[string]string{}
		}
		maps.Copy(both, new.Labels)
		for _, key := range slices.Sorted(maps.Keys(both)) {
			was, had := old.Labels[key]
			if is, has := new.Labels[key]; had != has || was != is {
				s.name(&s.Keys, key)
			}
		}
	}
	if old.Spec.Unschedulable != new.Spec.Unschedulable || !slices.EqualFunc(old.Spec.Taints, new.Spec.Taints, sameTaint) {
		s.Taints = true
	}
}

func sameTaint(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }

// add makes a scope mean also what another does.
func (s *sweepScope) add(o *sweepScope) {
	s.All, s.Ruled, s.Labels, s.Taints = s.All || o.All, s.Ruled || o.Ruled, s.Labels || o.Labels, s.Taints || o.Taints
	s.Spaces, s.Budgets, s.Below = s.Spaces || o.Spaces, s.Budgets || o.Budgets, max(s.Below, o.Below)
	for _, key := range o.Keys {
		s.name(&s.Keys, key)
	}
	for _, key := range o.NewKeys {
		s.name(&s.NewKeys, key)
	}
}

// means says whether a group is of the kinds that the scope names, but for
// Budgets.
func (s *sweepScope) means(v *live, w *wakeup) bool {
	if s.All {
		return true
	}
	c := w.class
	if _, byDefaults := w.byDefaults(); byDefaults {
		c = v.judgedBy(*w)
	}
	if !c.HasHardTopology() && !w.alike() {
		return false
	}
	switch {
	case s.Ruled, s.Spaces && (w.alike() || c.ChoosesNamespaces()),
		s.Taints && c.HonorsTaints(), s.Labels && c.HonorsLabels():
		return true
	case len(s.Keys) > 0 && (w.alike() && v.topology().KeepsAwayBy(s.Keys) || c.RulesBy(s.Keys)):
		return true
	}
	return len(s.NewKeys) > 0 && c.CountsDomainsBy(s.NewKeys)
}

// mindsBudgets says whether budgets can keep a class from preempting, those
// included that give way from a higher priority on.
func (v *live) mindsBudgets(c *model.Class, below int64) bool {
	return (int64(c.Priority) < below || model.StrictFor(&v.SchedulerConfig().Spec.Preemption, c)) && v.mayEvict(c)
}

// sweep wakes one of each group that is meant, or as many as the entry has time
// for.
func (tx *Tx) sweep(s *sweepScope) {
	if s.none() {
		return
	}
	v := tx.view
	if s.domains() && v.concernedWithOthers() {
		tx.putMark(domainsKey, &podMark{Domains: true})
	}
	if s.Budgets {
		tx.putMark(budgetsKey, &podMark{Budgets: true, Below: s.Below})
	}
	if v.wakeups.Len() == 0 {
		return
	}
	if p, ok := v.pending.Get(pendingSweep); ok && p.Scope != nil {
		s.add(p.Scope) // and from the beginning
	}
	tx.sweepFrom(s, "")
}

func (tx *Tx) sweepFrom(s *sweepScope, from string) {
	v := tx.view
	var groups []wakeup
	var meant []bool // for more than what budgets allow
	next := ""
	begin := max(from, string(rune(wakeByCPU)))
	work := tx.wakeWork
	v.wakeups.ScanFrom(string(rune(wakeByCPU)), begin, func(key string, w wakeup) bool {
		if work >= maxWakeWork {
			next = key
			return false
		}
		work += costLook
		all := s.means(v, &w)
		if all || s.Budgets && v.mindsBudgets(w.class, s.Below) {
			groups, meant = append(groups, w), append(meant, all)
			work += costWake
		}
		return true
	})
	tx.wakeWork += (work - tx.wakeWork) - len(groups)*costWake // waking is charged when it is done
	for i := range groups {
		tx.wakeNext(groups[i].group)
		if meant[i] { // for who waits for victims nobody else has to go
			tx.wakeNominees(groups[i].group)
		}
	}
	if next == "" {
		tx.forgetPending(pendingSweep)
		return
	}
	put(tx, v.pending, pendingSweep, &pendingWake{Scope: s, From: next})
}

// pendingWake is what an entry had no time to wake for.
type pendingWake struct {
	// Scope is what a sweep means; nil where a node is to be looked at.
	Scope *sweepScope `msgpack:"scope,omitempty"`
	// From is the key of the wake index to go on from.
	From string `msgpack:"from"`
}

// Keys of pending wakes: the sweep, and nodes by name.
const pendingSweep, pendingNode = "sweep", "node/"

var pendingTable = &tableDef[*pendingWake]{
	Name:    "pendingwakes",
	Marshal: func(p *pendingWake) ([]byte, error) { return store.Marshal(p) },
	Unmarshal: func(b []byte) (*pendingWake, error) {
		p := new(pendingWake)
		return p, store.Unmarshal(b, p)
	},
}

// WakesPending says whether pods may have to be woken that no entry had time
// for: any entry goes on with that, an empty plan too.
func (v *View) WakesPending() bool { return v.pending.Len() > 0 }

// remember notes where to go on for a node, or that nothing is left to do.
func (tx *Tx) remember(key, next string) {
	if next == "" {
		tx.forgetPending(key)
		return
	}
	put(tx, tx.view.pending, key, &pendingWake{From: next})
}

func (tx *Tx) forgetPending(key string) {
	if tx.view.pending.Len() == 0 {
		return
	}
	if _, ok := tx.view.pending.Get(key); ok {
		remove(tx, tx.view.pending, key)
	}
}

// goOnWaking does what earlier entries had no time for, for as long as this one
// has.
func (tx *Tx) goOnWaking() {
	v := tx.view
	if v.pending.Len() == 0 {
		return
	}
	if p, ok := v.pending.Get(pendingSweep); ok && tx.wakeWork < maxWakeWork {
		tx.sweepFrom(p.Scope, p.From)
	}
	var nodes []string
	v.pending.Scan(pendingNode, func(key string, _ *pendingWake) bool {
		if strings.HasPrefix(key, pendingNode) {
			nodes = append(nodes, key)
		}
		return len(nodes) < maxWakeWork/costLook
	})
	for _, key := range nodes {
		if tx.wakeWork >= maxWakeWork {
			return
		}
		tx.wakeWork += costLook
		p, ok := v.pending.Get(key)
		if !ok {
			continue
		}
		n, ok := v.Nodes.Get(key[len(pendingNode):])
		if !ok {
			tx.forgetPending(key)
			continue
		}
		newHelp(v, n).look(tx, p.From)
	}
}
