package bench_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/bench"
)

// The programs take minutes to build (make bench-beside).
var kubernetes = flag.String("kubernetes", "", "the directory of the binaries of Kubernetes' control plane, for the workload that runs it")

// TestWorkloads runs every workload at a small size: what it verifies must
// hold, and what it reports must be there. How fast it was does not matter.
func TestWorkloads(t *testing.T) {
	sizes := map[string]bench.Config{
		"http-create":        {Nodes: 20, Pods: 60, Clients: 6, Workers: bench.FakeWorkers},
		"bulk":               {Nodes: 50, Pods: 500},
		"preemption":         {Nodes: 20, Pods: 20},
		"preemption-budgets": {Nodes: 40, Pods: 20},
		"starvation":         {Nodes: 20, Pods: 200},
		"replicaset":         {Nodes: 50, Pods: 500},
		"deployment":         {Nodes: 10, Pods: 40},
		"deployments":        {Nodes: 10, Pods: 60, Clients: 4},
		"job":                {Nodes: 10, Pods: 40},
		"spread":             {Nodes: 50, Pods: 300},
		"anti-affinity":      {Nodes: 50, Pods: 300},
		"affinity":           {Nodes: 50, Pods: 300},
		"unschedulable":      {Nodes: 50, Pods: 300},
		"restart":            {Nodes: 50, Pods: 500},
		"failover":           {Nodes: 20, Pods: 200, Clients: 4, Kills: 2},
		"control-plane":      {Nodes: 10, Pods: 60, Clients: 4, Kubernetes: *kubernetes},
		"controllers":        {Nodes: 10, Pods: 60, Clients: 4},
		"storm":              {Nodes: 10, Pods: 300, Clients: 12, Seconds: 2},
		"takeover":           {Nodes: 10, Pods: 200, Clients: 4, Kills: 2},
	}
	program := sync.OnceValue(func() string { return buildBerth(t) })
	for _, w := range bench.Workloads() {
		t.Run(w.Name, func(t *testing.T) {
			c, ok := sizes[w.Name]
			if !ok {
				t.Fatalf("workload %s has no small size", w.Name)
			}
			c.DataDir, c.Version = t.TempDir(), "test"
			var told bytes.Buffer
			if w.Name == "failover" || w.Name == "takeover" || w.Name == "controllers" || w.Name == "control-plane" || w.Name == "storm" {
				c.Progress = &told
				if testing.Short() {
					t.Skip("builds the binary")
				}
				c.Program = program()
			}
			if w.Name == "control-plane" && *kubernetes == "" {
				t.Skip("-kubernetes names no programs: what Berth's servers do alone is what the controllers do")
			}
			if w.Name == "controllers" {
				t.Setenv(playsControllerManager, "yes")
				c.ControllerManager = os.Args[0]
			}
			r, err := bench.Run(t.Context(), w, c)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Verified || len(r.Figures) == 0 {
				t.Errorf("the report is not complete: %+v", r)
			}
			for _, f := range r.Figures {
				if (f.Target == "") != (f.Met == nil) {
					t.Errorf("figure %q has a target or an answer to it, and not both", f.Name)
				}
			}
			show(t, r)
			if n := strings.Count(told.String(), "leading after"); n != c.Kills {
				t.Errorf("of %d kills %d were told as they went:\n%s", c.Kills, n, told.String())
			}
		})
	}
}

func buildBerth(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "berth")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../cmd/berth").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// show checks both forms of a report.
func show(t *testing.T, r *bench.Report) {
	t.Helper()
	var table, raw bytes.Buffer
	if err := bench.WriteTable(&table, r); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + table.String())
	if got := strings.Count(table.String(), "\n"); got != 1+len(r.Figures) {
		t.Errorf("the table has %d lines for %d figures", got, len(r.Figures))
	}
	if err := bench.WriteJSON(&raw, []*bench.Report{r}); err != nil {
		t.Fatal(err)
	}
	var back []bench.Report
	if err := json.Unmarshal(raw.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if len(back) != 1 || len(back[0].Figures) != len(r.Figures) {
		t.Errorf("the JSON does not say the same: %s", raw.String())
	}
}

func TestRunRefusesWhatCanNotBe(t *testing.T) {
	for _, w := range bench.Workloads() {
		if w.Name != "preemption" && w.Name != "preemption-budgets" && w.Name != "anti-affinity" && w.Name != "failover" && w.Name != "takeover" && w.Name != "controllers" && w.Name != "control-plane" && w.Name != "storm" {
			continue
		}
		if _, err := bench.Run(t.Context(), w, bench.Config{Nodes: 1, Pods: 1000, DataDir: t.TempDir()}); err == nil {
			t.Errorf("%s ran with more preemptors than nodes", w.Name)
		}
	}
}
