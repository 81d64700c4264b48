package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/codec"
)

var heardAt = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func heardPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", CreationTimestamp: metav1.NewTime(heardAt.Add(-time.Hour))},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}, InitContainers: []corev1.Container{{Name: "init"}}},
	}
}

// TestHonestStatus: what a worker can honestly say is taken as it is.
func TestHonestStatus(t *testing.T) {
	at := metav1.NewTime(heardAt)
	s := &corev1.PodStatus{
		Phase: corev1.PodFailed, StartTime: &at, Message: strings.Repeat("m", 4096), HostIP: "10.0.0.1",
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: at},
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
		InitContainerStatuses: []corev1.ContainerStatus{{Name: "init", RestartCount: 7}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Message: strings.Repeat("x", 4096), FinishedAt: at}}}},
	}
	want := s.DeepCopy()
	h := heard{now: heardAt}
	if err := h.podStatus(heardPod(), s); err != nil || h.String() != "" || !equality.Semantic.DeepEqual(s, want) {
		t.Errorf("%v, %q: %v", err, h.String(), s)
	}
}

// TestHonestStatusCostsLittle: of a status of which nothing is told no texts are made, and a field costs one small allocation at most.
func TestHonestStatusCostsLittle(t *testing.T) {
	at := metav1.NewTime(heardAt)
	s := &corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &at, HostIP: "10.0.0.1"}
	for i := range 100 {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: fmt.Sprint(i), State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: at}}})
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: corev1.PodReady, LastTransitionTime: at})
	}
	h := heard{now: heardAt}
	if n := testing.AllocsPerRun(10, func() { h.status(s) }); n > 4000 { // of 2,900 fields
		t.Errorf("%.0f allocations", n)
	}
}

// TestLyingStatus: what a status cannot be is left out, and told.
func TestLyingStatus(t *testing.T) {
	late := metav1.NewTime(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
	for name, tt := range map[string]struct {
		change func(s *corev1.PodStatus)
		told   string
		check  func(s *corev1.PodStatus) bool
	}{
		"a start in the year 9999": {func(s *corev1.PodStatus) { s.StartTime = &late }, "StartTime: 9999",
			func(s *corev1.PodStatus) bool { return s.StartTime.Time.Equal(heardAt) }},
		"a gigantic text": {func(s *corev1.PodStatus) { s.Message = strings.Repeat("x", 1<<20) }, "Message: the rest",
			func(s *corev1.PodStatus) bool { return len(s.Message) == maxSaidText }},
		"no UTF-8": {func(s *corev1.PodStatus) { s.Reason = "\xff" }, "Reason", func(s *corev1.PodStatus) bool { return s.Reason == "�" }},
		"a condition of others": {func(s *corev1.PodStatus) {
			s.Conditions = []corev1.PodCondition{{Type: "example.com/gate", Status: "True"}, {Type: "Ready", Status: "True"}, {Type: "Ready", Status: "NaN"}}
		}, "example.com/gate", func(s *corev1.PodStatus) bool { return len(s.Conditions) == 1 }},
		"a container of others": {func(s *corev1.PodStatus) {
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}, {Name: "other"}, {Name: "main"}}
		}, "other", func(s *corev1.PodStatus) bool { return len(s.ContainerStatuses) == 1 }},
		"fewer than no restarts": {func(s *corev1.PodStatus) {
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", RestartCount: -5}}
		}, "-5 restarts", func(s *corev1.PodStatus) bool { return s.ContainerStatuses[0].RestartCount == 0 }},
		"resources that it does not ask for": {func(s *corev1.PodStatus) {
			all := func() corev1.ResourceList {
				return corev1.ResourceList{"cpu": resource.MustParse("1"), "example.com/gpu": resource.MustParse("1")}
			}
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", AllocatedResources: all(), Resources: &corev1.ResourceRequirements{Requests: all(), Limits: all()}}}
		}, "example.com/gpu", func(s *corev1.PodStatus) bool {
			c := &s.ContainerStatuses[0]
			return len(c.AllocatedResources) == 1 && len(c.Resources.Requests) == 1 && len(c.Resources.Limits) == 1
		}},
		"a thousand addresses": {func(s *corev1.PodStatus) { s.PodIPs = make([]corev1.PodIP, 1000) }, "PodIPs: all but",
			func(s *corev1.PodStatus) bool { return len(s.PodIPs) == maxSaidList }},
		"a thousand resources": {func(s *corev1.PodStatus) {
			list := corev1.ResourceList{}
			for i := range 1000 {
				list[corev1.ResourceName(fmt.Sprint(i))] = resource.MustParse("1")
			}
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", AllocatedResources: list}}
		}, "1000 keys", func(s *corev1.PodStatus) bool { return s.ContainerStatuses[0].AllocatedResources == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := &corev1.PodStatus{Phase: corev1.PodRunning}
			tt.change(s)
			h := heard{now: heardAt}
			if err := h.podStatus(heardPod(), s); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(h.String(), tt.told) || !tt.check(s) {
				t.Errorf("told %q, want %q; took %v", h.String(), tt.told, s)
			}
		})
	}
	h := heard{now: heardAt}
	if err := h.podStatus(nil, &corev1.PodStatus{Phase: "Backwards"}); err == nil {
		t.Error("a phase that there is not is taken")
	}
}

func TestLyingNodeStatus(t *testing.T) {
	s := &corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"}, {Type: "Ready", Status: "maybe"}, {Status: "True"}}}
	for range 1000 {
		s.VolumesAttached = append(s.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(strings.Repeat("v", 1<<16))})
	}
	h := heard{now: heardAt}
	h.nodeStatus(s)
	if len(s.Conditions) != 1 || len(s.VolumesAttached) != maxSaidList || len(s.VolumesAttached[0].Name) != maxSaidText {
		t.Errorf("%d conditions, %d volumes", len(s.Conditions), len(s.VolumesAttached))
	}
	if !strings.Contains(h.String(), "all but 128 of 1000") {
		t.Error(h.String())
	}
}

// FuzzSaidStatus: whatever a worker says of a pod or of its node is taken, or
// not, without a panic, and what was taken is taken again as it is.
func FuzzSaidStatus(f *testing.F) {
	for _, s := range []*corev1.PodStatus{{}, {Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", RestartCount: -1}}}} {
		b, err := s.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	n := &corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resource.MustParse("4")}, Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"}}}
	b, err := n.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		p, n := new(corev1.PodStatus), new(corev1.NodeStatus)
		if codec.UnmarshalForeign(b, p) == nil {
			h, again := heard{now: heardAt}, heard{now: heardAt}
			if h.podStatus(heardPod(), p) == nil {
				if err := again.podStatus(heardPod(), p); err != nil || again.String() != "" {
					t.Errorf("taken, and not taken again: %q, %v: %v", again.String(), err, p)
				}
			}
		}
		if codec.UnmarshalForeign(b, n) == nil {
			h, again := heard{now: heardAt}, heard{now: heardAt}
			h.nodeStatus(n)
			if again.nodeStatus(n); again.String() != "" {
				t.Errorf("taken, and not taken again: %q: %v", again.String(), n)
			}
		}
	})
}
