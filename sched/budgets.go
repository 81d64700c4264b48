package sched

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// Budget is a disruption budget as preemption sees it.
type Budget struct {
	Name string // namespace/name
	// Allowed is how many of the budget's pods may be disrupted now.
	Allowed int32
	// Disrupted says of a pod by name that its disruption is in Allowed already.
	Disrupted func(name string) bool
	// ViolableFrom is the least priority of a pod for which the budget may be violated; nil: any.
	ViolableFrom *int32

	row      *policyv1.PodDisruptionBudget // nil in tests that make their own
	selector labels.Selector
	// needed and healthy are the row's counts, those that unsettled preemptions evict taken off.
	needed, healthy int32
	// spending counts the healthy pods that unsettled preemptions evict and that the row still counts.
	spending int32
	dirty    bool

	// asked is its place in a list that is being made, from 1 on; 0: in none.
	asked int32

	book     *budgetBook // nil outside of one
	watchers [][]int32   // slots whose costs depend on the budget, by the number of its pods there
}

// protects says whether the budget must not be violated for a pod of the priority.
func (b *Budget) protects(priority int32) bool {
	return b.ViolableFrom != nil && priority < *b.ViolableFrom
}

// spares says whether a pod's disruption takes nothing that a budget that must not be violated has to give (PD8, PD9);
// nil is a pod that the state does not show on its node yet.
func (b *Budget) spares(obj *corev1.Pod) bool {
	if b.row == nil {
		return false
	}
	return obj == nil || budgets.Spares(&b.row.Spec, obj, int64(b.needed), int64(b.healthy))
}

// lenient says whether pods that are not ready may go and cost nothing (PD9).
func (b *Budget) lenient() bool {
	return budgets.Lenient(&b.row.Spec, int64(b.needed), int64(b.healthy))
}

// lacks tells a reader why the budget stands in the way.
func (b *Budget) lacks() string {
	return budgets.Barred(b.Name, int64(b.needed), int64(b.healthy))
}

// newBudget is a budget as a row shows it.
func newBudget(row *policyv1.PodDisruptionBudget) *Budget {
	b := &Budget{Name: fsm.PodKey(row.Namespace, row.Name), row: row}
	b.Disrupted = func(name string) bool {
		_, announced := b.row.Status.DisruptedPods[name]
		return announced
	}
	b.selector = budgets.Selector(&row.Spec)
	b.put(row)
	b.settle()
	return b
}

// put takes in another state of the row.
func (b *Budget) put(row *policyv1.PodDisruptionBudget) {
	b.row, b.ViolableFrom = row, nil
	if from, ok := model.ProtectsBelow(row); ok {
		least := int32(min(from, math.MaxInt32))
		b.ViolableFrom = &least
	}
}

// settle computes what is allowed now.
func (b *Budget) settle() {
	s := &b.row.Status
	b.Allowed = max(s.DisruptionsAllowed-b.spending, 0)
	b.needed, b.healthy = s.DesiredHealthy, s.CurrentHealthy-b.spending
}

// Budgets answers which disruption budgets cover a pod (PR8). A budget is one object however many pods it covers. Equal
// questions must get equal answers until the nodes of the pods concerned are reported as changed.
type Budgets interface {
	Of(namespace string, labels map[string]string) []*Budget
}

// budgetBook holds the budgets of the state, with what unsettled preemptions spend taken off. A cost that was computed
// with a budget depends on its allowance only as far as it is less than the number of the budget's pods on that node.
// So when an allowance changes, the nodes are looked at again whose number lies above the lower of the two, and no
// others.
type budgetBook struct {
	byName map[string]*Budget
	// byLabel finds budgets by a label that every pod that they cover has; those that demand none are under the empty
	// one.
	byLabel map[budgetLabel][]*Budget
	// generation grows with every change of who is covered by what, and by which rules.
	generation uint64
	changes    []bookChange // the latest of those that made generations
	told       uint64       // the generation that the nodes have been told of
	telling    uint64       // the one that they are being told of, up to the slot at tellFrom
	tellFrom   int
	dirty      []*Budget
	meter      *meter // may be nil
	coverages  map[string]*coverage
	ofClass    map[*model.Class]*coverage
	maxClasses int                // more of them are not remembered
	watches    [][]watch          // by slot
	watchesAll map[int32]struct{} // slots that have too many budgets to watch each by itself
	latitudes  []latitude
	onNode     []watch // of one node, while they are counted
}

type budgetLabel struct{ namespace, key, value string }

