package worker

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// A machine's clock that was set back holds up neither restarts nor probes until it shows again what it showed.
func TestClockSetBack(t *testing.T) {
	ahead := epoch.Add(time.Hour)
	pod := testPod("p")
	pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{InitialDelaySeconds: 5, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	c := NewCore(CoreOptions{Node: testNode(t), RuntimeName: "fake"})
	main := runtime.Container{ID: runtime.ID{Pod: "p", Container: "main"}, StartedAt: ahead}
	c.Adopt([]runtime.Pod{{Pod: pod, Containers: []runtime.Container{main}}}, epoch)
	c.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
	if at, ok := c.Next(); !ok || at.After(epoch.Add(5*time.Second)) {
		t.Errorf("its probe is due at %v", at)
	}
	now := epoch
	for range 3 { // the first restart does not wait
		main.Exit = &runtime.Exit{Code: 1, StartedAt: ahead, FinishedAt: ahead}
		c.Observe(main, now)
		started := false
		for range 10 {
			for _, a := range c.TakeActions() {
				if a.Kind == ActionStart {
					main = runtime.Container{ID: a.ID, StartedAt: ahead}
					c.Observe(main, now)
					c.Done(Outcome{Action: a}, now)
					started = true
				}
			}
			if started {
				break
			}
			at, ok := c.Next()
			if !ok || at.Sub(now) > 2*backoffInitial {
				t.Fatalf("at %v it is to start again at %v", now, at)
			}
			now = at
			c.Tick(now)
		}
		if !started {
			t.Fatal("it does not start again")
		}
	}
}
