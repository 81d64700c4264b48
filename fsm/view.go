package fsm

import (
	"sync"

	"github.com/tidwall/btree"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// View is the state at one log index. A published view never changes: it can
// be read by any number of goroutines without a lock, for as long as they
// like.
type View struct {
	position

	PriorityClasses Table[*schedulingv1.PriorityClass]
	Namespaces      Table[*corev1.Namespace]
	Nodes           Table[*corev1.Node]
	Pods            Table[*corev1.Pod]
	Events          Table[*corev1.Event]
	// Objects holds the kinds that have no meaning for scheduling, under
	// "resource/namespace/name" (see ObjectKey).
	Objects Table[*Object]
	// Budgets are the disruption budgets; their statuses are exact.
	Budgets     Table[*policyv1.PodDisruptionBudget]
	Queue       Table[*QueueEntry]
	Nominations Table[*Nomination]
	Preemptions Table[*berthv1.Preemption]
	Config      Table[*berthv1.SchedulerConfiguration]
	marks       Table[*nodeMark]
	podMarks    Table[*podMark]
	// Decisions is the ledger: the newest plans, by what came before them (see
	// DecisionsAbout).
	Decisions Table[*PlanRecord]
	// ApplyFailures are the newest parts of the log that made the state machine
	// panic, in the order of the log.
	ApplyFailures Table[*ApplyFailure]

	indexes
	ownerIndexes

	// touchedBudgets are those whose status the command under way may have
	// changed, with what their pods added up to before it.
	touchedBudgets map[string]*coverage

	guards    int               // pods, placed or nominated, that keep others away
	reserved  string            // key of the nomination that is a reservation
	ruled     int               // pods in the queue that have hard rules about others
	effective *effectiveClasses // shared by all views of the state

	forkMu *sync.Mutex
	cache  *cache // of the live view and of forks; published views have none
}

// position says which state a view is.
type position struct {
	index        uint64
	term         uint64
	revision     int64
	timeUnixNano int64
}

// Index is the log index of the last entry applied.
func (p *position) Index() uint64 { return p.index }

// Term is the Raft term of that entry.
func (p *position) Term() uint64 { return p.term }

// Revision is the number of object changes so far: the API's resourceVersion.
func (p *position) Revision() int64 { return p.revision }

// TimeUnixNano is the state's time: the leader's clock at the last entry, never
// going back.
func (p *position) TimeUnixNano() int64 { return p.timeUnixNano }

// indexes are derived from the tables, kept in step by the tables' index
// functions, and therefore in no snapshot.
type indexes struct {
	unclaimed           *btree.Map[string, *corev1.Pod]       // unclaimedKey: unbound pods that no profile is for
	ended               *btree.Map[string, *corev1.Pod]       // key of Pods: those in a terminal phase
	podsByNode          *btree.Map[string, placed]            // node/namespace/name
	usage               *btree.Map[string, *nodeUse]          // node
	offers              *btree.Map[string, *model.Resources]  // node: what it has for pods
	nominationsByNode   *btree.Map[string, *Nomination]       // node/namespace/name
	nominationsByVictim *btree.Map[string, *Nomination]       // victim UID/namespace/name
	order               *btree.Map[string, *QueueEntry]       // orderKey: active
	backoffs            *btree.Map[string, *QueueEntry]       // end of backoff and orderKey
	waiting             *btree.Map[string, *QueueEntry]       // waitKey: those that wait for a change
	blockedPods         *btree.Map[string, *QueueEntry]       // orderKey: those of them that wait for nobody's end
	wakeups             *btree.Map[string, wakeup]            // wakeKey: which change could help which class
	otherWakeups        *btree.Map[string, wakeup]            // placePrefix and group: rules between pods
	podMarksByRevision  *btree.Map[string, string]            // markKey -> key of podMarks
	marksByRevision     *btree.Map[string, string]            // markKey -> node
	eventOrder          *btree.Map[int64, string]             // -> key of Events
	preemptionOrder     *btree.Map[int64, string]             // -> key of Preemptions
	defaultClasses      *btree.Map[string, string]            // value and name -> name (PC4)
	budgetRules         *btree.Map[string, *budgetRule]       // labelKeys: which budgets a label leads to
	coverages           *btree.Map[string, *coverage]         // key of Budgets: what the pods add up to
	budgetOwners        *btree.Map[string, int32]             // key of Budgets, ownerRef.key: pods of that controller
	ownersBudgets       *btree.Map[string, string]            // ownerRef.key, key of Budgets -> key of Budgets
	budgetTimes         *btree.Map[string, string]            // budgetTimeKey -> key of Budgets: when the status changes by itself
	services            *btree.Map[string, map[string]string] // namespace, label, value, name: a service's selector
}

func newView() *View {
	return &View{
		PriorityClasses: newTable(priorityClassTable),
		Namespaces:      newTable(namespaceTable),
		Nodes:           newTable(nodeTable),
		Pods:            newTable(podTable),
		Events:          newTable(eventTable),
		Objects:         newTable(objectTable),
		Budgets:         newTable(budgetTable),
		Queue:           newTable(queueTable),
		Nominations:     newTable(nominationTable),
		Preemptions:     newTable(preemptionTable),
		Config:          newTable(configTable),
		marks:           newTable(markTable),
		podMarks:        newTable(podMarkTable),
		Decisions:       newTable(decisionTable),
		ApplyFailures:   newTable(applyFailureTable),
		indexes: indexes{
			podsByNode:          btree.NewMap[string, placed](degree),
			unclaimed:           btree.NewMap[string, *corev1.Pod](degree),
			ended:               btree.NewMap[string, *corev1.Pod](degree),
			usage:               btree.NewMap[string, *nodeUse](degree),
			offers:              btree.NewMap[string, *model.Resources](degree),
			nominationsByNode:   btree.NewMap[string, *Nomination](degree),
			nominationsByVictim: btree.NewMap[string, *Nomination](degree),
			order:               btree.NewMap[string, *QueueEntry](degree),
			backoffs:            btree.NewMap[string, *QueueEntry](degree),
			waiting:             btree.NewMap[string, *QueueEntry](degree),
			blockedPods:         btree.NewMap[string, *QueueEntry](degree),
			wakeups:             btree.NewMap[string, wakeup](degree),
			marksByRevision:     btree.NewMap[string, string](degree),
			eventOrder:          btree.NewMap[int64, string](degree),
			preemptionOrder:     btree.NewMap[int64, string](degree),
			defaultClasses:      btree.NewMap[string, string](degree),
			budgetRules:         btree.NewMap[string, *budgetRule](degree),
			coverages:           btree.NewMap[string, *coverage](degree),
			budgetOwners:        btree.NewMap[string, int32](degree),
			ownersBudgets:       btree.NewMap[string, string](degree),
			budgetTimes:         btree.NewMap[string, string](degree),
			services:            newServices(),
			otherWakeups:        btree.NewMap[string, wakeup](degree),
			podMarksByRevision:  btree.NewMap[string, string](degree),
		},
		ownerIndexes: newOwnerIndexes(),
		effective:    new(effectiveClasses),
		forkMu:       new(sync.Mutex),
	}
}

// tables lists every table, in the order in which snapshot, restore and digest
// walk them. A table whose index functions read another comes after it.
func (v *View) tables() []anyTable {
	return []anyTable{
		v.Config, v.PriorityClasses, v.Namespaces, v.Objects, v.Budgets, v.Nodes, v.Pods,
		v.Nominations, v.Queue, v.Preemptions, v.Events, v.marks, v.podMarks,
		v.Decisions, v.ApplyFailures,
	}
}

// fork returns a copy that shares every row; it costs the same whatever the
// size of the state.
func (v *View) fork() *View {
	v.forkMu.Lock()
	defer v.forkMu.Unlock()
	return &View{
		position:        v.position,
		PriorityClasses: v.PriorityClasses.fork(),
		Namespaces:      v.Namespaces.fork(),
		Nodes:           v.Nodes.fork(),
		Pods:            v.Pods.fork(),
		Events:          v.Events.fork(),
		Objects:         v.Objects.fork(),
		Budgets:         v.Budgets.fork(),
		Queue:           v.Queue.fork(),
		Nominations:     v.Nominations.fork(),
		Preemptions:     v.Preemptions.fork(),
		Config:          v.Config.fork(),
		marks:           v.marks.fork(),
		podMarks:        v.podMarks.fork(),
		Decisions:       v.Decisions.fork(),
		ApplyFailures:   v.ApplyFailures.fork(),
		indexes: indexes{
			podsByNode:          v.podsByNode.Copy(),
			unclaimed:           v.unclaimed.Copy(),
			ended:               v.ended.Copy(),
			usage:               v.usage.Copy(),
			offers:              v.offers.Copy(),
			nominationsByNode:   v.nominationsByNode.Copy(),
			nominationsByVictim: v.nominationsByVictim.Copy(),
			order:               v.order.Copy(),
			backoffs:            v.backoffs.Copy(),
			waiting:             v.waiting.Copy(),
			blockedPods:         v.blockedPods.Copy(),
			wakeups:             v.wakeups.Copy(),
			marksByRevision:     v.marksByRevision.Copy(),
			eventOrder:          v.eventOrder.Copy(),
			preemptionOrder:     v.preemptionOrder.Copy(),
			defaultClasses:      v.defaultClasses.Copy(),
			budgetRules:         v.budgetRules.Copy(),
			coverages:           v.coverages.Copy(),
			budgetOwners:        v.budgetOwners.Copy(),
			ownersBudgets:       v.ownersBudgets.Copy(),
			budgetTimes:         v.budgetTimes.Copy(),
			services:            v.services.Copy(),
			otherWakeups:        v.otherWakeups.Copy(),
			podMarksByRevision:  v.podMarksByRevision.Copy(),
		},
		ownerIndexes: v.ownerIndexes.fork(),
		guards:       v.guards,
		reserved:     v.reserved,
		ruled:        v.ruled,
		effective:    v.effective,
		forkMu:       new(sync.Mutex),
	}
}

// PodsOnNode calls f for every pod bound to a node, in key order.
func (v *View) PodsOnNode(node string, f func(pod *corev1.Pod) bool) {
	scanFrom(v.podsByNode, node+"/", node+"/", func(_ string, p placed) bool { return f(p.pod) })
}

// ClassesOnNode is PodsOnNode with what each pod asks for.
func (v *View) ClassesOnNode(node string, f func(pod *corev1.Pod, c *model.Class) bool) {
	scanFrom(v.podsByNode, node+"/", node+"/", func(_ string, p placed) bool { return f(p.pod, p.class) })
}

// NodesWithPods calls f for the name of every node that a pod is bound to,
// whether the node is there or not.
func (v *View) NodesWithPods(f func(node string) bool) {
	from := ""
	for {
		key, p, ok := first(v.podsByNode, from)
		if !ok || !f(p.pod.Spec.NodeName) {
			return
		}
		from = afterPrefix(key[:len(p.pod.Spec.NodeName)+1])
	}
}

// EndedPods is the number of pods in a terminal phase.
func (v *View) EndedPods() int { return v.ended.Len() }

// ScanEndedPods calls f for every pod in a terminal phase, in key order.
func (v *View) ScanEndedPods(f func(pod *corev1.Pod) bool) {
	v.ended.Scan(func(_ string, pod *corev1.Pod) bool { return f(pod) })
}

// OldestEventUnixNano is when the least recently changed event was last seen,
// and whether there is one.
func (v *View) OldestEventUnixNano() (int64, bool) {
	_, key, ok := v.eventOrder.Min()
	if !ok {
		return 0, false
	}
	e, _ := v.Events.Get(key)
	return lastSeenUnixNano(e), true
}

// NominationsOnNode calls f for every nomination to a node, in key order.
func (v *View) NominationsOnNode(node string, f func(n *Nomination) bool) {
	scanFrom(v.nominationsByNode, node+"/", node+"/", func(_ string, n *Nomination) bool { return f(n) })
}

// SchedulerConfig is the replicated scheduler configuration with every default
// filled in. It must not be changed.
func (v *View) SchedulerConfig() *berthv1.SchedulerConfiguration {
	if c, ok := v.Config.Get(berthv1.SchedulerConfigurationName); ok {
		return c
	}
	return defaultConfig
}

var defaultConfig = berthv1.Default()

// QueueLengths are how many pods wait, by state; those that wait for their
// victims count as waiting.
type QueueLengths struct{ Active, Backoff, Waiting, Gated int }

// QueueLengths counts the queue without walking it.
func (v *View) QueueLengths() QueueLengths {
	q := QueueLengths{Active: v.order.Len(), Backoff: v.backoffs.Len(), Waiting: v.waiting.Len()}
	q.Gated = v.Queue.Len() - q.Active - q.Backoff - q.Waiting
	return q
}
