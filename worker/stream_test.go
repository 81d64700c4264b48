package worker

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func codeOf(err error) int {
	var refused *StreamError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return 0
}

// No pod takes all the streams that a node has, and no node more than its share of tunnels.
func TestStreamsAreBounded(t *testing.T) {
	var s streams
	for range maxPodStreams {
		if err := s.enter("a"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.enter("a"); codeOf(err) != http.StatusTooManyRequests {
		t.Errorf("one too many in a pod: %v", err)
	}
	for range maxStreams - maxPodStreams {
		if err := s.enter("b"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.enter("c"); codeOf(err) != http.StatusTooManyRequests {
		t.Errorf("one too many on the node: %v", err)
	}
	s.leave("a")
	if err := s.enter("c"); err != nil {
		t.Errorf("after somebody has left: %v", err)
	}
	for pod, n := range map[types.UID]int{"a": maxPodStreams - 1, "b": maxStreams - maxPodStreams, "c": 1} {
		for range n {
			s.leave(pod)
		}
	}
	if s.all != 0 || len(s.by) != 0 {
		t.Errorf("nobody is in a pod, and %+v are counted", s.by)
	}
}

// Only a container that runs is entered; what is in the way is said in Kubernetes' words.
func TestNotRunning(t *testing.T) {
	status := &corev1.PodStatus{
		ContainerStatuses: []corev1.ContainerStatus{
			{Name: "waits", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}},
		},
		InitContainerStatuses: []corev1.ContainerStatus{
			{Name: "over", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}}},
		},
	}
	for name, want := range map[string]string{
		"waits": `container not found ("waits"): it is waiting to start: ImagePullBackOff`,
		"over":  `container not found ("over"): it has ended with 3: Error`,
		"none":  `container not found ("none") in pod "p"`,
	} {
		pod := &corev1.Pod{}
		pod.Name = "p"
		if err := notRunning(pod, status, name); err.Error() != want || codeOf(err) != http.StatusBadRequest {
			t.Errorf("%s: %q, want %q", name, err, want)
		}
	}
}

// serveOne returns when the client has gone, and what it ran is told so; also where no request ever comes.
func TestServeOneEndsWithItsClient(t *testing.T) {
	for name, request := range map[string]string{"silent": "", "garbled": "\x00\r\n\r\n", "in the middle": "POST /exec HTTP/1.1\r\nHost: x\r\n\r\n"} {
		ours, theirs := net.Pipe()
		begun, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			serveOne(context.Background(), theirs, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				close(begun)
				go func() { _, _ = io.Copy(io.Discard, conn) }()
				<-r.Context().Done()
			}))
		}()
		go func() { _, _ = io.Copy(io.Discard, ours) }()
		if _, err := io.WriteString(ours, request); err != nil {
			t.Fatal(err)
		}
		if name == "in the middle" {
			<-begun
		}
		_ = ours.Close()
		<-ended
	}
}
