package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/bench"
	"github.com/berth-dev/berth/cmd/berth/internal/verb"
)

type benchFlags struct {
	workload               string
	config                 bench.Config
	workers                string
	json, verbose          bool
	against                string
	pairs                  int
	cpuProfile, memProfile string
}

func (a *app) benchCommand() *cobra.Command {
	f := benchFlags{}
	var about strings.Builder
	names := []string{"all"}
	for _, w := range bench.Workloads() {
		names = append(names, w.Name)
		fmt.Fprintf(&about, "  %-14s %s (%d nodes, %d pods, %s workers)\n", w.Name, w.About, w.Defaults.Nodes, w.Defaults.Pods, w.Defaults.Workers)
	}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a cluster on this machine",
		Long: `Measure a cluster on this machine: three servers with their logs on the disk, every write synced, and workers that
only pretend to run pods. Every outcome is verified: a figure whose pods are not all bound rightly, or whose servers'
states differ, is an error. The exit status is 1 if a target is missed.

Workloads:
` + about.String(),
		Example: `  berth bench --workload bulk
  berth bench --workload all --json
  berth bench --workload bulk --against ./berth-old --pairs 7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.runBench(ctx, f)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.workload, "workload", "all", "What to measure: "+strings.Join(names, ", ")+".")
	fs.IntVar(&f.config.Nodes, "nodes", 0, "Nodes; 0: the workload's own.")
	fs.IntVar(&f.config.Pods, "pods", 0, "Pods; 0: the workload's own.")
	fs.IntVar(&f.config.Servers, "servers", 3, "Servers.")
	fs.IntVar(&f.config.Clients, "clients", 0, "Clients that create pods at the same time; 0: the workload's own.")
	fs.IntVar(&f.config.Kills, "kills", 0, "How many leaders failover and takeover kill, one after another; 0: the workload's own.")
	fs.IntVar(&f.config.Seconds, "seconds", 0, "How long each part of storm is measured; 0: the workload's own.")
	fs.StringVar(&f.config.ControllerManager, "controller-manager", "", "kube-controller-manager's binary: the workload controllers runs it, too, in the place of Berth's controllers.")
	fs.StringVar(&f.config.Kubernetes, "kubernetes", "", "The directory of the binaries etcd, kube-apiserver, kube-controller-manager and kube-scheduler: the workload control-plane runs them, too, in the place of Berth's servers.")
	fs.StringVar(&f.workers, "workers", "", "What is behind the nodes: stub (nothing) or fake (node agents); empty: the workload's own.")
	fs.StringVar(&f.config.DataDir, "data-dir", "", "The directory below which the servers keep their logs; its disk is measured too.")
	fs.BoolVar(&f.json, "json", false, "Print JSON.")
	fs.StringVar(&f.against, "against", "", "Another berth: it and this one run in turn, as processes, and the ratios of their figures are told.")
	fs.IntVar(&f.pairs, "pairs", 5, "How many runs of each --against compares.")
	fs.BoolVar(&f.verbose, "verbose", false, "Show the servers' and workers' logs.")
	fs.StringVar(&f.cpuProfile, "cpuprofile", "", "Write a profile of the processor to this file.")
	fs.StringVar(&f.memProfile, "memprofile", "", "Write a profile of the memory to this file.")
	cmd.AddCommand(&cobra.Command{
		Use: bench.StormArgs[1], Hidden: true, Args: cobra.NoArgs,
		Short: "The clients of the workload storm, which the benchmark starts",
		RunE:  func(cmd *cobra.Command, _ []string) error { return bench.Storm(cmd.Context(), cmd.InOrStdin(), a.out) },
	})
	return cmd
}

func (a *app) runBench(ctx context.Context, f benchFlags) (err error) {
	var chosen []bench.Workload
	for _, w := range bench.Workloads() {
		if f.workload == "all" || f.workload == w.Name {
			chosen = append(chosen, w)
		}
	}
	f.config.Workers = bench.Workers(f.workers)
	switch {
	case len(chosen) == 0:
		return &verb.UsageError{Message: fmt.Sprintf("there is no workload %q", f.workload)}
	case f.against != "" && (f.cpuProfile != "" || f.memProfile != "" || f.verbose):
		return &verb.UsageError{Message: "--against runs other processes: it goes with no --cpuprofile, --memprofile or --verbose"}
	case f.workers != "" && f.config.Workers != bench.StubWorkers && f.config.Workers != bench.FakeWorkers:
		return &verb.UsageError{Message: fmt.Sprintf("--workers %q: it is stub or fake", f.workers)}
	}
	f.config.Version, f.config.Progress = version, a.errOut
	f.config.Logger = a.devLog(f.verbose)
	if f.config.Program, err = os.Executable(); err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if err := f.checkOthers(); err != nil {
		return err
	}
	if f.against != "" {
		return a.compareBench(ctx, chosen, f)
	}
	stop, err := startProfile(f.cpuProfile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(), writeMemoryProfile(f.memProfile)) }()
	defer easeCollector(a.getenv)() // as an agent has it
	var reports []*bench.Report
	var errs []error
	met := true
	for _, w := range chosen {
		report, err := bench.Run(ctx, w, f.config)
		errs = append(errs, err)
		if report == nil {
			continue
		}
		met = met && report.Met()
		reports = append(reports, report)
		if !f.json {
			errs = append(errs, bench.WriteTable(a.out, report))
		}
	}
	if f.json {
		errs = append(errs, bench.WriteJSON(a.out, reports))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if !met {
		return errors.New("a target was missed")
	}
	return nil
}

// checkOthers refuses Kubernetes' programs for workloads that do not run them, and those that are not there.
func (f *benchFlags) checkOthers() error {
	for _, o := range []struct{ flag, program, workload string }{
		{"--controller-manager", f.config.ControllerManager, "controllers"}, {"--kubernetes", f.config.Kubernetes, "control-plane"},
	} {
		if o.program == "" {
			continue
		}
		if f.against != "" || f.workload != "all" && f.workload != o.workload {
			return &verb.UsageError{Message: fmt.Sprintf("%s is for the workload %s, and does not go with --against", o.flag, o.workload)}
		}
		if _, err := os.Stat(o.program); err != nil {
			return fmt.Errorf("%s: %w", o.flag, err)
		}
	}
	return nil
}

// compareBench compares this program with another.
func (a *app) compareBench(ctx context.Context, chosen []bench.Workload, f benchFlags) error {
	against, err := exec.LookPath(f.against)
	if err != nil {
		return fmt.Errorf("--against: %w", err)
	}
	var all []*bench.Comparison
	var errs []error
	for _, w := range chosen {
		c, err := bench.Compare(ctx, w, f.config, against, f.pairs)
		errs = append(errs, err)
		if ctx.Err() != nil {
			chosen = nil // whoever broke it off wants no others
		}
		if c == nil {
			continue
		}
		all = append(all, c)
		if !f.json {
			errs = append(errs, bench.WriteComparison(a.out, c))
		}
	}
	if f.json {
		errs = append(errs, bench.WriteJSON(a.out, all))
	}
	return errors.Join(errs...)
}

func startProfile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("writing the profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(fmt.Errorf("writing the profile: %w", err), file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}

func writeMemoryProfile(path string) error {
	if path == "" {
		return nil
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing the memory profile: %w", err)
	}
	runtime.GC() // what is garbage is not shown
	return errors.Join(pprof.Lookup("heap").WriteTo(file, 0), file.Close())
}
