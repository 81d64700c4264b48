// Kubernetes lets Kubernetes' own end-to-end tests judge Berth: it starts the
// real binary as a cluster of three servers and several workers, runs the
// unchanged tests against it, and writes down what they found.
//
// The workers' containers are entries in memory. Whatever a test wants of a
// program inside a container can therefore not pass, and is written down so.
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
	"slices"
	"sync"
	"syscall"
	"time"
)

type options struct {
	berth, suite, report string
	focus                string
	dir                  string
	workers              int
	timeout              time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.berth, "berth", "bin/berth", "Berth's binary.")
	flag.StringVar(&o.suite, "suite", "bin/e2e.test", "Kubernetes' tests, built from k8s.io/kubernetes/test/e2e.")
	flag.StringVar(&o.report, "report", "", "Where to write the report; empty: on the terminal.")
	flag.StringVar(&o.focus, "focus", "", "Run the specs whose names match this expression, instead of the usual groups.")
	flag.StringVar(&o.dir, "dir", "", "Keep the cluster's and the tests' files here; empty: thrown away.")
	flag.IntVar(&o.workers, "workers", 4, "Workers, each a node.")
	flag.DurationVar(&o.timeout, "timeout", time.Hour, "How long the tests may take.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	shares := usualShares
	if o.focus != "" {
		pattern, err := regexp.Compile(o.focus)
		if err != nil {
			return fmt.Errorf("-focus: %w", err)
		}
		shares = [][]group{{{name: o.focus, pattern: pattern}}}
	}
	dir := o.dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "berth-conformance-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }() // temporary files: the system clears what is left
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	r := report{Focus: o.focus, Workers: o.workers, Kubernetes: suiteVersion}
	if r.Berth, err = versionOf(ctx, o.berth); err != nil {
		return err
	}
	began := time.Now()
	results, err := runShares(ctx, o, shares, dir)
	if err != nil {
		return err
	}
	r.Groups, r.Took = sortIntoGroups(slices.Concat(shares...), results), time.Since(began)
	if o.report == "" {
		r.write(os.Stdout)
	} else if err := r.writeFile(o.report); err != nil {
		return err
	}
	return r.verdict()
}

// runShares runs every share of the specs on a cluster of its own, all at the
// same time. The specs of one share follow each other: many of them change
// nodes, or count what is left of them.
func runShares(ctx context.Context, o options, shares [][]group, dir string) (results []result, err error) {
	dirs, clusters := make([]string, len(shares)), make([]*cluster, len(shares))
	for i := range shares { // one after the other: each takes ports that are free
		dirs[i] = filepath.Join(dir, fmt.Sprintf("share-%d", i+1))
		c, err := startCluster(ctx, o.berth, dirs[i], o.workers)
		if err != nil {
			return nil, fmt.Errorf("start a cluster: %w", err)
		}
		defer func() { err = errors.Join(err, c.stop()) }()
		clusters[i] = c
	}
	parts, errs := make([][]result, len(shares)), make([]error, len(shares))
	var running sync.WaitGroup
	for i, groups := range shares {
		running.Go(func() { parts[i], errs[i] = runSuite(ctx, o, groups, clusters[i].kubeconfig, dirs[i]) })
	}
	running.Wait()
	return slices.Concat(parts...), errors.Join(errs...)
}
