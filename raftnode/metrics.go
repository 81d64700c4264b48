package raftnode

import (
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what an operator watches of the log.
type metrics struct {
	entries, entryBytes, commands, refusedBusy prometheus.Counter
	elections, snapshots, snapshotFailures     prometheus.Counter
	failedApplies                              *prometheus.CounterVec
	commandsPerEntry                           prometheus.Histogram
	proposeSeconds, writeSeconds, applySeconds prometheus.Histogram
	queueCommands, queueBytes                  prometheus.Gauge
	leader                                     prometheus.Gauge
	snapshotSeconds, restoreSeconds            prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "berth", Subsystem: "raft", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "berth", Subsystem: "raft", Name: name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "berth", Subsystem: "raft", Name: name, Help: help, Buckets: buckets})
	}
	latency := prometheus.ExponentialBuckets(0.0001, 2, 16)
	m := &metrics{
		entries:          counter("entries_written_total", "Log entries written to this server's disk."),
		entryBytes:       counter("entry_bytes_written_total", "Bytes of the log entries written to this server's disk."),
		commands:         counter("commands_applied_total", "Commands applied to the state."),
		refusedBusy:      counter("proposals_refused_total", "Proposals refused because too many were waiting."),
		elections:        counter("leaderships_total", "Times that this server became leader."),
		snapshots:        counter("snapshots_total", "Snapshots written."),
		snapshotFailures: counter("snapshot_failures_total", "Snapshots that could not be written."),
		failedApplies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "berth", Name: "apply_failures_total",
			Help: "Commands, or parts of them, that made the state machine panic: they were undone and refused, on every server.",
		}, []string{"command"}),
		commandsPerEntry: histogram("commands_per_entry", "Commands in an entry that this server proposed.", prometheus.ExponentialBuckets(1, 2, 13)),
		proposeSeconds:   histogram("propose_seconds", "From making an entry until it is applied on the leader.", latency),
		writeSeconds:     histogram("write_seconds", "Writing entries to this server's disk.", latency),
		applySeconds:     histogram("apply_seconds", "Applying one entry to the state.", latency),
		queueCommands:    gauge("queue_commands", "Commands that wait or are on their way."),
		queueBytes:       gauge("queue_bytes", "Bytes of the commands that wait or are on their way."),
		leader:           gauge("leader", "1 while this server leads and is ready."),
		snapshotSeconds:  gauge("snapshot_seconds", "How long the last snapshot took."),
		restoreSeconds:   gauge("restore_seconds", "How long the last restore took."),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.entries, m.entryBytes, m.commands, m.refusedBusy, m.elections, m.snapshots, m.snapshotFailures, m.failedApplies,
		m.commandsPerEntry, m.proposeSeconds, m.writeSeconds, m.applySeconds,
		m.queueCommands, m.queueBytes, m.leader, m.snapshotSeconds, m.restoreSeconds,
	} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) wrote(logs []*raft.Log, took time.Duration) {
	m.entries.Add(float64(len(logs)))
	m.entryBytes.Add(float64(sizeOf(logs)))
	m.writeSeconds.Observe(took.Seconds())
}

func sizeOf(logs []*raft.Log) (n int64) {
	for _, l := range logs {
		n += int64(len(l.Data))
	}
	return n
}

func (m *metrics) applied(commands int, took time.Duration) {
	m.commands.Add(float64(commands))
	m.applySeconds.Observe(took.Seconds())
}

func (m *metrics) snapshotted(took time.Duration) {
	m.snapshots.Inc()
	m.snapshotSeconds.Set(took.Seconds())
}

func (m *metrics) snapshotFailed() { m.snapshotFailures.Inc() }

func (m *metrics) restored(took time.Duration) { m.restoreSeconds.Set(took.Seconds()) }

func (m *metrics) queue(commands, bytes int) {
	m.queueCommands.Set(float64(commands))
	m.queueBytes.Set(float64(bytes))
}

func (m *metrics) leading(yes bool) {
	if yes {
		m.elections.Inc()
		m.leader.Set(1)
		return
	}
	m.leader.Set(0)
}
