package fsm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// shows are the directives that only look.
var shows = map[string]func(s *transcript, a words) string{
	"pods":        func(s *transcript, a words) string { return rows(s.view().Pods, a.name()) },
	"nodes":       func(s *transcript, a words) string { return rows(s.view().Nodes, a.name()) },
	"conditions":  (*transcript).showConditions,
	"classes":     func(s *transcript, a words) string { return rows(s.view().PriorityClasses, a.name()) },
	"namespaces":  func(s *transcript, a words) string { return rows(s.view().Namespaces, a.name()) },
	"budgets":     func(s *transcript, a words) string { return rows(s.view().Budgets, a.name()) },
	"objects":     func(s *transcript, a words) string { return rows(s.view().Objects, a.name()) },
	"events":      func(s *transcript, a words) string { return rows(s.view().Events, a.name()) },
	"nominations": func(s *transcript, a words) string { return rows(s.view().Nominations, a.name()) },
	"preemptions": func(s *transcript, a words) string { return rows(s.view().Preemptions, a.name()) },
	"keys":        func(s *transcript, _ words) string { return showKeys(s.view()) },
	"config":      func(s *transcript, a words) string { return describe(s.view().SchedulerConfig()) },
	"tally":       (*transcript).showTally,
	"judge":       (*transcript).showVerdicts,
	"queue":       (*transcript).showQueue,
	"ready":       (*transcript).showReady,
	"usage":       (*transcript).showUsage,
	"decisions":   (*transcript).showDecisions,
	"drifted":     (*transcript).showDrifted,
	"digest": func(s *transcript, _ words) string {
		if s.view().Digest() != s.replica.View().Digest() {
			return "the replicas differ"
		}
		return "both replicas have the same"
	},
	"kept": func(s *transcript, _ words) string { // the view that the last entry's Checkpoint kept
		v, ok := s.state.Checkpoint(s.index)
		if !ok {
			return "none"
		}
		return fmt.Sprintf("a view at revision %d", v.Revision())
	},
}

func rows[T any](t Table[T], prefix string) string {
	out := ""
	t.Scan("", func(key string, row T) bool {
		if strings.HasPrefix(key, prefix) || strings.HasPrefix(key, "default/"+prefix) {
			out += fmt.Sprintf("%s %s\n", key, describe(row))
		}
		return true
	})
	return out
}

// showKeys lists those that verify tokens.
func showKeys(v *View) string {
	out := ""
	v.SigningKeys(func(id string, k *SigningKey) bool {
		out += fmt.Sprintf("%s signs: %t, private part: %t\n", id, k.RetiredUnixNano == 0, len(k.Private) > 0)
		return true
	})
	return out
}

// showQueue lists the queue in order, and then who is in no order.
func (s *transcript) showQueue(words) string {
	out := ""
	s.view().InOrder(func(position int32, e *QueueEntry) bool {
		out += fmt.Sprintf("%d. %s %s\n", position, e.Key(), describe(e))
		return true
	})
	s.view().Queue.Scan("", func(key string, e *QueueEntry) bool {
		if e.State != berthv1.QueueActive && e.State != berthv1.QueueBackoff {
			out += fmt.Sprintf("-  %s %s\n", key, describe(e))
		}
		return true
	})
	return out
}

// showDecisions lists what the ledger holds about a pod, newest first, up to a
// revision if at= gives one.
func (s *transcript) showDecisions(a words) string {
	out := ""
	var at int64
	if text, ok := a.get("at"); ok {
		at = parseRevision(text)
	}
	s.view().DecisionsAbout(PodKey("default", a.name()), "", at, func(r *PlanRecord, d *Decision) bool {
		out += fmt.Sprintf("index %d, revision %d, decided at %d: %s", r.Index, d.Revision, r.DecidedAtRevision, d.Kind)
		for _, part := range []struct{ name, value string }{{"node", d.Node}, {"refused", d.Refused}, {"preemption", d.Preemption}, {"runner-up", d.RunnerUp}} {
			if part.value != "" {
				out += fmt.Sprintf(", %s %s", part.name, part.value)
			}
		}
		if d.Feasible > 0 {
			out += fmt.Sprintf(", the best of %d with %d", d.Feasible, d.Score)
		}
		if why := r.Why(d); why != nil {
			out += ": " + why.Message
		}
		out += "\n"
		return true
	})
	return out
}

func (s *transcript) showReady(words) string {
	var keys []string
	s.view().Ready(s.now.UnixNano(), func(e *QueueEntry) bool {
		keys = append(keys, e.Key())
		return true
	})
	return strings.Join(keys, " ")
}

