package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/api/berthv1"
)

// decided is what the cluster had decided when its leader was killed.
type decided struct {
	revision   int64
	queue      []berthv1.QueueEntry
	preemption berthv1.Preemption
	bound      map[types.UID]string // pods and their nodes, but for the victims
	at         time.Time
}

func (s *story) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := s.c.Reader().Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func running(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil
}

func count(pods []corev1.Pod, which func(p *corev1.Pod) bool) int {
	n := 0
	for i := range pods {
		if which(&pods[i]) {
			n++
		}
	}
	return n
}

func (s *story) showPods(ctx context.Context) error {
	pods, err := s.pods(ctx)
	if err != nil {
		return err
	}
	for i := range pods {
		p := &pods[i]
		state, where := string(p.Status.Phase), p.Spec.NodeName
		if p.DeletionTimestamp != nil {
			state = "Terminating"
		}
		if where == "" {
			where = "waits"
		}
		s.say("%-9s priority %-5d %-12s %s", p.Name, *p.Spec.Priority, state, where)
	}
	return nil
}

// list reads objects of berth.dev from one server's own state or, with a
// linearizable read, as of now.
func list[T any](ctx context.Context, p *fleet.Process, resource string) ([]T, int64, error) {
	gvr := schema.GroupVersionResource{Group: berthv1.GroupName, Version: "v1", Resource: resource}
	l, err := p.Dynamic.Resource(gvr).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	var out []T
	for i := range l.Items {
		o, err := decode[T](&l.Items[i])
		if err != nil {
			return nil, 0, err
		}
		out = append(out, *o)
	}
	revision := int64(0)
	_, err = fmt.Sscan(l.GetResourceVersion(), &revision)
	return out, revision, err
}

func decode[T any](u *unstructured.Unstructured) (*T, error) {
	raw, err := u.MarshalJSON()
	if err != nil {
		return nil, err
	}
	o := new(T)
	return o, json.Unmarshal(raw, o)
}

func (s *story) queue(ctx context.Context, p *fleet.Process) ([]berthv1.QueueEntry, error) {
	q, _, err := list[berthv1.QueueEntry](ctx, p, "queueentries")
	slices.SortFunc(q, func(a, b berthv1.QueueEntry) int { return strings.Compare(a.Name, b.Name) })
	return q, err
}

// preempt submits the urgent pod and waits for the decision.
func (s *story) preempt(ctx context.Context) (*decided, error) {
	s.heading("An urgent pod (priority 1000, three cpus) arrives, and no node has three cpus free")
	d := &decided{bound: map[types.UID]string{}}
	began := time.Now()
	p := pod(urgent, urgent, "3", "echo here; exec sleep 1000")
	if _, err := s.c.Reader().Kube.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create the urgent pod: %w", err)
	}
	err := s.waitForRunning(ctx, "the preemption to be decided", func(ctx context.Context) (bool, error) {
		all, revision, err := list[berthv1.Preemption](ctx, s.c.Reader(), "preemptions")
		if err != nil || len(all) == 0 {
			return false, err
		}
		d.preemption, d.revision, d.at = all[0], revision, time.Now()
		d.queue, err = s.queue(ctx, s.c.Reader())
		return err == nil, err
	})
	if err != nil {
		return nil, err
	}
	status := d.preemption.Status
	s.say("decided after %.0f ms, in one log entry (index %d, revision %d): %s is nominated to %s, and there go",
		float64(time.Since(began).Milliseconds()), status.RaftIndex, status.Revision, status.Preemptor.Name, status.Node)
	for _, v := range status.Victims {
		s.say("  %s (priority %d), which got TERM and takes 8 s to save its work", v.Name, v.Priority)
	}
	s.showQueue(d.queue)
	pods, err := s.pods(ctx)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if pods[i].Spec.NodeName != "" && pods[i].DeletionTimestamp == nil {
			d.bound[pods[i].UID] = pods[i].Spec.NodeName
		}
	}
	return d, nil
}

func (s *story) showQueue(queue []berthv1.QueueEntry) {
	for _, e := range queue {
		line := fmt.Sprintf("queue: %-8s priority %-5d %-14s first enqueued at revision %d", e.Name, e.Status.Priority, e.Status.State, e.Status.FirstEnqueuedRevision)
		if e.Status.NominatedNode != "" {
			line += ", nominated to " + e.Status.NominatedNode
		}
		s.say("%s", line)
	}
}

