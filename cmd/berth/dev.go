package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/cmd/berth/internal/verb"
	"github.com/berth-dev/berth/config"
	"github.com/berth-dev/berth/worker/runtime/cri"
)

const (
	// devStart is how long a development cluster may take to be ready.
	devStart = 60 * time.Second
	// leastNodeMemory is less than any pod needs: who gives less has left out the unit.
	leastNodeMemory = 1 << 20
)

type devFlags struct {
	servers, workers  int
	runtime, cri      string
	cpu, memory       string
	dataDir           string
	kubeconfig        string
	httpPort          int
	verbose, noSwitch bool
	endPods           bool
}

func (a *app) devCommand() *cobra.Command {
	f := devFlags{}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster in this process, to try things out",
		Long: `Run a whole cluster in this process: servers, workers and a certificate authority of its own, on the loopback
interface. It writes a kubeconfig and a context for berth, and goes on until it is interrupted. Without --data-dir
everything is thrown away at the end, pods included. With it pods go on when the cluster ends, and are
found again by the next berth dev with the same directory; --end-pods ends them.

Pods are commands of this machine, and their images are not looked at. With --runtime cri they are containers of images, which a
runtime of this machine pulls and runs (containerd, CRI-O), in networks of their own; that needs root. The cluster itself
is on the loopback interface still, where such pods do not reach it.`,
		Example: `  berth dev
  sudo berth dev --workers 2 --runtime cri
  berth dev --servers 1 --workers 5 --runtime fake --nodes-cpu 16 --nodes-memory 64Gi`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.runtime != "cri" && cmd.Flags().Changed("cri-endpoint") {
				return &verb.UsageError{Message: "--cri-endpoint is for --runtime cri"}
			}
			if f.endPods && f.dataDir == "" {
				return &verb.UsageError{Message: "--end-pods is for --data-dir: without it pods always end"}
			}
			ctx, stop := a.interruptible(cmd.Context())
			defer stop()
			return a.runDev(ctx, f)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&f.servers, "servers", 3, "Servers.")
	fs.IntVar(&f.workers, "workers", 3, "Workers, each a node.")
	fs.StringVar(&f.runtime, "runtime", "process", "What runs the pods: process (commands of this machine), cri (containers) or fake (nothing).")
	fs.StringVar(&f.cri, "cri-endpoint", config.Default().Worker.CRI.Endpoint, "With --runtime cri: the runtime's socket.")
	fs.StringVar(&f.cpu, "nodes-cpu", "", "CPU of each node; empty: this machine's.")
	fs.StringVar(&f.memory, "nodes-memory", "", "Memory of each node; empty: this machine's.")
	fs.StringVar(&f.dataDir, "data-dir", "", "Keep the cluster here and go on with it the next time.")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "A file to put the cluster into, beside what is in it; empty: one in the data directory.")
	fs.IntVar(&f.httpPort, "http-port", 0, "Port of the first server's API; 0: any free one.")
	fs.BoolVar(&f.endPods, "end-pods", false, "With --data-dir: end the pods and what makes them when the cluster ends. Without it they always end.")
	fs.BoolVar(&f.noSwitch, "no-switch", false, "Do not make the cluster's context berth's current one.")
	fs.BoolVar(&f.verbose, "verbose", false, "Show the servers' and workers' logs.")
	return cmd
}

func (f *devFlags) capacity() (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for _, amount := range []struct {
		flag, value string
		name        corev1.ResourceName
	}{{"--nodes-cpu", f.cpu, corev1.ResourceCPU}, {"--nodes-memory", f.memory, corev1.ResourceMemory}} {
		if amount.value == "" {
			continue
		}
		q, err := resource.ParseQuantity(amount.value)
		if err != nil || q.Sign() <= 0 {
			return nil, &verb.UsageError{Message: fmt.Sprintf("%s %q is not an amount, such as 4 or 8Gi", amount.flag, amount.value)}
		}
		if amount.name == corev1.ResourceMemory && q.CmpInt64(leastNodeMemory) < 0 {
			return nil, &verb.UsageError{Message: fmt.Sprintf("%s %q is %d bytes, which no pod fits; write, for example, 8Gi", amount.flag, amount.value, q.Value())}
		}
		out[amount.name] = q
	}
	return out, nil
}

