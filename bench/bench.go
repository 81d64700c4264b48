package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Workers says who plays the nodes.
type Workers string

const (
	// StubWorkers: the nodes are registered and nobody is behind them. Pods
	// are bound and never reported as running.
	StubWorkers Workers = "stub"
	// FakeWorkers: every node is a real node agent on a stream of its own,
	// whose containers only pretend.
	FakeWorkers Workers = "fake"
)

// Config says what is measured. Zero values mean the workload's own.
type Config struct {
	Nodes, Pods int
	Servers     int // 3
	Clients     int // goroutines that create pods through the API
	Kills       int // how many leaders are killed, one after another, by a workload that does so
	Seconds     int // how long each part of a workload goes on that is measured by time
	Workers     Workers
	// DataDir is where the logs are kept; empty: a directory that is removed
	// at the end. What the disk below it can do is part of every figure.
	DataDir string
	Version string
	// Program is Berth's binary: the workload that kills a server needs
	// processes.
	Program string
	// ControllerManager is kube-controller-manager's binary, which the workload that compares controllers runs, too; "": it
	// runs Berth's alone.
	ControllerManager string
	// Kubernetes is the directory of etcd's, kube-apiserver's, kube-controller-manager's and kube-scheduler's binaries, which
	// the workload that compares control planes runs, too; "": it runs Berth's servers alone.
	Kubernetes string
	Logger     hclog.Logger
	// Progress is told of each part of a workload that has many; nil: nobody is.
	Progress io.Writer
}

// Workload is one thing that is measured.
type Workload struct {
	Name  string
	About string
	// Defaults are used for what Config leaves out.
	Defaults Config
	run      func(ctx context.Context, r *run) error
}

// Workloads lists all of them, in the order in which they are run.
func Workloads() []Workload {
	return []Workload{
		{"http-create", "pods created one by one through the HTTP API, until all are bound", Config{Nodes: 5_000, Pods: 10_000, Clients: 64, Workers: StubWorkers}, httpCreate},
		{"bulk", "pods admitted by few commands of many, until all are bound", Config{Nodes: 5_000, Pods: 30_000, Workers: StubWorkers}, bulk},
		{"preemption", "one preemptor for every full node", Config{Nodes: 5_000, Pods: 5_000, Workers: FakeWorkers}, preemption},
		{"preemption-budgets", "preemptors beside disruption budgets, and one decision at a time", Config{Nodes: 5_000, Pods: 2_500, Workers: StubWorkers}, preemptionBudgets},
		{"spread", "pods spread evenly over zones and nodes", Config{Nodes: 5_000, Pods: 10_000, Workers: StubWorkers}, spread},
		{"anti-affinity", "pods that keep away from each other's nodes", Config{Nodes: 5_000, Pods: 10_000, Workers: StubWorkers}, antiAffinity},
		{"affinity", "pods that stay in each other's zone", Config{Nodes: 5_000, Pods: 10_000, Workers: StubWorkers}, affinity},
		{"unschedulable", "throughput beside pods that wait without a chance", Config{Nodes: 5_000, Pods: 100_000, Workers: StubWorkers}, unschedulable},
		{"starvation", "a pod takes a node from replicas that come back at once, beside pods/s of others", Config{Nodes: 500, Pods: 1_000, Workers: StubWorkers}, starvation},
		{"replicaset", "a ReplicaSet is scaled from nothing", Config{Nodes: 5_000, Pods: 30_000, Workers: StubWorkers}, replicaSet},
		{"deployment", "a Deployment is created, and rolled out anew", Config{Nodes: 500, Pods: 5_000, Workers: FakeWorkers}, deployment},
		{"deployments", "many Deployments of ten, all at once", Config{Nodes: 100, Pods: 2_000, Clients: 32, Workers: FakeWorkers}, deployments},
		{"job", "a Job of pods that end at once", Config{Nodes: 500, Pods: 1_000, Workers: FakeWorkers}, job},
		{"controllers", "a Deployment and its rolling update, a Job, many Deployments; by kube-controller-manager too (--controller-manager)", Config{Nodes: 400, Pods: 30_000, Clients: 32, Workers: FakeWorkers}, controllers},
		{"control-plane", "the same, by Kubernetes' own control plane, too (--kubernetes)", Config{Nodes: 80, Pods: 6_000, Clients: 32, Workers: FakeWorkers}, controlPlane},
		{"restart", "a server starts from a snapshot; memory a bound pod", Config{Nodes: 5_000, Pods: 100_000, Workers: StubWorkers}, restart},
		{"failover", "SIGKILL of the leader under load", Config{Nodes: 500, Pods: 4_000, Clients: 32, Workers: FakeWorkers}, failover},
		{"takeover", "SIGKILL of the leader of many workloads: how soon its successor's controllers work", Config{Nodes: 1_000, Pods: 100_000, Clients: 32, Kills: 5, Workers: FakeWorkers}, takeOver},
		{"storm", "a user's requests at a steady rate, beside nobody and beside another user's storm", Config{Nodes: 100, Pods: 10_000, Clients: 120, Seconds: 20, Workers: FakeWorkers}, storm},
	}
}