// killLeader kills the leader while the victims are ending, and compares what
// its successor knows.
func (s *story) killLeader(ctx context.Context, before *decided) error {
	old := s.c.Leader(ctx)
	if old == nil {
		return errors.New("nobody leads")
	}
	s.heading("SIGKILL for the leader, %s (pid %d), while the victims are still ending", old.Name, old.PID())
	s.killed = old
	at := time.Now()
	old.Kill()
	var successor *fleet.Process
	err := s.wait(ctx, "a new leader", waitForCluster, func(ctx context.Context) (bool, error) {
		successor = s.c.Leader(ctx)
		return successor != nil, nil
	})
	if err != nil {
		return err
	}
	s.say("%s leads after %.1f s", successor.Name, time.Since(at).Seconds())
	queue, err := s.queue(ctx, successor)
	if err != nil {
		return err
	}
	all, revision, err := list[berthv1.Preemption](ctx, successor, "preemptions")
	if err != nil {
		return err
	}
	s.say("what it knows, at revision %d:", revision)
	s.showQueue(queue)
	s.check(sameQueue(before.queue, queue), "the queue is the same on the new leader: pods, order, attempts, reasons", "it differs")
	if len(all) != 1 {
		s.check(false, "the nomination is the same", fmt.Sprintf("there are %d records of preemptions", len(all)))
		return nil
	}
	s.check(all[0].Status.Node == before.preemption.Status.Node && all[0].Status.Revision == before.preemption.Status.Revision,
		"the nomination is the same: "+urgent+" → "+all[0].Status.Node, "it is now "+all[0].Status.Node)
	s.check(sameVictims(before.preemption.Status.Victims, all[0].Status.Victims),
		"the victims are the same: "+victimNames(all[0].Status.Victims), "they are now "+victimNames(all[0].Status.Victims))
	return nil
}

// sameQueue compares what decides about the future: who waits, since when, why.
func sameQueue(a, b []berthv1.QueueEntry) bool {
	return slices.EqualFunc(a, b, func(x, y berthv1.QueueEntry) bool {
		return x.Name == y.Name && x.Status.PodUID == y.Status.PodUID && x.Status.State == y.Status.State &&
			x.Status.Priority == y.Status.Priority && x.Status.FirstEnqueuedRevision == y.Status.FirstEnqueuedRevision &&
			x.Status.Attempts == y.Status.Attempts && x.Status.NominatedNode == y.Status.NominatedNode && x.Status.Message == y.Status.Message
	})
}

func sameVictims(a, b []berthv1.Victim) bool {
	return slices.EqualFunc(a, b, func(x, y berthv1.Victim) bool { return x.UID == y.UID && x.EvictedAt.Equal(y.EvictedAt) })
}

func victimNames(vs []berthv1.Victim) string {
	names := make([]string, len(vs))
	for i, v := range vs {
		names[i] = v.Name
	}
	return strings.Join(names, ", ")
}

// finish waits for the urgent pod and counts what was lost or done twice.
func (s *story) finish(ctx context.Context, before *decided) error {
	s.heading("The victims finish saving and go, and the urgent pod takes their place")
	var got *corev1.Pod
	err := s.waitForRunning(ctx, "the urgent pod to run", func(ctx context.Context) (bool, error) {
		p, err := s.c.Reader().Kube.CoreV1().Pods(namespace).Get(ctx, urgent, metav1.GetOptions{})
		got = p
		return err == nil && p.Status.Phase == corev1.PodRunning, err
	})
	if err != nil {
		return err
	}
	s.say("%s runs on %s, %.1f s after the decision", got.Name, got.Spec.NodeName, time.Since(before.at).Seconds())
	if err := s.showPods(ctx); err != nil {
		return err
	}
	s.check(got.Spec.NodeName == before.preemption.Status.Node, "the urgent pod runs where it was nominated to", "it runs on "+got.Spec.NodeName)
	return s.audit(ctx, before)
}

func (s *story) audit(ctx context.Context, before *decided) error {
	events, err := s.c.Reader().Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=Preempted"})
	if err != nil {
		return err
	}
	evictions := map[types.UID]int32{}
	for i := range events.Items {
		evictions[events.Items[i].InvolvedObject.UID] += max(1, events.Items[i].Count)
	}
	once := len(evictions) == len(before.preemption.Status.Victims)
	for _, v := range before.preemption.Status.Victims {
		once = once && evictions[v.UID] == 1
	}
	s.check(once, "every victim was evicted exactly once, and nobody else was", fmt.Sprintf("evictions: %v", evictions))
	pods, err := s.pods(ctx)
	if err != nil {
		return err
	}
	kept := 0
	for i := range pods {
		p := &pods[i]
		restarts := int32(0)
		for _, c := range p.Status.ContainerStatuses {
			restarts += c.RestartCount
		}
		if node, was := before.bound[p.UID]; was && p.Spec.NodeName == node && running(p) && restarts == 0 {
			kept++
		}
	}
	s.check(kept == len(before.bound), fmt.Sprintf("the other %d pods kept their nodes and ran on without a restart", len(before.bound)),
		fmt.Sprintf("only %d did", kept))
	return nil
}

// comeBack starts the killed server again and compares all three states.
func (s *story) comeBack(ctx context.Context) error {
	s.heading("%s comes back from its disk and catches up", s.killed.Name)
	back := s.killed
	if err := back.Start(); err != nil {
		return err
	}
	s.killed = nil
	var digests []string
	equal := false
	err := s.wait(ctx, "the servers to agree", waitForCluster, func(ctx context.Context) (bool, error) {
		v, err := s.c.Reader().Verify(ctx)
		if err != nil {
			return false, err
		}
		digests = nil
		answered := true
		for _, one := range v.Servers {
			answered = answered && one.Error == ""
			digests = append(digests, fmt.Sprintf("%s %.16s…  (index %d, revision %d)", one.Name, one.Digest, v.Index, v.Revision))
		}
		equal = v.Equal
		return answered && len(v.Servers) == serverCount, nil
	})
	if err != nil {
		return err
	}
	for _, d := range digests {
		s.say("%s", d)
	}
	s.check(equal, "the states of all three servers are equal, bit for bit", "they differ")
	return nil
}