// label is where the budget is found.
func (b *Budget) label() budgetLabel {
	at := budgetLabel{namespace: b.row.Namespace}
	requirements, _ := b.selector.Requirements()
	for _, r := range requirements {
		if values := r.ValuesUnsorted(); len(values) == 1 &&
			(r.Operator() == selection.In || r.Operator() == selection.Equals ||
				r.Operator() == selection.DoubleEquals) {
			at.key, at.value = r.Key(), values[0]
			break
		}
	}
	return at
}

func newBudgetBook() *budgetBook {
	return &budgetBook{
		maxClasses: spareClasses, byName: map[string]*Budget{}, byLabel: map[budgetLabel][]*Budget{},
		generation: 1, told: 1, watchesAll: map[int32]struct{}{},
		coverages: map[string]*coverage{}, ofClass: map[*model.Class]*coverage{},
	}
}

// put takes in a row as the state shows it.
func (k *budgetBook) put(row *policyv1.PodDisruptionBudget) {
	name := fsm.PodKey(row.Namespace, row.Name)
	b, ok := k.byName[name]
	switch {
	case !ok:
		b = newBudget(row)
		b.book = k
		k.byName[name] = b
		k.byLabel[b.label()] = append(k.byLabel[b.label()], b)
		k.advance(bookChange{budget: b})
	case b.row.Spec.Selector != row.Spec.Selector &&
		!equality.Semantic.DeepEqual(b.row.Spec.Selector, row.Spec.Selector):
		k.drop(b.row)
		k.put(row)
	default:
		from := model.ViolatorPriorityAnnotation
		rules := b.row.Annotations[from] != row.Annotations[from] ||
			!equality.Semantic.DeepEqual(b.row.Spec.UnhealthyPodEvictionPolicy, row.Spec.UnhealthyPodEvictionPolicy) ||
			!sameKeys(b.row.Status.DisruptedPods, row.Status.DisruptedPods)
		b.put(row)
		k.spoil(b)
		if rules {
			k.advance(bookChange{budget: b, ruled: true})
		}
	}
}

func sameKeys(a, b map[string]metav1.Time) bool {
	if len(a) != len(b) {
		return false
	}
	// order does not matter: every key is looked up.
	for name := range a {
		if _, ok := b[name]; !ok {
			return false
		}
	}
	return true
}

// drop forgets a budget.
func (k *budgetBook) drop(row *policyv1.PodDisruptionBudget) {
	b, ok := k.byName[fsm.PodKey(row.Namespace, row.Name)]
	if !ok {
		return
	}
	delete(k.byName, b.Name)
	at := b.label()
	k.byLabel[at] = slices.DeleteFunc(k.byLabel[at], func(o *Budget) bool { return o == b })
	if len(k.byLabel[at]) == 0 {
		delete(k.byLabel, at)
	}
	b.release(-1, func(int32) {})
	k.advance(bookChange{budget: b, gone: true})
}

func (k *budgetBook) spoil(b *Budget) {
	if !b.dirty {
		b.dirty = true
		k.dirty = append(k.dirty, b)
	}
}

