package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
)

// bulkTarget is in pods a second.
const bulkTarget = 10_000

// bulk: few commands admit many pods each.
func bulk(ctx context.Context, r *run) (err error) {
	c, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	m, err := startMeter()
	if err != nil {
		return err
	}
	if _, err := c.bindBulk(ctx, "bulk-", r.Pods, r.Pods); err != nil {
		return err
	}
	if err := r.throughput(m, "admitted and bound", bulkTarget); err != nil {
		return err
	}
	return c.verify(ctx, r.Pods)
}

// bindBulk admits pods and returns how long it took until so many in all were
// bound on every server.
func (c *cluster) bindBulk(ctx context.Context, prefix string, pods, inAll int) (time.Duration, error) {
	template := newPod("100m", "500Mi")
	template.GenerateName = prefix
	began := time.Now()
	if err := c.admit(ctx, template, pods); err != nil {
		return 0, err
	}
	err := c.awaitBound(ctx, inAll)
	return time.Since(began), err
}

// unschedulableLoss is the most of its throughput that the scheduler may lose
// to pods that wait in vain.
const unschedulableLoss = 0.10

const (
	// unschedulableShapes is how many different things the waiting pods ask for.
	unschedulableShapes = 100
	// measuredPods are bound in each of the rounds with and without them.
	measuredPods   = 10_000
	measuredRounds = 3
)

// round is what binding pods in bulk was like.
type round struct {
	rate float64 // pods a second
	cpu  float64 // milliseconds a pod
}

// unschedulable: the throughput without waiting pods, beside them, and without
// them again, in one run, so that the machine's mood cancels out.
func unschedulable(ctx context.Context, r *run) (err error) {
	c, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	measured := min(measuredPods, r.Nodes*3) // all rounds together fill three quarters of the nodes
	inAll := 0
	measure := func() (round, error) {
		m, err := startMeter()
		if err != nil {
			return round{}, err
		}
		var sum time.Duration
		for range measuredRounds {
			inAll += measured
			took, err := c.bindBulk(ctx, "other-", measured, inAll)
			if err != nil {
				return round{}, err
			}
			sum += took
		}
		_, cpu, err := m.stop()
		pods := float64(measuredRounds * measured)
		return round{rate: pods / sum.Seconds(), cpu: millis(cpu) / pods}, err
	}
	if _, err := c.bindBulk(ctx, "warm-", measured, measured); err != nil {
		return err
	}
	inAll = measured
	before, err := measure()
	if err != nil {
		return err
	}
	parked, err := r.park(ctx, c)
	if err != nil {
		return err
	}
	beside, err := measure()
	if err != nil {
		return err
	}
	if err := c.await(ctx, "the waiting pods to be left alone", func(v *fsm.View) (bool, int) {
		n := v.QueueLengths().Waiting
		return n == r.Pods, n
	}); err != nil {
		return err
	}
	if err := r.unpark(ctx, c); err != nil {
		return err
	}
	after, err := measure()
	if err != nil {
		return err
	}
	loss := 1 - beside.rate/((before.rate+after.rate)/2)
	r.target("throughput lost beside them", 100*loss, "%", fmt.Sprintf("< %.0f", 100*unschedulableLoss), loss < unschedulableLoss)
	// On a machine that does other things too, this says more.
	r.figure("more processor time a pod beside them", 100*(beside.cpu/((before.cpu+after.cpu)/2)-1), "%")
	for _, m := range []struct {
		when string
		round
	}{{"without waiting pods, before", before}, {fmt.Sprintf("beside %d waiting pods", r.Pods), beside}, {"without waiting pods, after", after}} {
		r.figure(m.when, m.rate, "pods/s")
		r.figure(m.when+", processor time", m.cpu, "ms/pod")
	}
	r.figure("found to be unschedulable", float64(r.Pods)/parked.Seconds(), "pods/s")
	return c.verify(ctx, inAll)
}

// park lets pods wait that no node can ever take: of many shapes, and half of
// them of a higher priority than everybody else.
func (r *run) park(ctx context.Context, c *cluster) (time.Duration, error) {
	if err := c.createClass(ctx, highClass, highPriority); err != nil {
		return 0, err
	}
	began := time.Now()
	for i := range unschedulableShapes {
		template := newPod(fmt.Sprintf("%dm", 64_000+i), "500Mi")
		template.GenerateName = "waiting-"
		if i%2 == 0 {
			template.Spec.PriorityClassName = highClass
		}
		count := share(r.Pods, unschedulableShapes, i)
		if count == 0 {
			continue
		}
		if err := c.admit(ctx, template, count); err != nil {
			return 0, err
		}
	}
	err := c.await(ctx, "the pods to be found unschedulable", func(v *fsm.View) (bool, int) {
		n := v.QueueLengths().Waiting
		return n == r.Pods, n
	})
	return time.Since(began), err
}

func (r *run) unpark(ctx context.Context, c *cluster) error {
	var commands []fsm.Command
	zero := int64(0)
	c.servers[0].View().Pods.Scan("", func(key string, pod *corev1.Pod) bool {
		if pod.Spec.NodeName == "" {
			commands = append(commands, &fsm.DeletePod{Key: key, GraceSeconds: &zero})
		}
		return true
	})
	if err := c.propose(ctx, commands); err != nil {
		return err
	}
	return c.await(ctx, "the queue to be empty", func(v *fsm.View) (bool, int) { return v.Queue.Len() == 0, v.Queue.Len() })
}
