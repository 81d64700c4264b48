package worker

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// away is a runtime that does not answer until it is back.
type away struct {
	*fake.Runtime
	back  atomic.Bool
	tried atomic.Int32
}

func (a *away) Name() string {
	if a.back.Load() {
		return "found"
	}
	return "unknown"
}

func (a *away) Version() string { return "1" }

func (a *away) Check(context.Context) error {
	if !a.back.Load() {
		return runtime.ErrUnavailable
	}
	return nil
}

func (a *away) Open(notify func(runtime.Event)) ([]runtime.Pod, error) {
	if a.tried.Add(1); !a.back.Load() {
		return nil, fmt.Errorf("opening: %w", runtime.ErrUnavailable)
	}
	return a.Runtime.Open(notify)
}

// A runtime that is away at the start is waited for; what is assigned meanwhile runs when it is back, and the node says
// that it is ready then.
func TestRuntimeComesLate(t *testing.T) {
	s := newServers()
	rt := &away{Runtime: fake.New(runTimeline(t))}
	node := testNode(t)
	node.Status.Conditions = NodeConditions(Pressure{Unready: "the runtime is away"}, nil, epoch)
	pages := corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}
	run(t, Options{Node: node, Uplink: s, Runtime: rt, Observe: nothingShort, Amounts: func() (capacity, allocatable corev1.ResourceList, err error) {
		return pages, pages, rt.Check(t.Context())
	}})
	s.assignments <- Assignment{Full: true, Revision: 1, Pods: []*corev1.Pod{testPod("gone")}}
	s.assignments <- Assignment{Full: true, Revision: 2, Pods: []*corev1.Pod{testPod("kept")}}
	s.assignments <- Assignment{Revision: 3, Pods: []*corev1.Pod{testPod("more")}}
	s.await(t, "it has been tried again", func() bool { return rt.tried.Load() > 1 })
	rt.back.Store(true)
	s.await(t, "the pods run", func() bool {
		return s.pods["kept"].Status.Phase == corev1.PodRunning && s.pods["more"].Status.Phase == corev1.PodRunning
	})
	s.await(t, "the node is ready", func() bool {
		return slices.ContainsFunc(s.nodes, func(n *corev1.NodeStatus) bool {
			return n.NodeInfo.ContainerRuntimeVersion == "found://1" && slices.ContainsFunc(n.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			})
		})
	})
	s.await(t, "the node has what only the runtime could tell", func() bool {
		return slices.ContainsFunc(s.nodes, func(n *corev1.NodeStatus) bool {
			return holdsAmounts(n.Capacity, pages) && holdsAmounts(n.Allocatable, pages) && !n.Capacity.Cpu().IsZero()
		})
	})
	if _, ok := s.pods["gone"]; ok {
		t.Error("a pod was started that a later assignment does not have")
	}
	if id := s.status("kept").ContainerStatuses[0].ContainerID; id != "found://kept_main_0" {
		t.Errorf("container id %s", id)
	}
}

// A runtime that goes away makes its node not ready, though what the machine has cannot be measured without it.
func TestRuntimeGoesAway(t *testing.T) {
	s, clk := newServers(), newStepClock()
	rt := &away{Runtime: fake.New(fake.NewTimeline(clk))}
	rt.back.Store(true)
	var measured atomic.Bool
	run(t, Options{Node: testNode(t), Uplink: s, Runtime: rt, Clock: clk, Observe: func(ctx context.Context) (eviction.Observations, error) {
		measured.Store(true)
		return nil, rt.Check(ctx)
	}})
	s.await(t, "the machine is measured", func() bool {
		clk.Step(time.Second)
		return measured.Load()
	})
	rt.back.Store(false)
	s.await(t, "the node is not ready", func() bool {
		clk.Step(time.Second)
		return slices.ContainsFunc(s.nodes, func(n *corev1.NodeStatus) bool {
			return slices.ContainsFunc(n.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse
			})
		})
	})
}

// The secrets for images are the pod's own, and else those of its service account; one that is not there is told.
func TestPullSecrets(t *testing.T) {
	var told []string
	c := caller{getter: objects{secrets: map[string]map[string][]byte{"s": {}, "own": {}}},
		event: func(_ *corev1.Pod, _, reason, _ string) { told = append(told, reason) }}
	p := testPod("p")
	if got := c.pullSecrets(t.Context(), p); len(got) != 0 {
		t.Errorf("nobody's: %v", got)
	}
	p.Spec.ServiceAccountName = "nobody"
	if got := c.pullSecrets(t.Context(), p); len(got) != 0 || len(told) != 0 {
		t.Errorf("of an account that is not there: %v, told %v", got, told)
	}
	p.Spec.ServiceAccountName = "robot"
	if got := c.pullSecrets(t.Context(), p); len(got) != 1 || len(told) != 1 {
		t.Errorf("of the account: %v, told %v", got, told)
	}
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "own"}}
	if got := c.pullSecrets(t.Context(), p); len(got) != 1 || len(told) != 1 {
		t.Errorf("its own: %v, told %v", got, told)
	}
}

func TestPullPolicy(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"web": corev1.PullAlways, "web:latest": corev1.PullAlways, "web:1": corev1.PullIfNotPresent, "host:5000/web": corev1.PullAlways,
		"host:5000/web:1": corev1.PullIfNotPresent, "web@sha256:ab": corev1.PullIfNotPresent, "web:latest@sha256:ab": corev1.PullIfNotPresent,
	} {
		if got := pullPolicy(image, ""); got != want {
			t.Errorf("%s: %s", image, got)
		}
	}
	if got := pullPolicy("web", corev1.PullNever); got != corev1.PullNever {
		t.Errorf("what is said: %s", got)
	}
}
