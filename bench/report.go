package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
)

// Report is what one run of a workload found.
type Report struct {
	Workload string  `json:"workload"`
	Nodes    int     `json:"nodes"`
	Pods     int     `json:"pods"`
	Servers  int     `json:"servers"`
	Clients  int     `json:"clients,omitempty"`
	Workers  Workers `json:"workers"`
	Machine  Machine `json:"machine"`
	Seconds  float64 `json:"seconds"`
	// Verified: the outcome was checked and is right.
	Verified bool     `json:"verified"`
	Figures  []Figure `json:"figures"`
}

// Machine is where it ran. An absolute figure holds for no other machine, and
// not for this one when it is busy with something else.
type Machine struct {
	Cores int `json:"cores"`
	// Load is the number of processes that wanted to run when the run began,
	// an average over one minute.
	Load float64 `json:"load"`
	Go   string  `json:"go"`
}

// Figure is one measured value.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Target is what it has to reach, empty if it is only reported.
	Target string `json:"target,omitempty"`
	Met    *bool  `json:"met,omitempty"`
}

func newReport(name string, c Config) *Report {
	return &Report{
		Workload: name, Nodes: c.Nodes, Pods: c.Pods, Servers: c.Servers, Clients: c.Clients, Workers: c.Workers,
		Machine: Machine{Cores: runtime.GOMAXPROCS(0), Load: loadAverage(), Go: runtime.Version()},
	}
}

func loadAverage() float64 {
	var load float64
	b, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, err = fmt.Sscan(string(b), &load)
	}
	if err != nil {
		return -1 // not told by this system
	}
	return load
}

// Met says whether every target was reached.
func (r *Report) Met() bool {
	for _, f := range r.Figures {
		if f.Met != nil && !*f.Met {
			return false
		}
	}
	return true
}

// WriteJSON writes reports, or comparisons, as one JSON array.
func WriteJSON[T Report | Comparison](w io.Writer, all []*T) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(all)
}

// WriteTable writes a report for people.
func WriteTable(w io.Writer, r *Report) error {
	state := "verified"
	if !r.Verified {
		state = "NOT VERIFIED"
	}
	fmt.Fprintf(w, "%s: %d nodes (%s workers), %d pods, %d servers, %d cores, load %.1f, %.0f s, %s\n",
		r.Workload, r.Nodes, r.Workers, r.Pods, r.Servers, r.Machine.Cores, r.Machine.Load, r.Seconds, state)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Figures {
		line := []string{"  " + f.Name, number(f.Value), f.Unit}
		if f.Met != nil {
			met := "met"
			if !*f.Met {
				met = "MISSED"
			}
			line = append(line, f.Target, met)
		}
		fmt.Fprintln(t, strings.Join(line, "\t"))
	}
	return t.Flush()
}

func number(v float64) string {
	switch {
	case v == math.Trunc(v) || math.Abs(v) >= 1000:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
