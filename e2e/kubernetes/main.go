// Kubernetes lets Kubernetes' own end-to-end tests judge Berth: it starts the
// real binary as a cluster of three servers and several nodes with real
// containers, runs the unchanged tests against it, and writes down what they
// found.
//
// Everything runs on a part of the machine that is made for it (e2e/machine),
// and that ends with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/e2e/machine"
)

type options struct {
	berth, suite, tools, kubelet        string
	specs, focus, report, results, logs string
	workers, lanes, batch               int
	timeout                             time.Duration
	again, reportOnly                   bool
}

func main() {
	var o options
	flag.StringVar(&o.berth, "berth", "bin/berth", "Berth's binary.")
	flag.StringVar(&o.suite, "suite", "bin/e2e.test", "Kubernetes' tests, built from k8s.io/kubernetes/test/e2e.")
	flag.StringVar(&o.tools, "tools", "bin", "Where kubectl is, and the programs of the tests' images, built from their modules: agnhost, etcd, nnp, sample-apiserver.")
	flag.StringVar(&o.kubelet, "kubelet", "", "Kubernetes' own kubelet: nodes are of it, and specs about nodes run on them; empty: nodes are of Berth's workers.")
	flag.StringVar(&o.specs, "specs", focused, "Which of Kubernetes' specs are counted, as an expression of their names.")
	flag.StringVar(&o.focus, "focus", "", "Run only the specs whose names match this expression.")
	flag.StringVar(&o.report, "report", "", "Where to write the report; empty: on the terminal.")
	flag.StringVar(&o.results, "results", "bin/conformance.json", "What the specs came to is kept here, for runs that follow.")
	flag.StringVar(&o.logs, "logs", "", "Keep the logs of the tests and of the cluster here; empty: thrown away.")
	flag.IntVar(&o.workers, "workers", 2, "Nodes.")
	flag.IntVar(&o.lanes, "lanes", 2, "How many specs run at a time, those aside that must run alone.")
	flag.IntVar(&o.batch, "batch", 12, "How many specs one process of the tests runs.")
	flag.DurationVar(&o.timeout, "timeout", 6*time.Hour, "No spec is begun later than this.")
	flag.BoolVar(&o.again, "again", false, "Run specs that have passed as well.")
	flag.BoolVar(&o.reportOnly, "report-only", false, "Run none: write the report.")
	flag.Parse()
	if err := start(o); err != nil {
		if !errors.Is(err, machine.ErrSaid) {
			fmt.Fprintln(os.Stderr, "conformance:", err)
		}
		os.Exit(1)
	}
}

// start makes a machine for the cluster and the tests, or, there, runs them.
func start(o options) error {
	if dir := machine.Inside(); dir != "" {
		ctx, stop := machine.Context()
		defer stop()
		return run(ctx, o, dir)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := machine.Missing(neededPrograms[:]...); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "berth-conformance-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // temporary files: the system clears what is left
	return machine.Run(ctx, dir)
}

func run(ctx context.Context, o options, dir string) error {
	focus, err := regexp.Compile(o.focus)
	if err != nil {
		return fmt.Errorf("-focus: %w", err)
	}
	for _, path := range []*string{&o.berth, &o.suite, &o.tools, &o.kubelet} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if o.logs == "" {
		o.logs = filepath.Join(dir, "logs")
	}
	if err := os.MkdirAll(o.logs, 0o755); err != nil {
		return err
	}
	version, err := versionOf(ctx, o.berth)
	if err != nil {
		return err
	}
	specs, err := listSpecs(ctx, o, dir)
	if err != nil {
		return err
	}
	specs = append(specs, onKubelets(specs, o.specs)...)
	known, err := readResults(o.results)
	if err != nil {
		return err
	}
	if !o.reportOnly {
		wanted := choose(specs, focus, known, o.again, o.kubelet != "")
		fmt.Fprintf(os.Stderr, "conformance: %d of %d specs are to run\n", len(wanted), len(specs))
		if err := runOnCluster(ctx, o, dir, wanted, func(r result) error {
			r.Berth = version
			if o.kubelet != "" && !strings.HasPrefix(r.Name, outside) {
				r.Name = onKubelet + r.Name
			}
			fmt.Fprintf(os.Stderr, "%-7s %4.0f s  %s\n", r.State, r.Seconds, r.Name)
			known[r.Name] = r
			return known.write(o.results)
		}); err != nil {
			return err
		}
	}
	if o.report != "" {
		if known, err = known.withPage(o.report); err != nil {
			return err
		}
	}
	r := report{Specs: specs, Results: known, Causes: causes, Workers: o.workers, Kubernetes: suiteVersion}
	if o.report != "" {
		if err := r.writeFile(o.report); err != nil {
			return err
		}
	} else {
		r.write(os.Stdout)
	}
	return r.verdict()
}

// choose leaves out what has passed already, unless it is to run again, and what runs on other nodes than there are.
func choose(specs []spec, focus *regexp.Regexp, known results, again, kubelet bool) []spec {
	var out []spec
	for _, s := range specs {
		if s.Kubelet == kubelet && focus.MatchString(s.Name) && (again || known[s.key()].State != passed) {
			out = append(out, s)
		}
	}
	return out
}

// runOnCluster starts a cluster, runs the specs and tells what each came to as soon as it is known.
func runOnCluster(ctx context.Context, o options, dir string, specs []spec, tell func(result) error) error {
	if len(specs) == 0 {
		return nil
	}
	if err := machine.Prepare(ctx, dir); err != nil {
		return fmt.Errorf("prepare the machine: %w", err)
	}
	c, err := startCluster(ctx, o, dir)
	if err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	defer c.KeepLogs(o.logs)
	defer c.stop()
	fmt.Fprintln(os.Stderr, "conformance: the cluster is there; its kubeconfig is", c.Kubeconfig)
	return errors.Join(runSpecs(ctx, o, c, specs, tell), c.Alive())
}
