package fsm

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/queue"
	"github.com/berth-dev/berth/store"
)

// Table is a table of the state.
type Table[T any] = store.Table[*live, T]

// tableDef is what a table's file says of it.
type tableDef[T any] = store.Definition[*live, T]

// packRow and unpackRow are for the tables whose rows are msgpack alone
// (store.Definition.Marshal, Unmarshal). A field that this version does not know
// is an error.
func packRow[T any](row *T) ([]byte, error) { return store.Marshal(row) }

func unpackRow[T any](b []byte) (*T, error) {
	row := new(T)
	return row, store.UnmarshalKnown(b, row)
}

// anyTable is a table, whatever its rows are.
type anyTable = store.AnyTable[*live]

// tableSet is every table of the state.
type tableSet struct {
	PriorityClasses Table[*schedulingv1.PriorityClass]
	Namespaces      Table[*corev1.Namespace]
	Nodes           Table[*corev1.Node]
	Pods            Table[*corev1.Pod]
	Events          Table[*corev1.Event]
	arrivals        Table[*eventArrival] // of Events
	// Objects holds the kinds that have no meaning for scheduling, under
	// "resource/namespace/name" (see ObjectKey).
	Objects Table[*Object]
	// Budgets are the disruption budgets; their statuses are exact.
	Budgets     Table[*policyv1.PodDisruptionBudget]
	Queue       Table[*QueueEntry]
	Nominations Table[*Nomination]
	Preemptions Table[*berthv1.Preemption]
	Config      Table[*berthv1.SchedulerConfiguration]
	marks       Table[*queue.NodeMark]
	podMarks    Table[*queue.PodMark]
	pending     Table[*queue.Pending]
	// Decisions is the ledger: the newest plans, by what came before them (see
	// DecisionsAbout).
	Decisions Table[*PlanRecord]
	// ApplyFailures are the newest parts of the log that made the state machine
	// panic, in the order of the log.
	ApplyFailures Table[*ApplyFailure]
	// staged are the pieces of a snapshot that is to be restored.
	staged Table[*stagedPiece]
	// signingKeys are those of service accounts' tokens, by their IDs.
	signingKeys Table[*SigningKey]
	// counted are rules between pods, by what identifies them, of which it is
	// counted whom they are about.
	counted Table[*countedRules]
}

func newTableSet() tableSet {
	return tableSet{
		PriorityClasses: priorityClassTable.New(),
		Namespaces:      namespaceTable.New(),
		Nodes:           nodeTable.New(),
		Pods:            podTable.New(),
		Events:          eventTable.New(),
		arrivals:        eventArrivalTable.New(),
		Objects:         objectTable.New(),
		Budgets:         budgetTable.New(),
		Queue:           queueTable.New(),
		Nominations:     nominationTable.New(),
		Preemptions:     preemptionTable.New(),
		Config:          configTable.New(),
		marks:           markTable.New(),
		podMarks:        podMarkTable.New(),
		pending:         pendingTable.New(),
		Decisions:       decisionTable.New(),
		ApplyFailures:   applyFailureTable.New(),
		staged:          stagedTable.New(),
		signingKeys:     signingKeyTable.New(),
		counted:         countedRulesTable.New(),
	}
}

// tables lists every table, in the order in which snapshot, restore and digest
// walk them. A table whose index functions read another comes after it.
func (t *tableSet) tables() []anyTable {
	return []anyTable{
		&t.Config, &t.PriorityClasses, &t.Namespaces, &t.Objects, &t.Budgets, &t.Nodes, &t.Pods,
		&t.Nominations, &t.Queue, &t.Preemptions, &t.Events, &t.arrivals, &t.marks, &t.podMarks, &t.pending,
		&t.Decisions, &t.ApplyFailures, &t.staged, &t.signingKeys, &t.counted,
	}
}

func (t *tableSet) fork() tableSet {
	forked := *t
	for _, table := range forked.tables() {
		table.Isolate()
	}
	return forked
}

// put stores a row, stamps the revision on it and records the change. The row
// must be a new one: stored rows are shared by every view.
func put[T any](tx *Tx, t Table[T], key string, row T) {
	tx.view.cache.work += costChange
	store.Put(&tx.Tx, tx.view, t, key, row)
}

// remove deletes the row under a key, if it is there, and records the change.
func remove[T any](tx *Tx, t Table[T], key string) {
	tx.view.cache.work += costChange
	store.Remove(&tx.Tx, tx.view, t, key)
}
