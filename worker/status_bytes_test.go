package worker

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
)

// TestLastWordsFitIntoAStatus: however much the containers of a pod leave as their last words, now and the time before, and whatever they
// wait for, its status is one that the servers take as it is.
func TestLastWordsFitIntoAStatus(t *testing.T) {
	for _, n := range []int{1, 2, 32, 64, 128} {
		pod := testPod("talks")
		pod.Spec.Containers = nil
		for i := range n {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), Image: "img"})
		}
		core := NewCore(CoreOptions{Node: testNode(t), RuntimeName: "fake"})
		core.Assign(Assignment{Full: true, Revision: 1, Pods: []*corev1.Pod{pod}}, epoch)
		p := core.pods[pod.UID]
		for _, words := range []string{strings.Repeat("x", 4096), strings.Repeat("a\xff", 2048), strings.Repeat("é", 2048)} {
			for i := range p.ctrs {
				c := &p.ctrs[i]
				c.attempt, c.state, c.exit, c.last = 1, ctrEnded, &runtime.Exit{Code: 1, Message: words}, &runtime.Exit{Code: 2, Message: words}
				if i%2 == 1 {
					c.wait, c.waitMessage = "CrashLoopBackOff", strings.Repeat(words, 4)
				}
			}
			s := p.status(epoch)
			size, said := s.Size(), 0
			for i, c := range s.ContainerStatuses {
				for _, state := range []corev1.ContainerState{c.State, c.LastTerminationState} {
					if state.Terminated != nil {
						said += len(state.Terminated.Message)
						if got := state.Terminated.Message; got == "" || len(got) > model.MaxStatusTextBytes || strings.ToValidUTF8(got, "") != got {
							t.Errorf("%d containers: the last word of container %d has %d bytes", n, i, len(got))
						}
					}
				}
			}
			if len(s.ContainerStatuses) != n || size > model.MaxPodStatusBytes || said > 2*model.MaxLastWordsBytes {
				t.Errorf("%d containers: of %d there is a status, in %d bytes, %d of them last words", n, len(s.ContainerStatuses), size, said)
			}
		}
	}
}

// TestAStatusThatIsTooLargeSaysHowThePodIs: what a pod's spec alone makes larger than the servers take is told without that.
func TestAStatusThatIsTooLargeSaysHowThePodIs(t *testing.T) {
	status := func(image string, resources int) corev1.PodStatus {
		s := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
		for i := range 128 {
			c := corev1.ContainerStatus{Name: fmt.Sprint("c", i), Image: image, AllocatedResources: corev1.ResourceList{}}
			for j := range resources {
				c.AllocatedResources[corev1.ResourceName(fmt.Sprintf("example.com/%060d", j))] = resource.MustParse("1")
			}
			s.ContainerStatuses = append(s.ContainerStatuses, c)
		}
		return s
	}
	for _, tt := range []struct {
		s    corev1.PodStatus
		left int
	}{{status("img", 1), 128}, {status("img", 60), 128}, {status(strings.Repeat("x", 4000), 0), 0}} {
		fitStatus(&tt.s)
		if n := tt.s.Size(); n > model.MaxPodStatusBytes || tt.s.Phase != corev1.PodFailed || tt.s.Reason != "Evicted" || len(tt.s.ContainerStatuses) != tt.left {
			t.Errorf("%d bytes, %s, %d containers, want %d", n, tt.s.Phase, len(tt.s.ContainerStatuses), tt.left)
		}
	}
}

// TestListsFitIntoAStatus: of a list that is longer than the servers take as much is told as they do, so that they hold what the node says. What
// the runtime told is left as it is.
func TestListsFitIntoAStatus(t *testing.T) {
	user := &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 7, SupplementalGroups: make([]int64, model.MaxStatusList+1)}}
	s := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{User: user, VolumeMounts: make([]corev1.VolumeMountStatus, model.MaxStatusList+1)}}}
	fitStatus(&s)
	c := &s.ContainerStatuses[0]
	if len(c.VolumeMounts) != model.MaxStatusList || len(c.User.Linux.SupplementalGroups) != model.MaxStatusList || c.User.Linux.UID != 7 {
		t.Errorf("%d mounts, %d groups of %d", len(c.VolumeMounts), len(c.User.Linux.SupplementalGroups), c.User.Linux.UID)
	}
	if len(user.Linux.SupplementalGroups) != model.MaxStatusList+1 {
		t.Error("what is shared was changed")
	}
}
