package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const sample = `[{"SpecReports": [
 {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-apps] Thing [Serial]", "inner"], "LeafNodeText": "works [Conformance]", "ContainerHierarchyLabels": [["sig-apps", "Serial"], []], "State": "passed", "RunTime": 61400000000},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-apps] Thing"], "LeafNodeText": "breaks [Conformance]", "State": "failed",
  "Failure": {"Message": "expected a\n    pod, got instead:\n    <*v1.Pod | 0xc0ffee>:\n        metadata:"}},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-scheduling] Other"], "LeafNodeText": "is not for here", "State": "skipped", "Failure": {"Message": "too few nodes"}},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Far"], "LeafNodeText": "was left out", "State": "skipped"},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Far"], "LeafNodeText": "was cut short", "State": "interrupted"}
]}]`

func TestResultsOfARun(t *testing.T) {
	reports, err := parseReport([]byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	got := collect(reports)
	want := []result{
		{Name: "[sig-apps] Thing [Serial] inner works [Conformance]", State: passed, Seconds: 61.4},
		{Name: "[sig-apps] Thing breaks [Conformance]", State: "failed", Why: "expected a pod, got instead: an object …"},
		{Name: "[sig-scheduling] Other is not for here", State: skipped, Why: "too few nodes"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestListOfSpecs(t *testing.T) {
	got, err := parseSpecs([]byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	want := []spec{{Name: "[sig-apps] Thing [Serial] inner works [Conformance]", Sig: "apps", Group: "Thing", Alone: true}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

func specsOf(names ...string) []spec {
	var out []spec
	for _, n := range names {
		out = append(out, spec{Name: n, Sig: "apps", Group: "Thing"})
	}
	return out
}

func TestReport(t *testing.T) {
	r := report{Specs: specsOf("Thing works [Conformance]", "Thing breaks [Conformance]", "Thing waits [Conformance]", "Thing is skipped"),
		Results: results{}, Causes: []cause{{"Thing breaks", "It is not there."}}, Workers: 2, Kubernetes: suiteVersion}
	for _, one := range []result{{Name: "Thing works [Conformance]", State: passed, Seconds: 61.4, Berth: "v2"},
		{Name: "Thing breaks [Conformance]", State: "failed", Why: "what?", Berth: "v1"}, {Name: "Thing is skipped", State: skipped, Why: "too few `nodes`", Berth: "v2"}} {
		r.Results[one.Name] = one
	}
	r.Results["Another"] = result{Name: "Another", State: passed, Berth: "v3"} // of other specs, by another run
	var b strings.Builder
	r.write(&b)
	for _, want := range []string{
		"| apps | Thing | 3 | 1 | 1 | 0 | 1 |", "| **all** |  | **3** | **1** | **1** | **0** | **1** |", "| apps | Thing | 1 | 0 | 0 | 1 | 0 |",
		"## What failed\n\n* Thing breaks [Conformance]\n  — It is not there.", "— `too few 'nodes'`", "## What was not run\n\n* Thing waits [Conformance]\n",
		"works [Conformance] (61 s)", "of Berth v1, v2.",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if err := r.verdict(); err != nil {
		t.Errorf("verdict: %v", err)
	}
}

// A failure without a known cause is one; so is a known cause of what passes, one outside of any spec, and that nothing ran.
func TestVerdict(t *testing.T) {
	for name, r := range map[string]report{
		"no spec ran":                            {Specs: specsOf("a")},
		"1 of 1 specs failed for no known cause": {Specs: specsOf("a"), Results: results{"a": {State: "failed"}}},
		"it passes, and has a cause not to: a":   {Specs: specsOf("a"), Results: results{"a": {State: passed}}, Causes: []cause{{"a", "why"}}},
		"1 of 1 specs failed for no known":       {Specs: specsOf("a"), Results: results{"a": {State: passed}, outside + "BeforeSuite": {State: "failed"}}},
	} {
		if err := r.verdict(); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%q, want %q", err, name)
		}
	}
}

// A run goes on where the one before it ended.
func TestRunsAddUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	known, err := readResults(path)
	if err != nil || len(known) != 0 {
		t.Fatal(known, err)
	}
	known["a"], known["b"] = result{Name: "a", State: passed}, result{Name: "b", State: "failed"}
	if err := known.write(path); err != nil {
		t.Fatal(err)
	}
	if known, err = readResults(path); err != nil {
		t.Fatal(err)
	}
	all := specsOf("a", "b", "c", "d")
	if got := choose(all, regexp.MustCompile("[abc]"), known, false); len(got) != 2 || got[0].Name != "b" || got[1].Name != "c" {
		t.Errorf("%+v", got)
	}
	if got := choose(all, regexp.MustCompile(""), known, true); len(got) != 4 {
		t.Errorf("%+v", got)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readResults(path); err == nil {
		t.Error("half a file is read")
	}
}