// criPart is as it is for a worker that says nothing of it, but for the endpoint.
func (f *devFlags) criPart() agent.CRIPart {
	c := config.Default().Worker.CRI
	c.Endpoint = f.cri
	return criPart(c)
}

func (a *app) runDev(ctx context.Context, f devFlags) error {
	capacity, err := f.capacity()
	if err != nil {
		return err
	}
	switch {
	case f.servers < 1 || f.workers < 0:
		return &verb.UsageError{Message: "--servers must be at least 1 and --workers at least 0"}
	case f.httpPort < 0 || f.httpPort > 65535:
		return &verb.UsageError{Message: fmt.Sprintf("--http-port %d is no port; it is 0 (any free one) to 65535", f.httpPort)}
	case f.runtime != "process" && f.runtime != "cri" && f.runtime != "fake":
		return &verb.UsageError{Message: fmt.Sprintf("--runtime %q: it is process, cri or fake", f.runtime)}
	}
	if f.runtime == "cri" {
		if _, _, err := cri.Probe(ctx, f.cri); err != nil {
			return fmt.Errorf("--runtime cri: no container runtime answers at --cri-endpoint %s: %w", f.cri, err)
		}
	}
	dir, temporary := f.dataDir, f.dataDir == ""
	if temporary {
		if dir, err = os.MkdirTemp("", "berth-dev-"); err != nil {
			return fmt.Errorf("making a data directory: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }() // temporary files: the system clears what is left
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	client, err := a.newDevClient(dir, f.kubeconfig)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "Starting %d servers and %d workers (runtime %s) ...\n", f.servers, f.workers, f.runtime)
	defer easeCollector(a.getenv)()
	began := time.Now()
	start, cancel := context.WithTimeout(ctx, devStart)
	defer cancel()
	cluster, err := agent.StartDev(start, agent.DevConfig{
		DataDir: dir, Version: version, Servers: f.servers, Workers: f.workers, Runtime: f.runtime, CRI: f.criPart(),
		Capacity: capacity, HTTPPort: f.httpPort, Logger: a.devLog(f.verbose),
	})
	if err != nil {
		return err
	}
	if temporary {
		defer client.forget()
	}
	if err = client.announce(cluster, f, time.Since(began)); err == nil {
		select {
		case err = <-cluster.Fatal(ctx):
			err = fmt.Errorf("the cluster had to end: %w", err)
		case <-ctx.Done():
			fmt.Fprintln(a.out, "\nStopping ...")
		}
	}
	end := temporary || f.endPods
	if !end {
		tellLeft(a.out, cluster.Running(), dir)
	}
	return errors.Join(err, a.stopDev(ctx, cluster, end))
}

// interruptible is a context that a first interrupt ends in good order. A second one is told what that would leave, and the third ends the
// process: who ends it twice, as timeout(1) does, leaves no pods behind that nobody knows.
func (a *app) interruptible(parent context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for range 2 {
			select {
			case <-signals:
			case <-done:
				return
			}
			if ctx.Err() != nil {
				fmt.Fprintln(a.errOut, "Still stopping. Interrupted once more this ends at once, and pods go on running without it.")
			}
			cancel()
		}
		signal.Stop(signals)
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// leftShown is how many of the pods that go on are named.
const leftShown = 10

// tellLeft says what of a cluster that is kept goes on when it ends, and how that is ended.
func tellLeft(out io.Writer, pods []string, dir string) {
	if len(pods) == 0 {
		return
	}
	named := strings.Join(pods[:min(len(pods), leftShown)], ", ")
	if more := len(pods) - leftShown; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	fmt.Fprintf(out, "%d pods go on running: %s.\n", len(pods), named)
	fmt.Fprintf(out, "berth dev --data-dir %s finds them again; with --end-pods it ends them when it is interrupted.\n", dir)
}

func (a *app) stopDev(ctx context.Context, cluster *agent.Dev, endPods bool) error {
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	var err error
	if endPods {
		err = cluster.EndPods(grace)
	}
	return errors.Join(err, cluster.Stop(grace))
}

func (a *app) devLog(verbose bool) hclog.Logger {
	level := hclog.Off
	if verbose {
		level = hclog.Info
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "berth", Level: level, Output: a.errOut})
	logLibraries(log)
	return log
}
