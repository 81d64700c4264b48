package verb

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/api/berthv1"
)

func (e *Env) queue() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "queue [POD]",
		Short: "Show the pods that wait for a place, in the order in which they are tried",
		Example: `  # The waiting pods of all namespaces
  berth queue -A

  # All that is known of one of them
  berth queue web-0`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return e.runQueue(cmd, all)
			}
			if all {
				return usagef("-A and the name of a pod exclude each other")
			}
			return e.runQueueEntry(cmd, podName(args[0]))
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Show the pods of all namespaces.")
	return e.outputFlag(cmd)
}

func (e *Env) runQueue(cmd *cobra.Command, all bool) error {
	api, err := e.Client.API()
	if err != nil {
		return err
	}
	ns, err := e.scope(all)
	if err != nil {
		return err
	}
	var list berthv1.QueueEntryList
	if err := api.List(cmd.Context(), berthv1.ResourceQueueEntries, ns, &list); err != nil {
		return fmt.Errorf("reading the queue: %w", err)
	}
	list.SetGroupVersionKind(berthv1.GroupVersion.WithKind("QueueEntryList"))
	slices.SortStableFunc(list.Items, compareEntries)
	if len(list.Items) == 0 && e.isTable() {
		fmt.Fprintln(e.ErrOut, "No pods are waiting"+inNamespace(ns)+".")
		return nil
	}
	return e.print(&list, func(w io.Writer) {
		header := []any{"POSITION", "POD", "PRIORITY", "STATE", "ATTEMPTS", "BLOCKED", "NOMINATED", "REASONS"}
		if all {
			header = slices.Insert(header, 1, any("NAMESPACE"))
		}
		row(w, header...)
		for i := range list.Items {
			q := &list.Items[i]
			position := "-"
			if q.Status.Position > 0 {
				position = fmt.Sprint(q.Status.Position)
			}
			cells := []any{position, q.Name, q.Status.Priority, q.Status.State, q.Status.Attempts,
				orDash(e.ageOf(q.Status.BlockedSince)), orDash(q.Status.NominatedNode), summary(q.Status.Reasons)}
			if all {
				cells = slices.Insert(cells, 1, any(q.Namespace))
			}
			row(w, cells...)
		}
	})
}

func (e *Env) runQueueEntry(cmd *cobra.Command, pod string) error {
	api, err := e.Client.API()
	if err != nil {
		return err
	}
	ns, err := e.scope(false)
	if err != nil {
		return err
	}
	var q berthv1.QueueEntry
	err = api.Get(cmd.Context(), berthv1.ResourceQueueEntries, ns, pod, &q)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("pod %s is not in the queue; `berth why %s` tells more", qualified(ns, pod), pod)
	}
	if err != nil {
		return fmt.Errorf("reading the queue: %w", err)
	}
	q.SetGroupVersionKind(berthv1.GroupVersion.WithKind("QueueEntry"))
	return e.print(&q, func(w io.Writer) { e.describeEntry(w, &q) })
}

func (e *Env) describeEntry(w io.Writer, q *berthv1.QueueEntry) {
	s := &q.Status
	row(w, "Pod:", qualified(q.Namespace, q.Name))
	row(w, "Priority:", s.Priority)
	state := string(s.State)
	if s.Position > 0 {
		state += fmt.Sprintf(", position %d", s.Position)
	}
	if s.BackoffUntil != nil {
		state += ", tried again at " + clock(s.BackoffUntil.Time)
	}
	row(w, "State:", state)
	row(w, "First queued:", fmt.Sprintf("at revision %d", s.FirstEnqueuedRevision))
	if s.Attempts > 0 || s.Errors > 0 {
		row(w, "Attempts:", fmt.Sprintf("%d, the last at revision %d", s.Attempts, s.LastAttemptRevision))
	}
	if s.Errors > 0 {
		row(w, "Errors:", s.Errors)
	}
	if s.Refusals > 0 {
		row(w, "Refused:", fmt.Sprintf("%d decisions in a row, the last because %s", s.Refusals, s.Refusal))
	}
	if s.SetAside > 0 {
		row(w, "Set aside:", fmt.Sprintf("%d times in a row, the last for %s: %s", s.SetAside, s.SetAsideReason, s.SetAsideMessage))
	}
	if s.BlockedSince != nil {
		row(w, "Blocked since:", fmt.Sprintf("%s (%s)", clock(s.BlockedSince.Time), e.ageOf(s.BlockedSince)))
	}
	if s.NominatedNode != "" {
		row(w, "Nominated to:", s.NominatedNode)
	}
	for i, r := range s.Reasons {
		title := ""
		if i == 0 {
			title = "Reasons:"
		}
		row(w, title, reasonLine(r))
	}
	if s.Message != "" {
		row(w, "Message:", s.Message)
	}
}

// compareEntries puts first what is tried first: the active pods, then the others
// by how near they are to being tried, and each of these as the queue orders them.
func compareEntries(a, b berthv1.QueueEntry) int {
	return cmp.Or(
		cmp.Compare(stateRank(a.Status.State), stateRank(b.Status.State)),
		cmp.Compare(a.Status.SortKey, b.Status.SortKey),
		cmp.Compare(a.Status.Position, b.Status.Position),
		-cmp.Compare(a.Status.Priority, b.Status.Priority),
		cmp.Compare(a.Status.FirstEnqueuedRevision, b.Status.FirstEnqueuedRevision),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
	)
}

func stateRank(s berthv1.QueueState) int {
	order := []berthv1.QueueState{
		berthv1.QueueActive, berthv1.QueueNominated, berthv1.QueueBackoff, berthv1.QueueUnschedulable,
		berthv1.QueueSetAside, berthv1.QueueGated,
	}
	if i := slices.Index(order, s); i >= 0 {
		return i
	}
	return len(order)
}

// summary is the reasons in one cell.
func summary(reasons []berthv1.ReasonCount) string {
	var parts []string
	for _, r := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", r.Nodes, r.Reason))
	}
	return orDash(strings.Join(parts, ", "))
}

// reasonLine is one reason with all that is known of it.
func reasonLine(r berthv1.ReasonCount) string {
	s := plural(r.Nodes, "node") + ": " + r.Reason
	if r.Detail != "" {
		s += " (" + r.Detail + ")"
	}
	if len(r.NodeNames) > 0 {
		s += ": " + strings.Join(r.NodeNames, ", ")
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func inNamespace(ns string) string {
	if ns == "" {
		return ""
	}
	return " in namespace " + ns
}

// isTable tells whether a person reads the output, so that a sentence for an
// empty answer is welcome.
func (e *Env) isTable() bool {
	conn, err := e.Client.Connection()
	return err == nil && conn.Output == "table"
}
