package worker

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

func TestWhoseLogsThereAre(t *testing.T) {
	ended := func(id, reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: id, Reason: reason, Message: message}}
	}
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	unstarted := ended("c1", runtime.ReasonStartError, "the container has no command")
	for name, tt := range map[string]struct {
		status   corev1.ContainerStatus
		previous bool
		id, why  string
	}{
		"runs":                {status: corev1.ContainerStatus{ContainerID: "c2", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: unstarted}, id: "c2"},
		"ended":               {status: corev1.ContainerStatus{State: ended("c1", "Error", "")}, id: "c1"},
		"waits after its end": {status: corev1.ContainerStatus{State: waiting("CrashLoopBackOff", "back-off"), LastTerminationState: ended("c1", "Error", "")}, id: "c1"},
		"never started":       {status: corev1.ContainerStatus{State: waiting("CrashLoopBackOff", "back-off"), LastTerminationState: unstarted}, why: `container "web" in pod "p" could not be started: the container has no command`},
		"the one before never started": {
			status: corev1.ContainerStatus{ContainerID: "c2", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: unstarted}, previous: true,
			why: `container "web" in pod "p" could not be started: the container has no command`,
		},
		"waits for what it needs": {status: corev1.ContainerStatus{State: waiting("CreateContainerConfigError", "configmap x not found")}, why: `container "web" in pod "p" is waiting to start: CreateContainerConfigError: configmap x not found`},
		"is made":                 {status: corev1.ContainerStatus{State: waiting("ContainerCreating", "")}, why: `container "web" in pod "p" is waiting to start: ContainerCreating`},
	} {
		tt.status.Name = "web"
		id, err := logSource("p", &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{tt.status}}, "web", tt.previous)
		why := ""
		if err != nil {
			why = err.Error()
		}
		if id != tt.id || why != tt.why {
			t.Errorf("%s: got %q and %q, want %q and %q", name, id, why, tt.id, tt.why)
		}
	}
}