func (s *transcript) showUsage(a words) string {
	v, node := s.view(), a.name()
	out := fmt.Sprintf("in all: %s\n", amounts(v.Usage(node)))
	levels := map[int32]bool{}
	v.PodsOnNode(node, func(p *corev1.Pod) bool {
		levels[model.Priority(p)] = true
		return true
	})
	var above model.Usage
	for _, priority := range slices.Backward(slices.Sorted(maps.Keys(levels))) {
		from := v.usage.From(node, priority)
		level := model.Usage{Requested: from.Requested.Sub(above.Requested)}
		if above = from; level.Requested.Pods > 0 {
			out += fmt.Sprintf("priority %d: %s\n", priority, amounts(&level))
		}
	}
	return out
}

func amounts(u *model.Usage) string {
	return fmt.Sprintf("%d pods, cpu %s, memory %s", u.Requested.Pods,
		model.FormatAmount("cpu", u.Requested.MilliCPU), model.FormatAmount("memory", u.Requested.MemoryBytes))
}

func (s *transcript) showDrifted(words) string {
	out := ""
	s.view().PodsApartFromClass(func(pod *corev1.Pod, class *schedulingv1.PriorityClass) bool {
		now := "no class of that name"
		if class != nil {
			now = fmt.Sprintf("the class has %d now", class.Value)
		}
		out += fmt.Sprintf("%s: %s with %d, %s\n", PodKey(pod.Namespace, pod.Name), pod.Spec.PriorityClassName, model.Priority(pod), now)
		return true
	})
	return out
}

func singular(table string) string {
	switch table {
	case "priorityclasses":
		return "class"
	case "poddisruptionbudgets":
		return "budget"
	case "queueentries":
		return "queue"
	case "schedulerconfigurations":
		return "config"
	}
	return strings.TrimSuffix(table, "s")
}

// describe tells what matters of a row.
func describe(row any) string {
	switch r := row.(type) {
	case nil:
		return ""
	case *corev1.Pod:
		return describePod(r)
	case *corev1.Node:
		return describeNode(r)
	case *corev1.Namespace:
		return string(r.Status.Phase)
	case *corev1.Event:
		return fmt.Sprintf("%s %s %s: %s%s", r.Type, r.Reason, r.InvolvedObject.Name, r.Message, times(r.Count))
	case *schedulingv1.PriorityClass:
		return describeClass(r)
	case *policyv1.PodDisruptionBudget:
		return describeBudget(r)
	case *Object:
		return describeObject(r)
	case *QueueEntry:
		return describeEntry(r)
	case *Nomination:
		if r.Reserved {
			return fmt.Sprintf("to %s until %s, reserved, lets in whoever ends within %d s", r.Node, clock(r.DeadlineUnixNano), r.BackfillSeconds)
		}
		return fmt.Sprintf("to %s until %s, waits for %s", r.Node, clock(r.DeadlineUnixNano), orNone(victims(r.Victims)))
	case *berthv1.Preemption:
		return describePreemption(r)
	case *berthv1.SchedulerConfiguration:
		return describeConfig(r)
	}
	return fmt.Sprintf("%T", row)
}

func describeConfig(r *berthv1.SchedulerConfiguration) string {
	out := fmt.Sprintf("preemption %t, queue %s, backoff %d-%ds, slack %ds, system classes for %v %v, %d events", *r.Spec.Preemption.Enabled, r.Spec.Queue,
		*r.Spec.PodInitialBackoffSeconds, *r.Spec.PodMaxBackoffSeconds, *r.Spec.NominationSlackSeconds,
		r.Spec.SystemClasses.Users, r.Spec.SystemClasses.Groups, *r.Spec.EventLimit)
	if p := r.Spec.Profiles; len(p) != 1 || p[0].SchedulerName != corev1.DefaultSchedulerName {
		out += ", profiles"
		for i := range p {
			out += " " + p[i].SchedulerName
		}
	}
	return out
}

func times(n int32) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf(" (%d times)", n)
}

// clock is a time as seconds after the transcript's start.
func clock(unixNano int64) string {
	return "+" + time.Duration(unixNano-worldStart.UnixNano()).String()
}

func victims(refs []VictimRef) string {
	var out []string
	for _, r := range refs {
		out = append(out, r.Key)
	}
	return strings.Join(out, " ")
}

