package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
)

// metrics are the scheduler's figures, under kube-scheduler's names where it
// has them (PR19).
type metrics struct {
	stepSeconds       prometheus.Histogram
	decisions         *prometheus.CounterVec
	preemptionTries   prometheus.Counter
	preemptionVictims prometheus.Histogram
}

func newMetrics(r prometheus.Registerer, state *fsm.State) *metrics {
	m := &metrics{
		stepSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_scheduler_step_duration_seconds", Help: "Time to make one plan.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14),
		}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_schedule_attempts_total", Help: "Attempts to schedule pods, by result.",
		}, []string{"result"}),
		preemptionTries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_preemption_attempts_total", Help: "Preemptions that were carried out or refused.",
		}),
		preemptionVictims: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "scheduler_preemption_victims", Help: "Victims a preemption.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 7),
		}),
	}
	r.MustRegister(m.stepSeconds, m.decisions, m.preemptionTries, m.preemptionVictims)
	gauge := func(name, help string, read func(v *fsm.View) int) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			return float64(read(state.View()))
		}))
	}
	gauge("berth_pods", "Pods in the state.", func(v *fsm.View) int { return v.Pods.Len() })
	gauge("berth_nodes", "Nodes in the state.", func(v *fsm.View) int { return v.Nodes.Len() })
	gauge("berth_nominations", "Pods that wait for their victims.", func(v *fsm.View) int { return v.Nominations.Len() })
	gauge("berth_revision", "The state's revision.", func(v *fsm.View) int { return int(v.Revision()) })
	for name, read := range map[string]func(q fsm.QueueLengths) int{
		"active":        func(q fsm.QueueLengths) int { return q.Active },
		"backoff":       func(q fsm.QueueLengths) int { return q.Backoff },
		"unschedulable": func(q fsm.QueueLengths) int { return q.Waiting },
		"gated":         func(q fsm.QueueLengths) int { return q.Gated },
	} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "scheduler_pending_pods", Help: "Pods that wait, by state.", ConstLabels: prometheus.Labels{"queue": name},
		}, func() float64 { return float64(read(state.View().QueueLengths())) }))
	}
	return m
}

func (m *metrics) observeStep(p *sched.Plan, took time.Duration) {
	if p != nil {
		m.stepSeconds.Observe(took.Seconds())
	}
}

func (m *metrics) observePlan(c *fsm.ApplyPlan, r *fsm.PlanResult) {
	m.decisions.WithLabelValues("scheduled").Add(float64(len(c.Bindings)))
	m.decisions.WithLabelValues("refused").Add(float64(len(r.Refused)))
	for _, f := range c.Failures {
		result := "unschedulable"
		if f.Error {
			result = "error"
		}
		m.decisions.WithLabelValues(result).Add(float64(len(f.Pods)))
	}
	m.preemptionTries.Add(float64(len(c.Preemptions)))
	for _, p := range c.Preemptions {
		m.preemptionVictims.Observe(float64(len(p.Victims)))
	}
}
