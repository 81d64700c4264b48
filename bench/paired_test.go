package bench_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/bench"
)

// program is one that tells, run by run, the next of some figures, and writes down
// that it ran.
func program(t *testing.T, dir, name string, values ...float64) string {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\ncd '%s'\necho '%s' \"$@\" >>ran\nn=$(grep -c '^%s ' ran)\n", dir, name, name)
	for i, v := range values {
		script += fmt.Sprintf(`[ "$n" = %d ] && echo '[{"workload":"bulk","verified":%t,"figures":[{"name":"speed","value":%g,"unit":"pods/s"}]}]'`+"\n",
			i+1, v > 0, v)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(script+"exit 1\n"), 0o700); err != nil { // a missed target is no failure
		t.Fatal(err)
	}
	return path
}

func bulkWorkload(t *testing.T) bench.Workload {
	t.Helper()
	for _, w := range bench.Workloads() {
		if w.Name == "bulk" {
			return w
		}
	}
	t.Fatal("there is no bulk")
	return bench.Workload{}
}

func TestCompare(t *testing.T) {
	dir := t.TempDir()
	this, other := program(t, dir, "this", 10, 90, 30), program(t, dir, "other", 20, 60, 20)
	c, err := bench.Compare(t.Context(), bulkWorkload(t), bench.Config{Program: this, Servers: 3, Nodes: 7}, other, 3)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Ratios) == 0 || c.Ratios[0] != (bench.Ratio{Name: "speed", Unit: "pods/s", This: 30, Other: 20, Median: 1.5, Least: 0.5, Most: 1.5}) {
		t.Errorf("ratios: %+v", c.Ratios)
	}
	ran, err := os.ReadFile(filepath.Join(dir, "ran"))
	if err != nil {
		t.Fatal(err)
	}
	args := " bench --workload bulk --json --servers 3 --nodes 7\n"
	if want := strings.Join([]string{"this", "other", "other", "this", "this", "other", ""}, args); string(ran) != want {
		t.Errorf("ran:\n%s\nwant:\n%s", ran, want)
	}
	var table bytes.Buffer
	if err := bench.WriteComparison(&table, c); err != nil || !strings.Contains(table.String(), "pods/s  1.50") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

// What was measured before a run failed is told, and which run it was.
func TestCompareAfterFailure(t *testing.T) {
	dir := t.TempDir()
	this, other := program(t, dir, "this", 10, 90, 30), program(t, dir, "other", 20, 60, -1)
	c, err := bench.Compare(t.Context(), bulkWorkload(t), bench.Config{Program: this}, other, 4)
	if err == nil || !strings.Contains(err.Error(), "bulk, pair 3 of 4: run 2 of the pair, of the other program: "+other+" gave no verified report") {
		t.Errorf("error: %v", err)
	}
	if c == nil || c.Pairs != 2 || len(c.Ratios) == 0 || c.Ratios[0].Median != 1 {
		t.Errorf("comparison: %+v", c)
	}
}

func TestCompareRefusesWhatIsNotVerified(t *testing.T) {
	dir := t.TempDir()
	this, wrong := program(t, dir, "this", 10), program(t, dir, "wrong", -1)
	for _, against := range []string{wrong, this} {
		if c, err := bench.Compare(t.Context(), bulkWorkload(t), bench.Config{Program: this}, against, 1); err == nil {
			t.Errorf("against %s: %+v", against, c)
		}
	}
}
