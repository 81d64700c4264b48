package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/server"
)

const (
	// decisionTarget bounds one decision on a preemption, all but one in a
	// hundred.
	decisionTarget = 20 * time.Millisecond
	// singles are preemptors that come one at a time, so that each is one step
	// of the scheduler.
	singles = 300
	// guarded is the app of which no pod may go; of each other one three
	// quarters may.
	guarded = 0
)

// preemptionBudgets: every node is full with a pod of each of four apps, each
// app has a disruption budget, and one of them allows nothing. The preemptors,
// one for every second node, can do without violating any.
func preemptionBudgets(ctx context.Context, r *run) (err error) {
	one := min(singles, r.Nodes/4)
	if r.Pods+one > r.Nodes*3/4 { // of each app so many may go
		return errors.New("the preemptors, with those that come one at a time, must not be more than three quarters of the nodes")
	}
	c, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	if err := r.fillApps(ctx, c); err != nil {
		return err
	}
	m, err := startMeter()
	if err != nil {
		return err
	}
	if err := c.admit(ctx, highPod(), r.Pods); err != nil {
		return err
	}
	if err := c.awaitPreemptions(ctx, r.Pods); err != nil {
		return err
	}
	wall, cpu, err := m.stop()
	if err != nil {
		return err
	}
	rate := float64(r.Pods) / wall.Seconds()
	r.target("decided: victims marked, preemptor nominated", rate, "preemptors/s", fmt.Sprintf("≥ %d", preemptionTarget), rate >= preemptionTarget)
	r.figure("processor time of that, all servers", millis(cpu)/float64(r.Pods), "ms/preemptor")

	before, err := c.decisionTimes()
	if err != nil {
		return err
	}
	for i := range one {
		if err := c.admit(ctx, highPod(), 1); err != nil {
			return err
		}
		if err := c.awaitPreemptions(ctx, r.Pods+i+1); err != nil {
			return err
		}
	}
	after, err := c.decisionTimes()
	if err != nil {
		return err
	}
	took := after.since(before)
	if took.count() != uint64(one) {
		return fmt.Errorf("the leader counts %d decisions, and not %d: the leadership changed, or decisions were made again", took.count(), one)
	}
	p99 := took.quantile(0.99)
	r.target("one decision, 99th percentile", 1000*p99, "ms", fmt.Sprintf("< %d", decisionTarget.Milliseconds()), p99 < decisionTarget.Seconds())
	r.figure("one decision, median", 1000*took.quantile(0.5), "ms")
	return errors.Join(c.verifyPreemptions(r.Pods+one), verifyBudgets(c.servers[0].View()))
}

// fillApps fills the nodes with a pod of each app, all of which are ready, and
// gives the apps their budgets.
func (r *run) fillApps(ctx context.Context, c *cluster) error {
	if err := c.createClasses(ctx); err != nil {
		return err
	}
	var budgets []fsm.Command
	for i := range lowPods {
		app := map[string]string{appLabel: "app-" + strconv.Itoa(i)}
		pod := lowPod()
		pod.Labels = app
		antiAffinityRule(pod, &metav1.LabelSelector{MatchLabels: app}) // one on each node
		if err := c.admit(ctx, pod, r.Nodes); err != nil {
			return err
		}
		least := intstr.FromInt(leastOf(i, r.Nodes))
		budgets = append(budgets, &fsm.PutDisruptionBudget{Create: true, Budget: fsm.BudgetWire{Object: &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: app[appLabel], UID: types.UID(app[appLabel])},
			Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: app}},
		}}})
	}
	if err := c.propose(ctx, budgets); err != nil {
		return err
	}
	if err := c.awaitBound(ctx, r.Nodes*lowPods); err != nil {
		return err
	}
	if r.Workers == StubWorkers {
		if err := c.reportReady(ctx); err != nil {
			return err
		}
	}
	return c.await(ctx, "the pods to be ready", func(v *fsm.View) (bool, int) {
		ready := 0
		v.Pods.Scan("", func(_ string, pod *corev1.Pod) bool {
			if model.Ready(pod) {
				ready++
			}
			return true
		})
		return ready == r.Nodes*lowPods, ready
	})
}

// leastOf is how many pods the budget of an app demands.
func leastOf(app, nodes int) int {
	if app == guarded {
		return nodes
	}
	return nodes - nodes*3/4
}

// reportReady says of every bound pod, in the name of its node, that it is
// ready.
func (c *cluster) reportReady(ctx context.Context) error {
	var commands []fsm.Command
	v := c.servers[0].View()
	v.NodesWithPods(func(node string) bool {
		report := &fsm.ReportPods{Node: node}
		v.PodsOnNode(node, func(pod *corev1.Pod) bool {
			report.Reports = append(report.Reports, fsm.PodReport{
				Key: fsm.PodKey(pod.Namespace, pod.Name), UID: string(pod.UID), Status: fsm.PodStatusWire{Object: readyStatus()},
			})
			return true
		})
		commands = append(commands, report)
		return true
	})
	return c.propose(ctx, commands)
}

func readyStatus() *corev1.PodStatus {
	now := metav1.Now()
	return &corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now,
		Conditions: []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
		},
	}
}

// verifyBudgets fails if a pod of the app was evicted whose budget allows
// nothing, or more of another than its budget allows (PD13: nobody had to).
func verifyBudgets(v *fsm.View) error {
	all, left := map[string]int{}, map[string]int{}
	v.Pods.Scan("", func(_ string, pod *corev1.Pod) bool {
		if pod.Spec.PriorityClassName == lowClass {
			all[pod.Labels[appLabel]]++
			if pod.DeletionTimestamp == nil {
				left[pod.Labels[appLabel]]++
			}
		}
		return true
	})
	var errs []error
	for i := range lowPods {
		app, least := "app-"+strconv.Itoa(i), leastOf(i, v.Nodes.Len())
		if left[app] < least {
			errs = append(errs, fmt.Errorf("%s has %d pods left (of %d that are still there), and its budget demands %d", app, left[app], all[app], least))
		}
	}
	return errors.Join(errs...)
}

// decisionTimes is the histogram of the leader's decisions on preemptions.
func (c *cluster) decisionTimes() (histogram, error) {
	for _, s := range c.servers {
		if !s.IsLeader() {
			continue
		}
		families, err := s.Metrics().Gather()
		if err != nil {
			return nil, fmt.Errorf("read the leader's metrics: %w", err)
		}
		for _, f := range families {
			if f.GetName() != server.PreemptionSeconds {
				continue
			}
			var h histogram
			for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
				h = append(h, bucket{b.GetUpperBound(), b.GetCumulativeCount()})
			}
			return append(h, bucket{h[len(h)-1].below, f.GetMetric()[0].GetHistogram().GetSampleCount()}), nil
		}
	}
	return nil, errors.New("no server leads, or its metrics do not tell of decisions")
}

// histogram counts how many values were below each bound; the last bucket
// counts all.
type histogram []bucket

type bucket struct {
	below float64
	count uint64
}

func (h histogram) since(before histogram) histogram {
	out := append(histogram{}, h...)
	for i := range out {
		out[i].count -= before[i].count
	}
	return out
}

func (h histogram) count() uint64 { return h[len(h)-1].count }

// quantile is a bound that this part of the values is below.
func (h histogram) quantile(q float64) float64 {
	for _, b := range h {
		if float64(b.count) >= q*float64(h.count()) {
			return b.below
		}
	}
	return h[len(h)-1].below
}
