package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
)

// report is one run, for docs/conformance.md.
type report struct {
	Groups            []outcome
	Focus             string
	Workers           int
	Berth, Kubernetes string
	Took              time.Duration
}

// outcome is what became of a group.
type outcome struct {
	Name    string
	Results []result
}

// limit is a reason for which specs can not pass here.
type limit struct {
	pattern *regexp.Regexp
	reason  string
}

// limits are known and told; a failure that none explains makes the run fail.
var limits = []limit{
	{
		regexp.MustCompile(`when PVC has node-affinity to non-existent/illegal nodes`),
		"Berth serves no PersistentVolumes and no PersistentVolumeClaims: volumes that outlive a pod are not there yet.",
	},
}

// limitOf explains a spec that did not pass; empty: nothing does.
func limitOf(name string) string {
	for _, l := range limits {
		if l.pattern.MatchString(name) {
			return l.reason
		}
	}
	return ""
}

// sortIntoGroups puts every result into the first group that its name matches.
// What matches none, such as a failure before the first spec, is told too.
func sortIntoGroups(groups []group, results []result) []outcome {
	out := make([]outcome, len(groups))
	for i, g := range groups {
		out[i].Name = g.name
	}
	other := outcome{Name: "outside of the groups"}
results:
	for _, r := range results {
		for i, g := range groups {
			if g.pattern.MatchString(r.Name) {
				out[i].Results = append(out[i].Results, r)
				continue results
			}
		}
		other.Results = append(other.Results, r)
	}
	if len(other.Results) > 0 {
		out = append(out, other)
	}
	return out
}

// count says how many of a group passed, how many ran, and how many were
// skipped.
func (o *outcome) count(conformance bool) (passed, ran, skipped int) {
	for i := range o.Results {
		r := &o.Results[i]
		switch {
		case conformance && !r.Conformance:
		case r.skipped():
			skipped++
		case r.passed():
			passed, ran = passed+1, ran+1
		default:
			ran++
		}
	}
	return passed, ran, skipped
}

// verdict is an error if a spec failed for no known reason, or none ran.
func (r *report) verdict() error {
	ran, unexplained := 0, 0
	for _, g := range r.Groups {
		for i := range g.Results {
			one := &g.Results[i]
			if one.skipped() {
				continue
			}
			ran++
			if !one.passed() && limitOf(one.Name) == "" {
				unexplained++
			}
		}
	}
	switch {
	case ran == 0:
		return fmt.Errorf("no spec ran")
	case unexplained > 0:
		return fmt.Errorf("%d of %d specs failed for no known reason", unexplained, ran)
	}
	return nil
}

func (r *report) writeFile(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	r.write(f)
	return f.Close()
}

const introduction = `# Kubernetes' own tests

Kubernetes has end-to-end tests by which any implementation of its API can be judged. They are built as they are, from
` + "`k8s.io/kubernetes/test/e2e`" + ` %s, and run against the real binary: three servers, %d workers whose containers are
entries in memory. Three such clusters share the specs. Nothing in Berth knows that they are there.

    make conformance                        # build the tests, run the groups below, write this page
    make conformance FOCUS='Namespaces'     # only what matches, told on the terminal

This page is written by that command: Berth %s, %.0f minutes of tests.

| group | passed | run | of them [Conformance] | skipped |
|---|---|---|---|---|
`

func (r *report) write(w io.Writer) {
	var b strings.Builder
	fmt.Fprintf(&b, introduction, r.Kubernetes, r.Workers, r.Berth, r.Took.Minutes())
	var passed, ran, skipped, must, mustRun int
	for i := range r.Groups {
		g := &r.Groups[i]
		p, n, s := g.count(false)
		cp, cn, _ := g.count(true)
		fmt.Fprintf(&b, "| %s | %d | %d | %d of %d | %d |\n", g.Name, p, n, cp, cn, s)
		passed, ran, skipped, must, mustRun = passed+p, ran+n, skipped+s, must+cp, mustRun+cn
	}
	fmt.Fprintf(&b, "| **all** | **%d** | **%d** | **%d of %d** | **%d** |\n", passed, ran, must, mustRun, skipped)
	r.writeSection(&b, "What failed", func(one *result) bool { return !one.passed() && !one.skipped() })
	r.writeSection(&b, "What was skipped", (*result).skipped)
	r.writeSection(&b, "What passed", (*result).passed)
	_, _ = io.WriteString(w, b.String()) // the terminal, or a file whose Close tells
}

func (r *report) writeSection(b *strings.Builder, title string, wanted func(*result) bool) {
	begun := false
	for i := range r.Groups {
		for j := range r.Groups[i].Results {
			one := &r.Groups[i].Results[j]
			if !wanted(one) {
				continue
			}
			if !begun {
				fmt.Fprintf(b, "\n## %s\n\n", title)
				begun = true
			}
			fmt.Fprintf(b, "* %s", one.Name)
			if one.passed() {
				fmt.Fprintf(b, " (%.0f s)", one.Seconds)
			} else if why := limitOf(one.Name); why != "" {
				fmt.Fprintf(b, "\n  — %s", why)
			} else if one.Why != "" {
				fmt.Fprintf(b, "\n  — `%s`", strings.ReplaceAll(one.Why, "`", "'"))
			}
			b.WriteString("\n")
		}
	}
}
