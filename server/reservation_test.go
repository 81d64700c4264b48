package server

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
)

// stream is two nodes of four cpus under an endless stream of pods of one cpu
// that take whatever comes free, in the seconds of a clock of its own.
type stream struct {
	t     *testing.T
	state *fsm.State
	sched *sched.Scheduler
	now   time.Time
	made  int
}

const streamNodes, streamCPUs, longestSeconds = 2, 4, 13

// seconds is how long a small pod runs: they seldom end together.
func (s *stream) seconds(pod *corev1.Pod) int {
	n, err := strconv.Atoi(strings.TrimPrefix(pod.Name, "small-"))
	if err != nil {
		s.t.Fatal(err)
	}
	return longestSeconds - n*5%9
}

func newStream(t *testing.T, reserve bool) *stream {
	s := &stream{t: t, state: fsm.NewState(), now: time.Unix(1_000_000, 0)}
	after := int32(60)
	config := &berthv1.SchedulerConfiguration{ObjectMeta: metav1.ObjectMeta{Name: berthv1.SchedulerConfigurationName}}
	config.Spec.Reservation = berthv1.ReservationConfiguration{Enabled: &reserve, AfterSeconds: &after}
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	s.must(&fsm.ConfigureScheduler{JSON: raw})
	s.must(&fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "ns"}}}})
	for i := range streamNodes {
		s.must(&fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), UID: types.UID(fmt.Sprintf("node-%d", i))},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				"cpu": *resource.NewQuantity(streamCPUs, resource.DecimalSI), "pods": resource.MustParse("110")}},
		}}})
	}
	s.sched = sched.New(s.state)
	return s
}

func (s *stream) must(commands ...fsm.Command) {
	s.t.Helper()
	for _, c := range commands {
		if r := s.state.Try(s.now.UnixNano(), fsm.Proposal{User: systemUser, Groups: systemGroups, Command: c})[0]; r.Refused() {
			s.t.Fatalf("%T: %s", c, r.Message)
		}
	}
}

func (s *stream) pod(name string, cpus int64) {
	s.must(&fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": *resource.NewQuantity(cpus, resource.DecimalSI)}}}}},
	}}})
}

// second passes: small pods end, others come, and leader's loops look at it.
func (s *stream) second() {
	s.now = s.now.Add(time.Second)
	v := s.state.View()
	v.Pods.Scan("", func(key string, pod *corev1.Pod) bool {
		if c := findScheduled(pod); c != nil && pod.Name != "large" && s.now.Sub(c.LastTransitionTime.Time) >= time.Duration(s.seconds(pod))*time.Second {
			now := int64(0)
			s.must(&fsm.DeletePod{Key: key, GraceSeconds: &now})
		}
		return true
	})
	for waiting := v.Queue.Len(); waiting < 2*streamCPUs; waiting++ {
		s.made++
		s.pod(fmt.Sprintf("small-%d", s.made), 1)
	}
	s.must(controller.Nominations(s.state.View(), s.now.UnixNano())...)
	for p := s.sched.Step(s.now.UnixNano(), 100); p != nil; p = s.sched.Step(s.now.UnixNano(), 100) {
		s.must(p.Command)
		s.sched.Settle(p)
	}
}

func findScheduled(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// boundAfter is how many seconds the large pod waited, or the limit.
func (s *stream) boundAfter(limit int) int {
	for range 3 * longestSeconds {
		s.second()
	}
	s.pod("large", streamCPUs)
	for i := range limit {
		s.second()
		if pod, _ := s.state.View().Pods.Get("default/large"); pod.Spec.NodeName != "" {
			return i + 1
		}
	}
	return limit
}

// TestLargePodUnderAStreamOfSmallOnes: with a reservation after 60 s a pod that
// needs a whole node waits for those on the node at most as long as they run;
// without one it waits for ever.
func TestLargePodUnderAStreamOfSmallOnes(t *testing.T) {
	const limit = 600
	if got := newStream(t, false).boundAfter(limit); got != limit {
		t.Errorf("without reservations the large pod was bound after %d s: the stream is too thin to show anything", got)
	}
	// The reservation comes in the second after the 60th, and its node is empty when the youngest pod there has ended.
	if got, most := newStream(t, true).boundAfter(limit), 60+longestSeconds+5; got > most {
		t.Errorf("the large pod waited for %d s, and %d are enough", got, most)
	}
}
