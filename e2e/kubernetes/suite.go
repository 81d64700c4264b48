package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// suiteVersion is that of the tests, and of the API that Berth serves.
const suiteVersion = "v1.36.3"

// skipped are specs of features that are off in Kubernetes itself unless
// somebody switches them on.
const skipped = `\[(Alpha|Feature:OffByDefault|BetaOffByDefault)\]`

// group is specs that are counted together.
type group struct {
	name    string
	pattern *regexp.Regexp
}

// usualShares are what Berth is about, in shares that take about equally long.
// A spec belongs to the first group that its name matches.
var usualShares = [][]group{
	{
		{"PriorityClass endpoints", regexp.MustCompile(`\[sig-scheduling\].* PriorityClass endpoints`)},
		{"SchedulerPreemption", regexp.MustCompile(`\[sig-scheduling\] SchedulerPreemption`)},
	},
	{
		{"SchedulerPredicates", regexp.MustCompile(`\[sig-scheduling\] SchedulerPredicates`)},
	},
	{
		{"SchedulerPriorities", regexp.MustCompile(`\[sig-scheduling\] SchedulerPriorities`)},
		{"DisruptionController", regexp.MustCompile(`\[sig-apps\] DisruptionController`)},
	},
}

// result is what became of one spec.
type result struct {
	Name        string
	State       string // passed, skipped, failed, timedout, panicked, interrupted
	Why         string // of a skip or a failure
	Seconds     float64
	Conformance bool
}

func (r *result) passed() bool  { return r.State == "passed" }
func (r *result) skipped() bool { return r.State == "skipped" || r.State == "pending" }

// arguments of the tests. The seed keeps their order the same in every run.
func arguments(o options, groups []group, kubeconfig, dir string) []string {
	patterns := make([]string, len(groups))
	for i, g := range groups {
		patterns[i] = g.pattern.String()
	}
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--provider=skeleton",
		"--ginkgo.focus=" + strings.Join(patterns, "|"),
		"--ginkgo.skip=" + skipped,
		"--ginkgo.seed=1",
		"--ginkgo.timeout=" + o.timeout.String(),
		"--ginkgo.no-color",
		"--ginkgo.silence-skips",
		"--minStartupPods=-1",
		"--allowed-not-ready-nodes=0",
		"--dump-logs-on-failure=false",
		"--disable-log-dump",
		"--report-dir=" + filepath.Join(dir, "report"),
	}
}

// runSuite runs the tests and reads what they report. That some have failed is
// no error.
func runSuite(ctx context.Context, o options, groups []group, kubeconfig, dir string) ([]result, error) {
	args := arguments(o, groups, kubeconfig, dir)
	if kubectl, err := exec.LookPath("kubectl"); err == nil {
		args = append(args, "--kubectl-path="+kubectl)
	}
	log, err := os.Create(filepath.Join(dir, "e2e.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // it is only for people
	cmd := exec.CommandContext(ctx, o.suite, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = clusterStop
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	fmt.Fprintf(os.Stderr, "conformance: running; the tests' log is %s\n", log.Name())
	began := time.Now()
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", o.suite, errors.Join(err, ctx.Err()))
	}
	path := filepath.Join(dir, "report", "junit_01.xml")
	if at, statErr := os.Stat(path); statErr != nil || at.ModTime().Before(began) {
		return nil, fmt.Errorf("%s wrote no report: %w; its log is %s", o.suite, errors.Join(err, statErr), log.Name())
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseJUnit(raw)
}

// junit is the part of the tests' report that matters here.
type junit struct {
	Cases []struct {
		Name    string  `xml:"name,attr"`
		Status  string  `xml:"status,attr"`
		Seconds float64 `xml:"time,attr"`
		Skipped *struct {
			Message string `xml:"message,attr"`
		} `xml:"skipped"`
		Failure *description `xml:"failure"`
		Error   *description `xml:"error"`
	} `xml:"testsuite>testcase"`
}

type description struct {
	Text string `xml:",chardata"`
}

// parseJUnit reads a report. What the focus left out is not part of it; a
// failure outside of any spec is.
func parseJUnit(raw []byte) ([]result, error) {
	var report junit
	if err := xml.Unmarshal(raw, &report); err != nil {
		return nil, fmt.Errorf("the tests' report: %w", err)
	}
	var out []result
	for _, c := range report.Cases {
		name, isSpec := strings.CutPrefix(c.Name, "[It] ")
		r := result{Name: name, State: c.Status, Seconds: c.Seconds, Conformance: strings.Contains(name, "[Conformance]")}
		switch {
		case !isSpec && r.passed():
			continue
		case c.Skipped != nil:
			reason, chosen := strings.CutPrefix(c.Skipped.Message, "skipped - ")
			if !chosen {
				continue
			}
			r.State, r.Why = "skipped", reason
		case c.Failure != nil:
			r.Why = firstWords(c.Failure.Text)
		case c.Error != nil:
			r.Why = firstWords(c.Error.Text)
		}
		out = append(out, r)
	}
	return out, nil
}

// stackBegins tells where a failure's text turns into where it happened.
var stackBegins = regexp.MustCompile(`(?m)^(In \[|There were additional failures|Full Stack Trace|\s*k8s\.io/kubernetes/)`)

// dump is a whole object, of which failures show every field.
var dump = regexp.MustCompile(`(?s)<\*[\w.]+ \| 0x[0-9a-f]+>:.*`)

// whyBytes bounds what is told of a failure.
const whyBytes = 400

// firstWords is what a failure says, without its stack, in one line.
func firstWords(text string) string {
	if at := stackBegins.FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	text = dump.ReplaceAllString(text, "an object …")
	text = strings.Join(strings.Fields(text), " ")
	text = strings.TrimPrefix(text, "[FAILED] ")
	if len(text) > whyBytes {
		text = strings.ToValidUTF8(text[:whyBytes], "") + " …"
	}
	return text
}
