package verb

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/cmd/berth/internal/connect"
)

// Explanation is what `berth why` found, in the form that -o json prints.
type Explanation struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Node is where the pod is bound; ScheduledRevision is that of the event which
	// says so, if it is still there.
	Node              string              `json:"node,omitempty"`
	ScheduledRevision string              `json:"scheduledRevision,omitempty"`
	QueueEntry        *berthv1.QueueEntry `json:"queueEntry,omitempty"`
	// For are the preemptions that made room for the pod, Against those that
	// evicted it; oldest first.
	For     []berthv1.Preemption `json:"for,omitempty"`
	Against []berthv1.Preemption `json:"against,omitempty"`

	pod *corev1.Pod
}

func (e *Env) why() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "why POD",
		Short: "Explain where a pod is, or why it has no place, or for whom it had to go",
		Example: `  berth why web-0
  berth why -n batch crunch-7 -o yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return e.runWhy(cmd.Context(), podName(args[0])) },
	})
}

func (e *Env) runWhy(ctx context.Context, name string) error {
	api, err := e.Client.API()
	if err != nil {
		return err
	}
	ns, err := e.scope(false)
	if err != nil {
		return err
	}
	x, err := explain(ctx, api, ns, name)
	if err != nil {
		return err
	}
	return e.print(x, func(w io.Writer) {
		for _, line := range e.sentences(x) {
			fmt.Fprintln(w, line)
		}
	})
}

// explain reads all that is known of a pod. A pod that is gone is still explained
// if a preemption names it.
func explain(ctx context.Context, api *connect.API, ns, name string) (*Explanation, error) {
	x := &Explanation{Namespace: ns, Name: name}
	pod, podErr := api.Core.Pods(ns).Get(ctx, name, metav1.GetOptions{})
	switch {
	case podErr == nil:
		x.pod, x.Node = pod, pod.Spec.NodeName
	case !apierrors.IsNotFound(podErr):
		return nil, fmt.Errorf("reading pod %s: %w", qualified(ns, name), podErr)
	}
	// A victim and its preemptor can be in different namespaces.
	list, err := listPreemptions(ctx, api, "")
	if err != nil {
		return nil, err
	}
	for _, p := range list.Items {
		if ref := p.Status.Preemptor; x.is(ref.Namespace, ref.Name, string(ref.UID)) {
			x.For = append(x.For, p)
		}
		for _, v := range p.Status.Victims {
			if x.is(v.Namespace, v.Name, string(v.UID)) {
				x.Against = append(x.Against, p)
			}
		}
	}
	if x.pod == nil {
		if len(x.For)+len(x.Against) == 0 {
			return nil, podErr
		}
		return x, nil
	}
	if x.Node != "" {
		x.ScheduledRevision, err = scheduledRevision(ctx, api, pod)
		return x, err
	}
	var q berthv1.QueueEntry
	switch err := api.Get(ctx, berthv1.ResourceQueueEntries, ns, name, &q); {
	case err == nil:
		q.SetGroupVersionKind(berthv1.GroupVersion.WithKind("QueueEntry"))
		x.QueueEntry = &q
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading the queue: %w", err)
	}
	return x, nil
}

// is tells whether a reference means the pod in question: by UID, or by name if
// the pod is gone.
func (x *Explanation) is(ns, name, uid string) bool {
	if ns != x.Namespace || name != x.Name {
		return false
	}
	return x.pod == nil || uid == "" || uid == string(x.pod.UID)
}

// scheduledRevision is the revision of the event that tells of the binding; it
// was made by the same command. It is empty when the event is gone.
func scheduledRevision(ctx context.Context, api *connect.API, pod *corev1.Pod) (string, error) {
	selector := fields.Set{"involvedObject.uid": string(pod.UID), "reason": "Scheduled"}.AsSelector().String()
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
		out = append(out, fmt.Sprintf("It had to go for %s (priority %d) on %s, decided at revision %d, %s.",
			qualified(p.Preemptor.Namespace, p.Preemptor.Name), p.Preemptor.Priority, p.Node, p.Revision, clock(p.Time.Time)))
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
	if q.Attempts > 0 {
		tried := fmt.Sprintf("It was tried %s, the last at revision %d. %s", plural(q.Attempts, "time"), q.LastAttemptRevision, q.Message)
		out = append(out, strings.TrimSpace(tried))
	}
	for _, r := range q.Reasons {
		out = append(out, "  "+reasonLine(r))
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
	line := fmt.Sprintf("%s on %s: %s, decided at revision %d, %s", title, s.Node, plural(len(s.Victims), "victim"), s.Revision, clock(s.Time.Time))
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
	for _, v := range s.Victims {
		state := "still ending"
		if v.GoneAt != nil {
			state = "gone at " + clock(v.GoneAt.Time)
		}
		out = append(out, fmt.Sprintf("  %s (priority %d) on %s: %s", qualified(v.Namespace, v.Name), v.Priority, orDash(v.Node), state))
	}
	if a := s.Alternatives; a != nil {
		out = append(out, "  "+alternatives(a))
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
