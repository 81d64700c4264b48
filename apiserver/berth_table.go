package apiserver

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/printers"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"

	"github.com/berth-dev/berth/api/berthv1"
)

// berthTable prints the resources of berth.dev for kubectl.
func berthTable() rest.TableConvertor {
	return printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(addQueueTable, addPreemptionTable, addConfigTable, addPlanTable)}
}

func column(name, kind, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: kind, Description: description}
}

func wide(name, kind, description string) metav1.TableColumnDefinition {
	c := column(name, kind, description)
	c.Priority = 1
	return c
}

var nameColumn = metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: "The object's name."}

func row(obj runtime.Object, cells ...any) metav1.TableRow {
	return metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: obj}}
}

// must panics on a handler that does not fit its columns, which is a mistake in
// this file.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// handle registers a printer for objects and their lists.
func handle[T, L any](h printers.PrintHandler, columns []metav1.TableColumnDefinition, row func(o *T) metav1.TableRow, items func(l *L) []T) {
	must(h.TableHandler(columns, func(o *T, _ printers.GenerateOptions) ([]metav1.TableRow, error) {
		return []metav1.TableRow{row(o)}, nil
	}))
	must(h.TableHandler(columns, func(l *L, _ printers.GenerateOptions) ([]metav1.TableRow, error) {
		all := items(l)
		rows := make([]metav1.TableRow, len(all))
		for i := range all {
			rows[i] = row(&all[i])
		}
		return rows, nil
	}))
}

func addQueueTable(h printers.PrintHandler) {
	handle(h, []metav1.TableColumnDefinition{
		nameColumn,
		column("State", "string", "Active, Backoff, Unschedulable, Nominated or Gated."),
		column("Position", "string", "The place among those that are tried next."),
		column("Priority", "integer", "The pod's priority."),
		column("Attempts", "integer", "How often no place was found."),
		column("Reason", "string", "Why no place was found the last time."),
		column("Age", "string", "The time since the pod entered the queue."),
		wide("Nominated Node", "string", "The node that is being cleared for the pod."),
		wide("Blocked", "string", "The time since the pod was first found unschedulable."),
	}, printQueueEntry, func(l *berthv1.QueueEntryList) []berthv1.QueueEntry { return l.Items })
}

func printQueueEntry(e *berthv1.QueueEntry) metav1.TableRow {
	position := ""
	if e.Status.Position > 0 {
		position = fmt.Sprint(e.Status.Position)
	}
	blocked := ""
	if e.Status.BlockedSince != nil {
		blocked = age(e.Status.BlockedSince.Time)
	}
	return row(e, e.Name, string(e.Status.State), position, int64(e.Status.Priority), int64(e.Status.Attempts),
		reasons(e.Status), age(e.CreationTimestamp.Time), e.Status.NominatedNode, blocked)
}

// reasons sums up why a pod waits.
func reasons(s berthv1.QueueEntryStatus) string {
	if s.State == berthv1.QueueNominated {
		return "waits for room on " + s.NominatedNode
	}
	if s.State == berthv1.QueueSetAside {
		return s.SetAsideReason + ": " + s.SetAsideMessage
	}
	parts := make([]string, len(s.Reasons))
	for i, r := range s.Reasons {
		parts[i] = fmt.Sprintf("%d %s", r.Nodes, r.Reason)
	}
	return strings.Join(parts, ", ")
}

func addPreemptionTable(h printers.PrintHandler) {
	handle(h, []metav1.TableColumnDefinition{
		nameColumn,
		column("Preemptor", "string", "The pod that the place is for."),
		column("Priority", "integer", "The preemptor's priority."),
		column("Node", "string", "The node that is cleared."),
		column("Victims", "string", "The evicted pods, and in parentheses those that were ending before."),
		column("State", "string", "Terminating, Bound or Released."),
		column("Revision", "integer", "The revision at which it was decided."),
		column("Age", "string", "The time since then."),
		wide("Decided By", "string", "What set the node apart from the next best."),
		wide("Released Reason", "string", "Why the nomination ended without a binding."),
	}, printPreemption, func(l *berthv1.PreemptionList) []berthv1.Preemption { return l.Items })
}

func printPreemption(p *berthv1.Preemption) metav1.TableRow {
	victims := make([]string, len(p.Status.Victims))
	for i, v := range p.Status.Victims {
		victims[i] = v.Name
		if v.Namespace != p.Namespace {
			victims[i] = v.Namespace + "/" + v.Name
		}
		if v.WaitedFor {
			victims[i] = "(" + victims[i] + ")"
		}
	}
	decidedBy := ""
	if p.Status.Alternatives != nil {
		decidedBy = p.Status.Alternatives.DecidedBy
	}
	return row(p, p.Name, p.Status.Preemptor.Name, int64(p.Status.Preemptor.Priority), p.Status.Node, strings.Join(victims, ","),
		string(p.Status.State), p.Status.Revision, age(p.Status.Time.Time), decidedBy, p.Status.ReleasedReason)
}

func addConfigTable(h printers.PrintHandler) {
	handle(h, []metav1.TableColumnDefinition{
		nameColumn,
		column("Preemption", "boolean", "Whether pods are evicted for others."),
		column("Queue", "string", "The order in which pods are tried."),
		column("Profiles", "string", "The schedulers whose pods are placed."),
		column("Age", "string", "The time since it was first set."),
	}, printConfig, func(l *berthv1.SchedulerConfigurationList) []berthv1.SchedulerConfiguration { return l.Items })
}

func printConfig(c *berthv1.SchedulerConfiguration) metav1.TableRow {
	enabled := c.Spec.Preemption.Enabled == nil || *c.Spec.Preemption.Enabled
	profiles := make([]string, len(c.Spec.Profiles))
	for i := range profiles {
		profiles[i] = c.Spec.Profiles[i].SchedulerName
	}
	return row(c, c.Name, enabled, string(c.Spec.Queue), strings.Join(profiles, ","), age(c.CreationTimestamp.Time))
}

// addPlanTable prints a plan as one row a placement.
func addPlanTable(h printers.PrintHandler) {
	columns := []metav1.TableColumnDefinition{
		{Name: "Pod", Type: "string", Format: "name", Description: "The pod."},
		column("Node", "string", "Where it would go."),
		column("Victims", "integer", "How many pods would be evicted for it."),
		column("Message", "string", "Why it would go nowhere."),
	}
	must(h.TableHandler(columns, func(p *berthv1.Plan, _ printers.GenerateOptions) ([]metav1.TableRow, error) {
		rows := make([]metav1.TableRow, len(p.Status.Placements))
		for i, pl := range p.Status.Placements {
			node := pl.Node
			if node == "" && pl.NominatedNode != "" {
				node = pl.NominatedNode + " (after evictions)"
			}
			evicted := int64(0)
			for _, v := range pl.Victims {
				if !v.WaitedFor {
					evicted++
				}
			}
			rows[i] = row(p, pl.Pod.Name, node, evicted, pl.Message)
		}
		return rows, nil
	}))
}

func age(since time.Time) string {
	if since.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(since))
}