func describePod(p *corev1.Pod) string {
	out := fmt.Sprintf("%s, priority %d", p.Status.Phase, model.Priority(p))
	add := func(format string, args ...any) { out += ", " + fmt.Sprintf(format, args...) }
	if p.Spec.PriorityClassName != "" {
		add("class %s", p.Spec.PriorityClassName)
	}
	if model.NeverPreempts(p) {
		add("never preempts")
	}
	if p.Spec.NodeName != "" {
		add("on %s", p.Spec.NodeName)
	}
	if p.Status.NominatedNodeName != "" {
		add("nominated to %s", p.Status.NominatedNodeName)
	}
	if p.DeletionTimestamp != nil {
		add("ends by %s (grace %ds)", clock(p.DeletionTimestamp.UnixNano()), *p.DeletionGracePeriodSeconds)
	}
	if v := p.Annotations["berth.dev/disruption-policy"]; v != "" {
		add("%s", v)
	}
	for _, c := range p.Status.Conditions {
		add("%s=%s", c.Type, c.Status)
		if c.Reason != "" {
			out += " " + c.Reason
		}
		if c.Message != "" && c.Type != corev1.PodReady {
			out += " (" + c.Message + ")"
		}
	}
	return out + describeOwners(p)
}

func describeNode(n *corev1.Node) string {
	o := model.Allocatable(n)
	ready := corev1.ConditionUnknown
	if c := nodeReadyCondition(n); c != nil {
		ready = c.Status
	}
	out := fmt.Sprintf("ready %s, cpu %s, memory %s, %d pods", ready, model.FormatAmount("cpu", o.MilliCPU), model.FormatAmount("memory", o.MemoryBytes), o.Pods)
	for k, v := range sortedPairs(n.Labels) {
		out += fmt.Sprintf(", %s=%s", k, v)
	}
	if n.Spec.Unschedulable {
		out += ", cordoned"
	}
	for _, t := range n.Spec.Taints {
		out += fmt.Sprintf(", taint %s", t.ToString())
		if t.TimeAdded != nil {
			out += " since " + clock(t.TimeAdded.UnixNano())
		}
	}
	if len(n.Status.Images) > 0 {
		out += fmt.Sprintf(", %d images", len(n.Status.Images))
	}
	return out
}

// showConditions shows those of a node.
func (s *transcript) showConditions(a words) string {
	n, _ := s.view().Nodes.Get(a.name())
	var b strings.Builder
	for _, c := range n.Status.Conditions {
		fmt.Fprintf(&b, "%s=%s", c.Type, c.Status)
		for _, more := range []string{c.Reason, c.Message} {
			if more != "" {
				b.WriteString(" " + more)
			}
		}
		if !c.LastTransitionTime.IsZero() {
			b.WriteString(", since " + clock(c.LastTransitionTime.UnixNano()))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func describeClass(c *schedulingv1.PriorityClass) string {
	out := fmt.Sprintf("value %d", c.Value)
	if c.GlobalDefault {
		out += ", global default"
	}
	if c.PreemptionPolicy != nil && *c.PreemptionPolicy == corev1.PreemptNever {
		out += ", never preempts"
	}
	if c.Description != "" {
		out += fmt.Sprintf(", %q", c.Description)
	}
	return out
}

func describeEntry(e *QueueEntry) string {
	out := fmt.Sprintf("%s, priority %d", e.State, e.Priority)
	if e.Attempts+e.Errors > 0 {
		out += fmt.Sprintf(", %d attempts", e.Attempts)
	}
	if e.Errors > 0 {
		out += fmt.Sprintf(", %d errors", e.Errors)
	}
	if e.Refusals > 0 {
		out += fmt.Sprintf(", refused %d times", e.Refusals)
	}
	if e.SetAside != nil {
		out += fmt.Sprintf(", set aside %d times for %s: %s", e.TimesSetAside, e.SetAside.Kind, e.SetAside.Message)
	}
	if e.State == berthv1.QueueBackoff || e.State == berthv1.QueueSetAside {
		out += ", until " + clock(e.BackoffUntilUnixNano)
	}
	if e.Diagnosis != nil {
		out += ": " + e.Diagnosis.Message
	}
	return out
}

func describePreemption(p *berthv1.Preemption) string {
	out := fmt.Sprintf("%s: %s on %s evicts", p.Status.State, p.Status.Preemptor.Name, p.Status.Node)
	for _, v := range p.Status.Victims {
		out += fmt.Sprintf(" %s/%s", v.Namespace, v.Name)
		if v.ViolatesBudget {
			out += " (beyond its budget)"
		}
		if v.WaitedFor {
			out += " (ending before)"
		}
		if v.GoneAt != nil {
			out += " (gone " + clock(v.GoneAt.UnixNano()) + ")"
		}
	}
	if p.Status.ReleasedReason != "" {
		out += "; " + p.Status.ReleasedReason
	}
	return out
}
