package verb

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/cmd/berth/internal/connect"
)

// Explanation is what `berth why` found, in the form that -o json prints.
type Explanation struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
	// Others are other pods that had the name, the last first.
	Others []ledger.Namesake `json:"others,omitempty"`
	// Node is where the pod is bound; ScheduledRevision is that of the event which
	// says so, if it is still there.
	Node              string              `json:"node,omitempty"`
	ScheduledRevision string              `json:"scheduledRevision,omitempty"`
	QueueEntry        *berthv1.QueueEntry `json:"queueEntry,omitempty"`
	// At is the revision that was asked about; 0: now.
	At int64 `json:"at,omitempty"`
	// ReachesBackTo is the revision from which on the ledger knows every decision.
	ReachesBackTo int64 `json:"reachesBackTo,omitempty"`
	// Decisions about the pod, newest first.
	Decisions []ledger.Decision `json:"decisions,omitempty"`
	// For are the preemptions that made room for the pod, Against those that
	// evicted it, AwaitedBy those that waited for it while it was ending anyway;
	// oldest first.
	For       []berthv1.Preemption `json:"for,omitempty"`
	Against   []berthv1.Preemption `json:"against,omitempty"`
	AwaitedBy []berthv1.Preemption `json:"awaitedBy,omitempty"`
	// Now is what the nodes say to a pod that waits.
	Now *ledger.Nodes `json:"now,omitempty"`

	pod *corev1.Pod
}

// whyFlags are what is asked beside the pod.
type whyFlags struct {
	at    int64
	nodes bool
	uid   string
}

func (e *Env) why() *cobra.Command {
	var f whyFlags
	cmd := &cobra.Command{
		Use:   "why POD",
		Short: "Explain where a pod is, or why it has no place, or for whom it had to go",
		Long: `Explain where a pod is and why there, or why it has no place, or for whom it had to go. A pod that is gone is still
explained for as long as the ledger of decisions or a preemption names it. POD may be a UID. Of several pods that had one
name, the one that is there is explained, or else the last.`,
		Example: `  berth why web-0
  berth why -n batch crunch-7 -o yaml

  # What every node says
  berth why web-0 --nodes

  # What was decided by then
  berth why web-0 --at 4711`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("at") && f.at <= 0 {
				return usagef("--at %d is not a revision", f.at)
			}
			return e.runWhy(cmd.Context(), podName(args[0]), f)
		},
	}
	cmd.Flags().Int64Var(&f.at, "at", 0, "Explain what had been decided by this revision.")
	cmd.Flags().BoolVar(&f.nodes, "nodes", false, "Show what every node says to the pod now.")
	cmd.Flags().StringVar(&f.uid, "uid", "", "Explain the pod of this UID, of several that had the name.")
	return e.outputFlag(cmd)
}

func (e *Env) runWhy(ctx context.Context, name string, f whyFlags) error {
	api, err := e.Client.API()
	if err != nil {
		return err
	}
	ns, err := e.scope(false)
	if err != nil {
		return err
	}
	x, err := explain(ctx, api, ns, name, f)
	if err != nil {
		return err
	}
	return e.print(x, func(w io.Writer) {
		for _, line := range e.sentences(x) {
			fmt.Fprintln(w, line)
		}
		tellNodes(w, x.Now)
		tellHistory(w, x)
	})
}

// explain reads all that is known of a pod. A pod that is gone is still explained
// if the ledger or a preemption names it.
func explain(ctx context.Context, api *connect.API, ns, name string, f whyFlags) (*Explanation, error) {
	question := url.Values{ledger.ParamNamespace: {ns}, ledger.ParamPod: {name}}
	if f.at > 0 {
		question.Set(ledger.ParamAt, strconv.FormatInt(f.at, 10))
	}
	if f.nodes {
		question.Set(ledger.ParamNodes, "true")
	}
	if f.uid != "" {
		question.Set(ledger.ParamUID, f.uid)
	}
	var a ledger.Answer
	if err := api.Ask(ctx, ledger.PathWhy, question, &a); err != nil {
		return nil, err
	}
	x := &Explanation{
		Namespace: a.Namespace, Name: a.Name, UID: a.UID, Others: a.Others, At: a.At, ReachesBackTo: a.ReachesBackTo,
		Decisions: a.Decisions, For: a.For, Against: a.Against, AwaitedBy: a.AwaitedBy, Now: a.Now,
	}
	if x.At > 0 {
		return x, nil
	}
	pod, err := api.Core.Pods(ns).Get(ctx, x.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return x, nil
	case err != nil:
		return nil, fmt.Errorf("reading pod %s: %w", qualified(ns, x.Name), err)
	case a.UID != "" && pod.UID != a.UID:
		return x, nil // another has the name now
	}
	x.pod, x.Node = pod, pod.Spec.NodeName
	if x.Node != "" {
		x.ScheduledRevision, err = scheduledRevision(ctx, api, pod)
		return x, err
	}
	var q berthv1.QueueEntry
	switch err := api.Get(ctx, berthv1.ResourceQueueEntries, ns, x.Name, &q); {
	case err == nil:
		q.SetGroupVersionKind(berthv1.GroupVersion.WithKind("QueueEntry"))
		x.QueueEntry = &q
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading the queue: %w", err)
	}
	return x, nil
}

