package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

const sample = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="5"><testsuite name="Kubernetes e2e suite">
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
<testcase name="[It] [sig-apps] Thing works [Conformance]" status="passed" time="61.4"></testcase>
<testcase name="[It] [sig-apps] Thing breaks" status="failed" time="2">
<failure type="failed">[FAILED] expected a
    pod, got instead:
    &lt;*v1.Pod | 0xc0ffee&gt;:
        metadata:
In [It] at: k8s.io/kubernetes/test/e2e/x.go:1 @ 11/21/26
</failure></testcase>
<testcase name="[It] [sig-apps] Thing is not for here" status="skipped" time="0"><skipped message="skipped - too few nodes"></skipped></testcase>
<testcase name="[It] [sig-node] Other" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>`

func TestReport(t *testing.T) {
	results, err := parseJUnit([]byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 3 {
		t.Fatalf("%d results: %+v", len(results), results)
	}
	groups := []group{{"Things", regexp.MustCompile(`Thing`)}}
	r := report{Groups: sortIntoGroups(groups, results), Workers: 5, Berth: "v1", Kubernetes: suiteVersion}
	var b strings.Builder
	r.write(&b)
	for _, want := range []string{
		"| Things | 1 | 2 | 1 of 1 | 1 |", "## What failed", "— `expected a pod, got instead: an object …`", "— `too few nodes`",
		"works [Conformance] (61 s)",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if err := r.verdict(); err == nil || err.Error() != "1 of 2 specs failed for no known reason" {
		t.Errorf("verdict: %v", err)
	}
}

// A failure before the first spec is one, and no specs are no success.
func TestVerdict(t *testing.T) {
	results, err := parseJUnit([]byte(`<testsuites><testsuite><testcase name="[SynchronizedBeforeSuite]" status="failed" time="1"><failure>no service</failure></testcase></testsuite></testsuites>`))
	if err != nil {
		t.Fatal(err)
	}
	r := report{Groups: sortIntoGroups(slices.Concat(usualShares...), results)}
	if err := r.verdict(); err == nil {
		t.Error("a failure before the first spec is taken for a success")
	}
	if err := (&report{}).verdict(); err == nil {
		t.Error("a run without specs is taken for a success")
	}
}

func TestGroups(t *testing.T) {
	for name, want := range map[string]string{
		"[sig-scheduling] SchedulerPreemption [Serial] PriorityClass endpoints verify PriorityClass endpoints": "PriorityClass endpoints",
		"[sig-scheduling] SchedulerPreemption [Serial] validates basic preemption works":                       "SchedulerPreemption",
		"[sig-scheduling] SchedulerPredicates [Serial] validates resource limits":                              "SchedulerPredicates",
		"[sig-apps] DisruptionController evictions: no PDB":                                                    "DisruptionController",
		"[sig-network] HostPort validates that there is no conflict":                                           "outside of the groups",
	} {
		for _, g := range sortIntoGroups(slices.Concat(usualShares...), []result{{Name: name}}) {
			if len(g.Results) > 0 && g.Name != want {
				t.Errorf("%s is in %s", name, g.Name)
			}
		}
	}
}
