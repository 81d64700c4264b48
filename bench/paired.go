package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"text/tabwriter"
)

// Comparison is how a workload went with this program (Config.Program) and with
// another one, run in turn, so that the machine's mood is the same for both.
type Comparison struct {
	Workload string  `json:"workload"`
	Against  string  `json:"against"`
	Pairs    int     `json:"pairs"`   // that are whole
	Machine  Machine `json:"machine"` // at the last run
	Ratios   []Ratio `json:"ratios"`
}

// Ratio is one figure of a comparison: the medians of both, and this program's over
// the other's, pair by pair.
type Ratio struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	This   float64 `json:"this"`
	Other  float64 `json:"other"`
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
}

// wholeRun is a figure of every workload: what a run takes from its start to its
// end, the start of the servers and what is verified included.
const wholeRun = "processor time of the whole run"

// Compare runs a workload so many times with each of two programs: A B, B A, A B ...
// When a run fails, the error says which, and the comparison is that of the pairs before; nil if there are none.
func Compare(ctx context.Context, w Workload, c Config, against string, pairs int) (*Comparison, error) {
	switch {
	case pairs < 1:
		return nil, errors.New("a comparison needs one pair of runs at least")
	case against == c.Program:
		return nil, errors.New("a program is compared with another one")
	}
	var these, others []*Report
	var failed error
	for i := 0; i < pairs && failed == nil; i++ {
		this, other, err := runPair(ctx, w, c, against, i%2 == 1)
		if err != nil {
			failed = fmt.Errorf("%s, pair %d of %d: %w", w.Name, i+1, pairs, err)
			break
		}
		these, others = append(these, this), append(others, other)
		if c.Progress != nil {
			_, failed = fmt.Fprintf(c.Progress, "%s: pair %d of %d\n", w.Name, i+1, pairs)
		}
	}
	if len(these) == 0 {
		return nil, failed
	}
	return compared(w, against, these, others), failed
}

// runPair runs a workload with this program and with the other one, which goes first if it is its turn.
func runPair(ctx context.Context, w Workload, c Config, against string, otherFirst bool) (this, other *Report, err error) {
	runs := []struct {
		who, program string
		report       **Report
	}{{"this program", c.Program, &this}, {"the other program", against, &other}}
	if otherFirst {
		slices.Reverse(runs)
	}
	for i, r := range runs {
		if *r.report, err = runOther(ctx, r.program, w, c); err != nil {
			return nil, nil, fmt.Errorf("run %d of the pair, of %s: %w", i+1, r.who, err)
		}
	}
	return this, other, nil
}

// compared makes the ratios of whole pairs, of which there is one at least.
func compared(w Workload, against string, these, others []*Report) *Comparison {
	last := these[len(these)-1]
	out := &Comparison{Workload: w.Name, Against: against, Pairs: len(these), Machine: last.Machine}
	for _, name := range last.names() {
		if r, ok := ratioOf(name, figures(these), figures(others)); ok {
			out.Ratios = append(out.Ratios, r)
		}
	}
	return out
}

// figures are those of each report, by name.
func figures(reports []*Report) (out []map[string]Figure) {
	for _, r := range reports {
		out = append(out, r.byName())
	}
	return out
}

// runOther runs a workload as a process of a program.
func runOther(ctx context.Context, program string, w Workload, c Config) (*Report, error) {
	args := []string{"bench", "--workload", w.Name, "--json", "--servers", strconv.Itoa(c.Servers)}
	for _, f := range []struct {
		flag  string
		value int
	}{{"--nodes", c.Nodes}, {"--pods", c.Pods}, {"--clients", c.Clients}, {"--kills", c.Kills}} {
		if f.value != 0 { // an older program may not know it
			args = append(args, f.flag, strconv.Itoa(f.value))
		}
	}
	if c.Workers != "" {
		args = append(args, "--workers", string(c.Workers))
	}
	if c.DataDir != "" {
		args = append(args, "--data-dir", c.DataDir)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run() // it fails, too, if a target was missed
	var reports []*Report
	if decodeErr := json.Unmarshal(stdout.Bytes(), &reports); decodeErr != nil || len(reports) != 1 || !reports[0].Verified {
		return nil, fmt.Errorf("%s gave no verified report: %w\n%s", program, errors.Join(err, decodeErr), stderr.Bytes())
	}
	worked := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	reports[0].Figures = append(reports[0].Figures, Figure{Name: wholeRun, Value: worked.Seconds(), Unit: "s"})
	return reports[0], nil
}

func (r *Report) names() (out []string) {
	for _, f := range r.Figures {
		out = append(out, f.Name)
	}
	return out
}

func (r *Report) byName() map[string]Figure {
	out := map[string]Figure{}
	for _, f := range r.Figures {
		out[f.Name] = f
	}
	return out
}

// ratioOf compares one figure; there is no ratio to a figure that the other program
// does not tell, or that is 0.
func ratioOf(name string, these, others []map[string]Figure) (Ratio, bool) {
	var this, other, ratios []float64
	r := Ratio{Name: name}
	for i := range these {
		a, b := these[i][name], others[i][name]
		if b.Value == 0 {
			return r, false
		}
		r.Unit = a.Unit
		this, other, ratios = append(this, a.Value), append(other, b.Value), append(ratios, a.Value/b.Value)
	}
	r.This, r.Other, r.Median = medianOf(this), medianOf(other), medianOf(ratios)
	r.Least, r.Most = slices.Min(ratios), slices.Max(ratios)
	return r, true
}

// medianOf is the middle of values, or between the two in the middle.
func medianOf(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// WriteComparison writes a comparison for people.
func WriteComparison(w io.Writer, c *Comparison) error {
	fmt.Fprintf(w, "%s: this program against %s, %d pairs, %d cores, load %.1f\n", c.Workload, c.Against, c.Pairs, c.Machine.Cores, c.Machine.Load)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  \tTHIS\tOTHER\t\tRATIO\tLEAST\tMOST")
	for _, r := range c.Ratios {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%.2f\t%.2f\t%.2f\n", r.Name, number(r.This), number(r.Other), r.Unit, r.Median, r.Least, r.Most)
	}
	return t.Flush()
}
