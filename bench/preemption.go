package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

const (
	// preemptionTarget is in decided preemptors a second.
	preemptionTarget = 1_000

	lowClass, highClass       = "bench-low", "bench-high"
	lowPriority, highPriority = 10, 1_000

	// lowPods fill a node but for a little; a preemptor needs the room of
	// victimsEach of them.
	lowPods, victimsEach = 4, 3

	// victimSeconds is how long a victim takes to end, as work does that saves
	// what it has: so decisions are measured, and not 15,000 pods that end at
	// the same moment on the same two processors.
	victimSeconds = "5"

	// victimGrace is how long a victim may take, in seconds. Behind a stub
	// nobody ever ends it: once its time were up, its preemptor's nomination
	// would end too and others be evicted, rightly so, in the midst of what is
	// measured. No measurement takes as long, on however slow a machine.
	victimGrace = 24 * 60 * 60
)

func (c *cluster) createClass(ctx context.Context, name string, value int32) error {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Value: value}
	return c.propose(ctx, []fsm.Command{&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: class}}})
}

// createClasses stores the classes of those who go and of those who come.
func (c *cluster) createClasses(ctx context.Context) error {
	if err := c.createClass(ctx, lowClass, lowPriority); err != nil {
		return err
	}
	return c.createClass(ctx, highClass, highPriority)
}

func lowPod() *corev1.Pod {
	pod := newPod("900m", "500Mi")
	pod.GenerateName, pod.Spec.PriorityClassName = "low-", lowClass
	grace := int64(victimGrace)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	pod.Annotations = map[string]string{fake.Prefix + "term-seconds": victimSeconds}
	return pod
}

func highPod() *corev1.Pod {
	pod := newPod("3", "500Mi")
	pod.GenerateName, pod.Spec.PriorityClassName = "high-", highClass
	return pod
}

// preemption: every node is full, and for every node comes a preemptor.
func preemption(ctx context.Context, r *run) (err error) {
	if r.Pods > r.Nodes {
		return errors.New("the preemptors must not be more than the nodes")
	}
	c, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	if err := c.fill(ctx, r.Nodes*lowPods); err != nil {
		return err
	}
	before := c.servers[0].View().Preemptions.Len()
	m, err := startMeter()
	if err != nil {
		return err
	}
	if err := c.admit(ctx, highPod(), r.Pods); err != nil {
		return err
	}
	admitted := time.Since(m.began)
	if err := c.awaitPreemptions(ctx, before+r.Pods); err != nil {
		return err
	}
	wall, cpu, err := m.stop()
	if err != nil {
		return err
	}
	rate := float64(r.Pods) / wall.Seconds()
	r.target("decided: victims marked, preemptor nominated", rate, "preemptors/s", fmt.Sprintf("≥ %d", preemptionTarget), rate >= preemptionTarget)
	r.figure("admitting them, of that time", admitted.Seconds(), "s")
	r.figure("processor time of that, whole process", millis(cpu)/float64(r.Pods), "ms/preemptor")
	if r.Workers == StubWorkers {
		return c.verifyPreemptions(r.Pods)
	}
	inAll := r.Nodes*lowPods - r.Pods*victimsEach + r.Pods
	if err := c.await(ctx, "the victims to end and every preemptor to be bound", func(v *fsm.View) (bool, int) {
		return v.Queue.Len() == 0 && v.Pods.Len() == inAll, v.Pods.Len() + v.Queue.Len()
	}); err != nil {
		return err
	}
	whole, cpu, err := m.stop()
	if err != nil {
		return err
	}
	r.figure("from the first to all bound", whole.Seconds(), "s")
	r.figure("processor time until then, servers and workers", millis(cpu)/float64(r.Pods), "ms/preemptor")
	if err := c.verifyPreemptions(r.Pods); err != nil {
		return err
	}
	return c.verify(ctx, inAll)
}

// fill fills the nodes with pods of low priority, and lets their workers
// report them as running.
func (c *cluster) fill(ctx context.Context, pods int) error {
	if err := c.createClasses(ctx); err != nil {
		return err
	}
	if err := c.admit(ctx, lowPod(), pods); err != nil {
		return err
	}
	if err := c.awaitBound(ctx, pods); err != nil || c.fleet == nil {
		return err
	}
	return c.await(ctx, "the pods to run", func(v *fsm.View) (bool, int) {
		running := 0
		v.Pods.Scan("", func(_ string, pod *corev1.Pod) bool {
			runs := pod.Status.Phase == corev1.PodRunning
			if runs {
				running++
			}
			return runs // the first that does not ends the scan
		})
		return running == pods, running
	})
}

func (c *cluster) awaitPreemptions(ctx context.Context, n int) error {
	return c.await(ctx, "every preemptor to be decided on", func(v *fsm.View) (bool, int) { return v.Preemptions.Len() >= n, v.Preemptions.Len() })
}

// verifyPreemptions fails unless every preemptor was decided on, with as few
// victims as do, and nobody was evicted twice. Where a node is taken for lost on a
// machine that is too slow a nomination ends, and its preemptor is decided on
// again: then the earlier record says so, and the later one may wait for
// victims of the earlier.
func (c *cluster) verifyPreemptions(preemptors int) error {
	decided := map[types.UID]bool{} // and whether the nomination was not released
	victims := map[types.UID]metav1.MicroTime{}
	var err error
	c.servers[0].View().Preemptions.Scan("", func(key string, p *berthv1.Preemption) bool {
		uid, held := p.Status.Preemptor.UID, p.Status.State != berthv1.PreemptionReleased
		if held && decided[uid] {
			err = fmt.Errorf("preemptor %s holds two nodes", p.Status.Preemptor.Name)
		}
		decided[uid] = decided[uid] || held
		if len(p.Status.Victims) > victimsEach {
			err = fmt.Errorf("preemption %s has %d victims, and %d do", key, len(p.Status.Victims), victimsEach)
		}
		for _, v := range p.Status.Victims {
			if v.EvictedAt == nil {
				err = fmt.Errorf("preemption %s does not say when victim %s was evicted", key, v.Name)
				continue
			}
			if v.WaitedFor {
				continue
			}
			if at, twice := victims[v.UID]; twice {
				err = fmt.Errorf("victim %s was evicted at %s and at %s", v.Name, at, v.EvictedAt)
			}
			victims[v.UID] = *v.EvictedAt
		}
		return err == nil
	})
	if err == nil && len(decided) != preemptors {
		err = fmt.Errorf("%d preemptors were decided on, and not %d", len(decided), preemptors)
	}
	if err != nil {
		return err
	}
	// A victim that is still there is on its way out.
	c.servers[0].View().Pods.Scan("", func(key string, pod *corev1.Pod) bool {
		if _, victim := victims[pod.UID]; victim && !model.Terminating(pod) {
			err = fmt.Errorf("victim %s was not told to end", key)
		}
		return err == nil
	})
	return err
}
