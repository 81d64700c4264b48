package server

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/queue"
	"github.com/berth-dev/berth/sched"
)

// PreemptionSeconds is the name of the histogram of how long decisions on
// preemptions take.
const PreemptionSeconds = "berth_scheduler_preemption_decision_duration_seconds"

// metrics are the scheduler's figures, under kube-scheduler's names where it
// has them (PR19).
type metrics struct {
	stepSeconds       prometheus.Histogram
	preemptionSeconds prometheus.Histogram
	decisions         *prometheus.CounterVec
	preemptionTries   prometheus.Counter
	preemptionVictims prometheus.Histogram
	workerDropped     *prometheus.CounterVec
	differing         prometheus.Gauge
	disagreements     prometheus.Counter
}

func newMetrics(r prometheus.Registerer, state *fsm.State) (*metrics, error) {
	m := &metrics{
		stepSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_scheduler_step_duration_seconds", Help: "Time to make one plan.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14),
		}),
		preemptionSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: PreemptionSeconds, Help: "Time to decide on one preemption; of a step that decided about several pods, the mean.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 1.25, 40),
		}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_schedule_attempts_total", Help: "Attempts to schedule pods, by result.",
		}, []string{"result"}),
		preemptionTries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_preemption_attempts_total", Help: "Preemptions that were decided.",
		}),
		preemptionVictims: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "scheduler_preemption_victims", Help: "Victims of a preemption that was carried out.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 7),
		}),
		workerDropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_worker_reports_refused_total", Help: "What workers said and may not say: of others' pods, too large, or too much.",
		}, []string{"kind"}),
		differing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_state_differing_servers", Help: "Servers whose state differed when this leader last compared them.",
		}),
		disagreements: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_scheduler_disagreements_total", Help: "Decisions that the state machine refused three times or more in a row for the same reason.",
		}),
	}
	all := append([]prometheus.Collector{
		m.stepSeconds, m.preemptionSeconds, m.decisions, m.preemptionTries, m.preemptionVictims, m.workerDropped, m.differing,
		m.disagreements,
	}, stateGauges(state)...)
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// stateGauges read the state when they are asked.
func stateGauges(state *fsm.State) []prometheus.Collector {
	var out []prometheus.Collector
	gauge := func(o prometheus.GaugeOpts, read func(v *fsm.View) int) {
		out = append(out, prometheus.NewGaugeFunc(o, func() float64 { return float64(read(state.View())) }))
	}
	gauge(prometheus.GaugeOpts{Name: "berth_pods", Help: "Pods in the state."}, func(v *fsm.View) int { return v.Pods.Len() })
	gauge(prometheus.GaugeOpts{Name: "berth_nodes", Help: "Nodes in the state."}, func(v *fsm.View) int { return v.Nodes.Len() })
	gauge(prometheus.GaugeOpts{Name: "berth_nominations", Help: "Pods that wait for their victims."}, func(v *fsm.View) int { return v.Nominations.Len() })
	gauge(prometheus.GaugeOpts{Name: "berth_revision", Help: "The state's revision."}, func(v *fsm.View) int { return int(v.Revision()) })
	for name, read := range map[string]func(q queue.Lengths) int{
		"active":        func(q queue.Lengths) int { return q.Active },
		"backoff":       func(q queue.Lengths) int { return q.Backoff },
		"unschedulable": func(q queue.Lengths) int { return q.Waiting },
		"gated":         func(q queue.Lengths) int { return q.Gated },
	} {
		gauge(prometheus.GaugeOpts{
			Name: "scheduler_pending_pods", Help: "Pods that wait, by state.", ConstLabels: prometheus.Labels{"queue": name},
		}, func(v *fsm.View) int { return read(v.QueueLengths()) })
	}
	return out
}

// observeStep notes how long a step took; plan is nil if it came to no decision
// within its bound of work. The scheduler itself knows no clock; a step that
// decided about one pod alone tells how long that took.
func (m *metrics) observeStep(plan *sched.Plan, took time.Duration) {
	m.stepSeconds.Observe(took.Seconds())
	if plan == nil {
		return
	}
	for range plan.Command.Preemptions {
		m.preemptionSeconds.Observe(took.Seconds() / float64(plan.Decisions))
	}
}

// observePlan counts what became of a plan's decisions. One that was refused is
// no success, whatever it was.
func (m *metrics) observePlan(c *fsm.ApplyPlan, r *fsm.PlanResult) {
	refused := map[string]bool{}
	for _, d := range r.Refused {
		refused[d.Key] = true
	}
	m.decisions.WithLabelValues("refused").Add(float64(len(r.Refused)))
	for _, b := range c.Bindings {
		if !refused[b.Key] {
			m.decisions.WithLabelValues("scheduled").Inc()
		}
	}
	for _, f := range c.Failures {
		result := "unschedulable"
		if f.Error || f.SetAside != nil {
			result = "error"
		}
		for _, pod := range f.Pods {
			if !refused[pod.Key] {
				m.decisions.WithLabelValues(result).Inc()
			}
		}
	}
	m.preemptionTries.Add(float64(len(c.Preemptions)))
	for _, n := range r.Evicted {
		m.preemptionVictims.Observe(float64(n))
	}
}

// clockGauges compare this server's clocks when they are asked.
func (s *Server) clockGauges() error {
	for _, g := range []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_clock_offset_seconds", Help: "This server's wall clock less the time of day as a majority of the voters has it; 0 if that is not known.",
		}, func() float64 { return time.Duration(s.clockStatus().OffsetNano).Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_state_time_ahead_seconds", Help: "The state's time less the time of day.",
		}, func() float64 { return time.Duration(s.clockStatus().StateAheadNano).Seconds() }),
	} {
		if err := s.config.Metrics.Register(g); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// doorCounters read the counts of the doors, and of what tells of requests, when they are asked.
func (s *Server) doorCounters() error {
	lost := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "berth_audit_events_lost_total", Help: "Accounts of requests that the audit trail could neither write nor send.",
	}, func() float64 { return float64(s.api.LostAccounts()) })
	if err := s.config.Metrics.Register(lost); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	for door, read := range map[string]func() int64{
		"api": s.api.RefusedHandshakes, "rpc": s.rpc.Gate.Refused, "raft": s.node.RefusedHandshakes, "gossip": s.pool.RefusedStreams,
	} {
		err := s.config.Metrics.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "berth_handshakes_refused_total", ConstLabels: prometheus.Labels{"door": door},
			Help: "Connections that were cut because too many had not yet shown who they are.",
		}, func() float64 { return float64(read()) }))
		if err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}
