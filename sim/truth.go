package sim

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/worker/runtime"
)

// truth is what has really become of the containers of all nodes, over all lives of
// their workers.
type truth struct {
	mu      sync.Mutex
	started map[runtime.ID]int
	tried   map[types.UID]bool    // pods that a worker has tried to start a container of
	running map[runtime.ID]string // on which node
	exits   map[runtime.ID]int32
	last    map[types.UID]runtime.ID // of a pod's runs the newest that has ended
	asked   map[runtime.ID]time.Time // to end: for the first time
	heard   map[runtime.ID]bool      // that they are to end
}

func newTruth() *truth {
	return &truth{started: map[runtime.ID]int{}, tried: map[types.UID]bool{}, running: map[runtime.ID]string{}, exits: map[runtime.ID]int32{}, last: map[types.UID]runtime.ID{}, asked: map[runtime.ID]time.Time{}, heard: map[runtime.ID]bool{}}
}

// happens takes in what a runtime tells.
func (t *truth) happens(node string, e runtime.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Exit == nil {
		t.running[e.ID] = node
		return
	}
	if t.running[e.ID] == node { // it may run on another one, too, since a snapshot was restored
		delete(t.running, e.ID)
	}
	t.exits[e.ID] = e.Exit.Code
	if before, ok := t.last[e.ID.Pod]; !ok || before.Attempt <= e.ID.Attempt {
		t.last[e.ID.Pod] = e.ID
	}
}

// runs says whether a container of a pod runs on a node.
func (t *truth) runs(pod types.UID, node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, on := range t.running {
		if id.Pod == pod && on == node {
			return true
		}
	}
	return false
}

// tries notes that a worker wants to start a container of a pod.
func (t *truth) tries(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tried[pod] = true
}

func (t *truth) wasTried(pod types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tried[pod]
}

// starts says whether a container was started before.
func (t *truth) starts(id runtime.ID) (again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started[id]++
	return t.started[id] > 1
}

// signals says for how long a container has been asked to end, and whether it has
// ever heard of it: the runtime does not take every call.
func (t *truth) signals(id runtime.ID, taken bool, signal runtime.Signal) (since time.Duration, heard bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if taken && signal == runtime.Terminate {
		t.heard[id] = true
	}
	if _, before := t.asked[id]; !before {
		t.asked[id] = time.Now()
	}
	return time.Since(t.asked[id]), t.heard[id]
}

// told compares what a pod's status says of an end with what has happened. Of a pod that
// was gone and is back nobody knows.
func (t *truth) told(p *corev1.Pod, forgotten bool) (wrong []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, end := range endsIn(p) {
		if forgotten && end.Reason == "ContainerStatusUnknown" {
			continue
		}
		if code, ok := t.exits[id]; ok && code != end.ExitCode {
			wrong = append(wrong, fmt.Sprintf("container %s has ended with code %d, and pod %s says %d (%s)", id, code, p.Name, end.ExitCode, end.Reason))
		} else if !ok {
			wrong = append(wrong, fmt.Sprintf("container %s has not ended, and pod %s says so, with code %d (%s)", id, p.Name, end.ExitCode, end.Reason))
		}
	}
	return wrong
}

// untold is the newest end of a pod's run that its status does not tell.
func (t *truth) untold(p *corev1.Pod) (id runtime.ID, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, ok = t.last[p.UID]
	for told := range endsIn(p) {
		ok = ok && told != id
	}
	return id, ok
}

// endsIn are the ends of a pod's runs that its status tells.
func endsIn(p *corev1.Pod) iter.Seq2[runtime.ID, *corev1.ContainerStateTerminated] {
	return func(yield func(runtime.ID, *corev1.ContainerStateTerminated) bool) {
		for i := range p.Status.ContainerStatuses {
			s := &p.Status.ContainerStatuses[i]
			for _, end := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
				if end == nil {
					continue
				}
				if id, err := idOf(end.ContainerID); err == nil && !yield(id, end) { // else it never ran
					return
				}
			}
		}
	}
}

// idOf is the run that a container id of the API names: what runtime.ID.String has written is behind the runtime's name.
func idOf(containerID string) (runtime.ID, error) {
	_, id, _ := strings.Cut(containerID, "://")
	parts := strings.Split(id, "_")
	if len(parts) != 3 {
		return runtime.ID{}, fmt.Errorf("container id %q names no run", containerID)
	}
	attempt, err := strconv.ParseInt(parts[2], 10, 32)
	return runtime.ID{Pod: types.UID(parts[0]), Container: parts[1], Attempt: int32(attempt)}, err
}

// settled: what runs has its pod, what is said to run does, and what is always started
// again has been.
func (t *truth) settled(v *fsm.View, nowUnixNano int64) (unsettled []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pods := map[types.UID]*corev1.Pod{}
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		pods[p.UID] = p
		for i := range p.Status.ContainerStatuses {
			s := &p.Status.ContainerStatuses[i]
			if end := s.State.Terminated; end != nil && end.ContainerID != "" && p.DeletionTimestamp == nil && p.Spec.RestartPolicy == corev1.RestartPolicyAlways && nowUnixNano > end.FinishedAt.UnixNano()+60e9 {
				unsettled = append(unsettled, fmt.Sprintf("container %s of pod %s has ended at %s, and was not started again", s.Name, p.Name, end.FinishedAt.UTC().Format("15:04:05")))
			}
			if s.State.Running == nil || ended(p) {
				continue
			}
			if id, err := idOf(s.ContainerID); err != nil || t.running[id] != p.Spec.NodeName {
				unsettled = append(unsettled, fmt.Sprintf("pod %s is said to run on %s, and does not", p.Name, p.Spec.NodeName))
			}
		}
		return true
	})
	for id, node := range t.running {
		if p := pods[id.Pod]; p == nil || p.Spec.NodeName != node || ended(p) {
			unsettled = append(unsettled, fmt.Sprintf("container %s runs on %s, and has no pod", id, node))
		}
	}
	slices.Sort(unsettled)
	return unsettled
}
