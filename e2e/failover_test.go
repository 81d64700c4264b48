package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/api/berthv1"
)

// saving takes its time when it is told to end.
const saving = `trap 'sleep 3; exit 0' TERM; while :; do sleep 0.2 & wait $!; done`

// The leader is killed around every step of a preemption. Whoever leads then
// makes or continues the same one: who must go follows from the state alone.
func TestLeaderKilledDuringPreemption(t *testing.T) {
	c := sharedCluster(t)
	for i, value := range []int32{10, 20, 30, 40, 50, 60, 1000} {
		makeClass(t, c, fmt.Sprintf("step-%d", i), value)
	}
	const (
		uncommitted = "before the pod is committed"
		undecided   = "before the proposal"
		ending      = "while the victims end"
		ended       = "after they have ended"
	)
	for i, moment := range []string{uncommitted, undecided, ending, ended} {
		t.Run(moment, func(t *testing.T) {
			s := &preemption{cluster: c, ns: c.namespace(t, fmt.Sprintf("kill-%d", i))}
			s.fill(t)
			leader := c.waitLeader(t)
			t.Cleanup(func() {
				if !leader.Running() {
					c.restart(t, leader)
				}
			})
			urgent := pod(s.ns, "urgent", "exec sleep 1000", cpu("3"), class("step-6"))
			survivors := c.followers(t)
			if moment == uncommitted {
				s.killUncommitted(t, leader, survivors, urgent)
			} else {
				create(t, survivors[0].Kube, urgent)
			}
			switch moment {
			case ending:
				s.waitDecided(t)
			case ended:
				s.waitGone(t)
			}
			leader.Kill()
			c.waitLeader(t)
			s.check(t)
			c.restart(t, leader)
			c.verify(t, 3)
		})
	}
}

// killUncommitted gives the leader a pod while the others can not answer, and
// kills it. Nobody was told whether there is such a pod: it can have reached one of
// them, or none.
func (s *preemption) killUncommitted(t *testing.T, leader *fleet.Process, survivors []*fleet.Process, p *corev1.Pod) {
	t.Helper()
	for _, f := range survivors {
		f.Signal(syscall.SIGSTOP)
		defer f.Signal(syscall.SIGCONT)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := leader.Kube.CoreV1().Pods(s.ns).Create(ctx, p, metav1.CreateOptions{}); err == nil {
		t.Error("a leader without followers acknowledged a pod")
	}
	leader.Kill()
	for _, f := range survivors {
		f.Signal(syscall.SIGCONT)
	}
	s.waitLeader(t)
	_, err := survivors[0].Kube.CoreV1().Pods(s.ns).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Errorf("create the pod again: %v", err)
	}
}

func makeClass(t *testing.T, c *cluster, name string, value int32) {
	t.Helper()
	pc := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
	_, err := c.Reader().Kube.SchedulingV1().PriorityClasses().Create(t.Context(), pc, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// preemption is one cluster full of pods: worker-1 has those of the lowest
// priorities, so that it is clear who must go.
type preemption struct {
	*cluster
	ns     string
	before map[types.UID]corev1.Pod
}

var wantVictims = []string{"low-0", "low-1"}

func (s *preemption) fill(t *testing.T) {
	t.Helper()
	var names []string
	for i := range 6 {
		name := fmt.Sprintf("low-%d", i)
		names = append(names, name)
		create(t, s.Reader().Kube, pod(s.ns, name, saving, cpu("2"), class(fmt.Sprintf("step-%d", i)), on(fmt.Sprintf("worker-%d", i/2+1))))
	}
	s.before = map[types.UID]corev1.Pod{}
	for _, p := range s.waitRunning(t, s.ns, names...) {
		s.before[p.UID] = *p
	}
}

func (s *preemption) records(ctx context.Context) ([]berthv1.Preemption, error) {
	list, err := s.Reader().Dynamic.Resource(berthv1.GroupVersion.WithResource("preemptions")).Namespace(s.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	raw, err := list.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var out struct{ Items []berthv1.Preemption }
	return out.Items, json.Unmarshal(raw, &out)
}

func (s *preemption) waitDecided(t *testing.T) {
	t.Helper()
	s.eventually(t, "the decision", func(ctx context.Context) error {
		records, err := s.records(ctx)
		if err == nil && len(records) == 0 {
			err = errors.New("nothing is decided")
		}
		return err
	})
}

func (s *preemption) waitGone(t *testing.T) {
	t.Helper()
	// Watched, to be there at the very moment.
	w, err := s.followers(t)[0].Kube.CoreV1().Pods(s.ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	gone := 0
	for e := range w.ResultChan() {
		if e.Type == "DELETED" {
			gone++
		}
		if gone == len(wantVictims) {
			return
		}
	}
	t.Fatal("the watch ended before the victims did")
}

// check waits for the urgent pod, and makes sure that exactly the right ones
// went, once.
func (s *preemption) check(t *testing.T) {
	t.Helper()
	urgent := s.waitRunning(t, s.ns, "urgent")[0]
	if urgent.Spec.NodeName != "worker-1" {
		t.Errorf("the urgent pod runs on %s", urgent.Spec.NodeName)
	}
	records, err := s.records(t.Context())
	if err != nil || len(records) != 1 {
		t.Fatalf("%d preemptions are on record (%v): %+v", len(records), err, records)
	}
	var victims []string
	uids := map[types.UID]int32{}
	for _, v := range records[0].Status.Victims {
		victims = append(victims, v.Name)
		uids[v.UID] = 1
	}
	slices.Sort(victims)
	if !slices.Equal(victims, wantVictims) {
		t.Errorf("the victims are %v, not %v", victims, wantVictims)
	}
	events, err := s.Reader().Kube.CoreV1().Events(s.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Preempted"})
	if err != nil {
		t.Fatal(err)
	}
	evicted := map[types.UID]int32{}
	for _, e := range events.Items {
		evicted[e.InvolvedObject.UID] += max(1, e.Count)
	}
	if !maps.Equal(evicted, uids) {
		t.Errorf("evictions by UID: %v, want %v", evicted, uids)
	}
	after, err := s.Reader().Kube.CoreV1().Pods(s.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for _, p := range after.Items {
		if old, was := s.before[p.UID]; was {
			if p.Spec.NodeName != old.Spec.NodeName || p.DeletionTimestamp != nil || p.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("%s was disturbed: %+v", p.Name, p.Status)
			}
			kept++
		}
	}
	if kept != len(s.before)-len(wantVictims) || len(after.Items) != kept+1 {
		t.Errorf("of %d pods %d are left, and there are %d", len(s.before), kept, len(after.Items))
	}
}