// scheduledRevision is the revision of the event that tells of the binding; it
// was made by the same command. It is empty when the event is gone.
func scheduledRevision(ctx context.Context, api *connect.API, pod *corev1.Pod) (string, error) {
	selector := fields.AndSelectors(
		fields.OneTermEqualSelector("reason", "Scheduled"),
		fields.OneTermEqualSelector("involvedObject.uid", string(pod.UID)),
	).String()
	events, err := api.Core.Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return "", fmt.Errorf("reading the events of pod %s: %w", qualified(pod.Namespace, pod.Name), err)
	}
	if len(events.Items) == 0 {
		return "", nil
	}
	return events.Items[0].ResourceVersion, nil
}

func (e *Env) sentences(x *Explanation) []string {
	name := qualified(x.Namespace, x.Name)
	var out []string
	switch {
	case x.At > 0:
		out = append(out, decidedBy(name, x))
	case x.pod == nil && len(x.Others) > 0:
		out = append(out, fmt.Sprintf("%s of UID %s is gone.", name, x.UID))
	case x.pod == nil:
		out = append(out, name+" is gone.")
	case x.Node != "":
		s := name + " is bound to " + x.Node
		if t := scheduledAt(x.pod); !t.IsZero() {
			s += " since " + clock(t.Time)
		}
		if x.ScheduledRevision != "" {
			s += ", at revision " + x.ScheduledRevision
		}
		out = append(out, s+".")
		out = append(out, whyThere(x)...)
		out = append(out, tellResize(x.pod)...)
		out = append(out, tellNotRunning(x.pod)...)
	case x.pod.DeletionTimestamp != nil:
		out = append(out, name+" is being deleted and was never bound.")
	case x.QueueEntry == nil && x.pod.Status.Phase != corev1.PodPending:
		out = append(out, fmt.Sprintf("%s is %s and was never bound.", name, x.pod.Status.Phase))
	case x.QueueEntry == nil:
		out = append(out, fmt.Sprintf("%s is not in the queue; its scheduler is %q.", name, x.pod.Spec.SchedulerName))
	default:
		out = append(out, e.waiting(name, x)...)
	}
	for i := range x.For {
		out = append(out, tellPreemption(&x.For[i])...)
	}
	for i := range x.Against {
		p := &x.Against[i].Status
		s := fmt.Sprintf("It had to go for %s (priority %d) on %s, decided at revision %d, %s.",
			podNamed(p.Preemptor.Namespace, p.Preemptor.Name, p.Preemptor.UID), p.Preemptor.Priority, p.Node, p.Revision, clock(p.Time.Time))
		out = append(out, s)
		for _, line := range considered(p) {
			out = append(out, "  "+line)
		}
	}
	for i := range x.AwaitedBy {
		p := &x.AwaitedBy[i].Status
		out = append(out, fmt.Sprintf("It was ending already when %s (priority %d) began to wait for its place on %s, decided at revision %d, %s.",
			podNamed(p.Preemptor.Namespace, p.Preemptor.Name, p.Preemptor.UID), p.Preemptor.Priority, p.Node, p.Revision, clock(p.Time.Time)))
	}
	if x.pod == nil && len(x.Others) > 0 {
		var others []string
		for _, n := range x.Others {
			others = append(others, fmt.Sprintf("%s (last decided about at revision %d)", n.UID, n.Revision))
		}
		out = append(out, "Others had the name, and --uid explains them: "+strings.Join(others, ", ")+".")
	}
	return out
}