// Of implements Budgets.
func (k *budgetBook) Of(namespace string, podLabels map[string]string) []*Budget {
	var out []*Budget
	take := func(at budgetLabel) {
		for _, b := range k.byLabel[at] {
			if b.selector.Matches(labels.Set(podLabels)) {
				out = append(out, b)
			}
		}
	}
	take(budgetLabel{namespace: namespace})
	// order does not matter: the budgets are sorted below.
	for key, value := range podLabels {
		take(budgetLabel{namespace, key, value})
	}
	slices.SortFunc(out, func(a, b *Budget) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// covering returns the budgets that an eviction of the pod would spend.
func covering(v *pod, budgets Budgets) []*Budget {
	var all []*Budget
	if book, ok := budgets.(*budgetBook); ok {
		if len(book.byName) == 0 {
			return nil
		}
		all = book.coverageOf(v).budgets
		if !slices.ContainsFunc(all, func(b *Budget) bool { return len(b.row.Status.DisruptedPods) > 0 }) {
			return all
		}
	} else {
		all = budgets.Of(v.class.Namespace, v.class.Labels)
	}
	if len(all) == 0 {
		return nil
	}
	announces := func(b *Budget) bool { return b.announces(v) }
	if slices.ContainsFunc(all, announces) {
		return slices.DeleteFunc(slices.Clone(all), announces)
	}
	return all
}

// announces says whether a pod's disruption is in Allowed already.
func (b *Budget) announces(v *pod) bool {
	return b.Disrupted != nil && b.Disrupted(v.key[strings.IndexByte(v.key, '/')+1:])
}

// covers says whether a budget of the state is about pods with such labels.
func (b *Budget) covers(namespace string, podLabels map[string]string) bool {
	return b.row.Namespace == namespace && b.selector.Matches(labels.Set(podLabels))
}

// flush brings the allowances up to date and has the nodes looked at again whose costs depend on what changed. It returns
// false if that is more than the step's work allows.
func (k *budgetBook) flush(v *View) bool {
	if !k.tell(v) {
		return false
	}
	moved := false
	for _, b := range k.dirty {
		b.dirty = false
		allowed, lenient := b.Allowed, b.lenient()
		b.settle()
		least := min(allowed, b.Allowed)
		switch {
		case lenient != b.lenient():
			least = 0
		case allowed == b.Allowed:
			continue
		}
		moved = true
		b.release(least, v.touch)
	}
	k.meter.take(len(k.dirty) * workChange)
	k.dirty = k.dirty[:0]
	if moved {
		// order does not matter: a node is looked at or it is not.
		for slot := range k.watchesAll {
			v.touch(slot)
		}
		clear(k.watchesAll)
	}
	return true
}

// charge counts a pod that an unsettled preemption evicts among what its budgets have spent, for as long as their rows
// still count it as healthy.
func (s *Scheduler) charge(p *pod) {
	s.recover(p)
	if p.evicting == 0 || p.obj == nil || !model.Healthy(p.obj) {
		return
	}
	p.charged = covering(p, s.book)
	s.meter.take(len(p.charged) * workBudget)
	for _, b := range p.charged {
		b.spending++
		s.book.spoil(b)
	}
}

// recover takes back what a pod was charged.
func (s *Scheduler) recover(p *pod) {
	for _, b := range p.charged {
		b.spending--
		s.book.spoil(b)
	}
	p.charged = nil
}

// putBudget takes in a budget as the state shows it; nil says that it is gone.
func (s *Scheduler) putBudget(old, row *policyv1.PodDisruptionBudget) {
	k := s.book
	before := k.generation
	switch {
	case row == nil:
		k.drop(old)
	case old != nil && old.UID != row.UID:
		k.drop(old)
		k.put(row)
	default:
		k.put(row)
	}
	for _, c := range k.changes[max(0, len(k.changes)-int(k.generation-before)):] {
		s.recount(&c)
	}
}

// recount charges a budget anew for the pods that unsettled preemptions evict, after who is covered by it changed.
func (s *Scheduler) recount(c *bookChange) {
	b := c.budget
	s.meter.take(len(s.evicting) * workBudget)
	// order does not matter: each is counted by itself.
	for uid := range s.evicting {
		p, ok := s.view.pods[uid]
		if !ok || p.evicting == 0 || p.obj == nil || !model.Healthy(p.obj) {
			continue
		}
		at := slices.Index(p.charged, b)
		is := !c.gone && b.covers(p.class.Namespace, p.class.Labels) && !b.announces(p)
		switch {
		case at >= 0 && !is:
			p.charged = slices.Concat(p.charged[:at], p.charged[at+1:])
			b.spending--
			s.book.spoil(b)
		case at < 0 && is:
			p.charged = append(slices.Clip(p.charged), b)
			b.spending++
			s.book.spoil(b)
		}
	}
}

// spendingUnsettled says whether unsettled preemptions spend one of the budgets that block a node: should they be
// refused, it would not.
func (s *Scheduler) spendingUnsettled(e *evictions) bool {
	if len(s.evicting) == 0 {
		return false
	}
	s.meter.Spend(e.blockedRefs * workBudget)
	// order does not matter: any one of them is enough.
	for _, blocking := range e.blocked {
		if slices.ContainsFunc(blocking, func(b *Budget) bool { return b.spending > 0 }) {
			return true
		}
	}
	return false
}

// stateBudgets are the budgets as a state shows them, for questions that are asked once.
type stateBudgets struct {
	state *fsm.View
	known map[types.UID]*Budget
}

// Of implements Budgets.
func (k *stateBudgets) Of(namespace string, podLabels map[string]string) []*Budget {
	var out []*Budget
	k.state.BudgetsOf(namespace, podLabels, func(row *policyv1.PodDisruptionBudget) bool {
		b, ok := k.known[row.UID]
		if !ok {
			b = newBudget(row)
			k.known[row.UID] = b
		}
		out = append(out, b)
		return true
	})
	return out
}