// run is one workload being measured.
type run struct {
	Config
	report *Report
}

func (r *run) figure(name string, value float64, unit string) {
	r.report.Figures = append(r.report.Figures, Figure{Name: name, Value: value, Unit: unit})
}

// target is a figure that has to reach a value, or to stay below it.
func (r *run) target(name string, value float64, unit, target string, met bool) {
	r.report.Figures = append(r.report.Figures, Figure{Name: name, Value: value, Unit: unit, Target: target, Met: &met})
}

// progress tells whoever waits of a part that is done.
func (r *run) progress(format string, args ...any) {
	if r.Progress != nil {
		fmt.Fprintf(r.Progress, format+"\n", args...)
	}
}

// throughput tells how many of its pods a second a workload has bound since
// the meter was started, and what that cost.
func (r *run) throughput(m meter, name string, target float64) error {
	wall, cpu, err := m.stop()
	if err != nil {
		return err
	}
	rate := float64(r.Pods) / wall.Seconds()
	r.target(name, rate, "pods/s", fmt.Sprintf("≥ %.0f", target), rate >= target)
	r.figure("processor time, all servers", millis(cpu)/float64(r.Pods), "ms/pod")
	return nil
}

// Run measures one workload. The report is returned with an error too, as far
// as it came.
func Run(ctx context.Context, w Workload, c Config) (*Report, error) {
	c = merge(c, w.Defaults)
	if c.Servers < 1 || c.Nodes < 1 || c.Pods < 1 || c.Kills < 1 {
		return nil, errors.New("a workload needs a server, a node, a pod and a kill at least")
	}
	r := &run{Config: c, report: newReport(w.Name, c)}
	root := c.DataDir
	if root == "" {
		root = os.TempDir()
	}
	dir, err := os.MkdirTemp(root, "berth-bench-")
	if err != nil {
		return nil, fmt.Errorf("a directory for the servers' data: %w", err)
	}
	if r.DataDir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	began := time.Now()
	err = w.run(ctx, r)
	r.report.Seconds = time.Since(began).Seconds()
	r.report.Verified = err == nil
	if removeErr := os.RemoveAll(dir); err == nil {
		err = removeErr
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", w.Name, err)
	}
	return r.report, err
}

func merge(c, defaults Config) Config {
	def := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&c.Nodes, defaults.Nodes)
	def(&c.Pods, defaults.Pods)
	def(&c.Servers, 3)
	def(&c.Kills, defaults.Kills)
	def(&c.Kills, 1)
	def(&c.Clients, defaults.Clients)
	def(&c.Seconds, defaults.Seconds)
	if c.Workers == "" {
		c.Workers = defaults.Workers
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}