// waiting explains a pod of the queue, with every reason of every node.
func (e *Env) waiting(name string, x *Explanation) []string {
	q := &x.QueueEntry.Status
	s := fmt.Sprintf("%s (priority %d) waits", name, q.Priority)
	switch q.State {
	case berthv1.QueueActive:
		s += " to be tried"
		if q.Position > 0 {
			s += fmt.Sprintf(", at position %d of the queue", q.Position)
		}
		s += "."
	case berthv1.QueueBackoff:
		s += " before it is tried again"
		if q.BackoffUntil != nil {
			s += " at " + clock(q.BackoffUntil.Time)
		}
		s += "."
	case berthv1.QueueSetAside:
		s += " aside, because deciding about it went wrong in the scheduler (" + q.SetAsideReason + ": " + q.SetAsideMessage + ")"
		if q.BackoffUntil != nil {
			s += "; it is tried again at " + clock(q.BackoffUntil.Time)
		}
		s += "."
	case berthv1.QueueNominated:
		s += " for its victims on " + q.NominatedNode + " to end."
	case berthv1.QueueGated:
		s += " for its scheduling gates: " + gates(x.pod) + "."
	default:
		s += " for a change that could help it"
		if q.BlockedSince != nil {
			s += ", since " + clock(q.BlockedSince.Time)
		}
		s += "."
	}
	out := []string{s}
	if q.Reserved {
		out = append(out, "It has been waiting for long, so what comes free on "+q.NominatedNode+" is kept for it.")
	}
	if q.Refusals > 0 {
		out = append(out, fmt.Sprintf("%d decisions about it in a row were refused, the last because %s.", q.Refusals, q.Refusal))
	}
	if q.Attempts > 0 {
		tried := fmt.Sprintf("It was tried %s, the last at revision %d. %s", plural(q.Attempts, "time"), q.LastAttemptRevision, q.Message)
		out = append(out, strings.TrimSpace(tried))
	}
	if x.Now == nil { // the nodes were not asked
		for _, r := range q.Reasons {
			out = append(out, "  "+reasonLine(r))
		}
	}
	return out
}

// tellPreemption tells of a preemption to the pod that it is for.
func tellPreemption(p *berthv1.Preemption) []string {
	s := &p.Status
	title := "Room was made for it"
	if s.State == berthv1.PreemptionTerminating {
		title = "Room is being made for it"
	}
	evicted, awaited := evictions(s.Victims)
	victims := plural(evicted, "victim")
	if awaited > 0 {
		victims += fmt.Sprintf(" and %s that ended anyway", plural(awaited, "pod"))
	}
	line := fmt.Sprintf("%s on %s: %s, decided at revision %d, %s", title, s.Node, victims, s.Revision, clock(s.Time.Time))
	switch s.State {
	case berthv1.PreemptionTerminating:
		line += "; under way"
		if s.Deadline != nil {
			line += " until " + clock(s.Deadline.Time) + " at the latest"
		}
	case berthv1.PreemptionReleased:
		line += "; released"
		if s.ReleasedReason != "" {
			line += " (" + s.ReleasedReason + ")"
		}
	}
	out := []string{line + "."}
	for _, line := range append(victimLines(s), considered(s)...) {
		out = append(out, "  "+line)
	}
	return out
}

// victimLines tells of each victim.
func victimLines(s *berthv1.PreemptionStatus) []string {
	var out []string
	for _, v := range s.Victims {
		state := "still ending"
		if v.GoneAt != nil {
			state = "gone at " + clock(v.GoneAt.Time)
		}
		line := fmt.Sprintf("%s (priority %d) on %s: %s", podNamed(v.Namespace, v.Name, v.UID), v.Priority, orDash(v.Node), state)
		if v.WaitedFor {
			line += "; it was ending before and was waited for"
		}
		if v.ViolatesBudget {
			line += ", against its budget"
		}
		out = append(out, line)
	}
	return out
}

// considered tells of the search behind a preemption.
func considered(s *berthv1.PreemptionStatus) []string {
	var out []string
	if a := s.Alternatives; a != nil {
		out = append(out, alternatives(a))
	}
	switch {
	case s.Minimal == nil:
	case *s.Minimal:
		out = append(out, "proven: no other choice of victims would have cost less")
	default:
		out = append(out, fmt.Sprintf("not proven to be the least: the search ended at its limit of %d", s.SearchLimit))
	}
	return out
}

func alternatives(a *berthv1.PreemptionAlternatives) string {
	s := fmt.Sprintf("%s considered, %s", plural(a.NodesConsidered, "node"), plural(a.Candidates, "candidate"))
	if a.RunnerUp != "" {
		s += "; the next best was " + a.RunnerUp
		if a.DecidedBy != "" {
			s += ", decided by " + a.DecidedBy
		}
	}
	return s
}

func scheduledAt(pod *corev1.Pod) metav1.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime
		}
	}
	return metav1.Time{}
}

func gates(pod *corev1.Pod) string {
	var names []string
	for _, g := range pod.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return strings.Join(names, ", ")
}
