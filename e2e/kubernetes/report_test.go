package main

import (
	"maps"
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

// Of a failure the words are told, and not the object that they are about.
func TestFirstWords(t *testing.T) {
	said := "Verifying it. Pod: {\n  \"metadata\": {\n    \"a\": {}\n  }\n}\n: \n    <*errors.errorString | 0x233f97df5350>: \n    [\n    oom_score_adj value 0\n    ]"
	if got := firstWords(said); got != "Verifying it. Pod: an object … : [ oom_score_adj value 0 ]" {
		t.Error(got)
	}
	ran := "error running /some/where/bin/kubectl --server=https://10.0.0.1:1 --kubeconfig=/tmp/x/kubeconfig --namespace=n get componentstatuses:\nCommand stdout"
	if got := firstWords(ran); got != "error running kubectl --namespace=n get componentstatuses: Command stdout" {
		t.Error(got)
	}
}

// A cause that knows what is said is of those that say it, and others of the same name may pass.
func TestCausesBySaying(t *testing.T) {
	r := report{Specs: specsOf("a 1", "a 2", "a 3"), Causes: []cause{{"a", "no loops", "why"}}, Results: results{
		"a 1": {State: failed, Why: "it has no loops"}, "a 2": {State: passed}, "a 3": {State: failed, Why: "else"}}}
	if err := r.verdict(); err == nil || err.Error() != "1 of 3 specs failed for no known cause" {
		t.Error(err)
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
		Results: results{}, Causes: []cause{{"Thing breaks", "", "It is not there."}}, Workers: 2, Kubernetes: suiteVersion}
	for _, one := range []result{{Name: "Thing works [Conformance]", State: passed, Seconds: 61.4, Berth: "v2"},
		{Name: "Thing breaks [Conformance]", State: "failed", Why: "what?", Berth: "v1"}, {Name: "Thing is skipped", State: skipped, Why: "too few `nodes`", Berth: "v2"}} {
		r.Results[one.Name] = one
	}
	r.Specs = append(r.Specs, spec{Name: "Thing works [Conformance]", Sig: "apps", Group: "Thing", Kubelet: true})
	r.Results[r.Specs[4].key()] = result{Name: r.Specs[4].key(), State: failed, Seconds: 3, Why: "what?", Berth: "v3"}
	r.Results["Another"] = result{Name: "Another", State: passed, Berth: "v3"} // of other specs, by another run
	var b strings.Builder
	r.write(&b)
	for _, want := range []string{
		"| apps | Thing | 3 | 1 | 1 | 0 | 1 |", "| **all** |  | **3** | **1** | **1** | **0** | **1** |", "| apps | Thing | 1 | 0 | 0 | 1 | 0 |",
		"## What failed\n\n* Thing breaks [Conformance] (0 s, v1)\n  — It is not there.", "— `too few 'nodes'`", "## What was not run\n\n* Thing waits [Conformance]\n",
		"works [Conformance] (61 s, v2)",
		"## Beyond: other groups", "## [Conformance], on nodes of Kubernetes' own kubelet", "| apps | Thing | 1 | 0 | 1 | 0 | 0 |",
		"* on a kubelet: Thing works [Conformance] (3 s, v3)\n  — `what?`",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if err := r.verdict(); err == nil || err.Error() != "1 of 3 specs failed for no known cause" {
		t.Errorf("verdict: %v", err)
	}
}

// What a run knows nothing of stays on the page as it was, whoever wrote it.
func TestPageIsReadBack(t *testing.T) {
	r := report{Specs: specsOf("a (b) works", "breaks", "is skipped", "waits", "is known better"), Workers: 2, Kubernetes: suiteVersion, Results: results{
		"a (b) works":          {Name: "a (b) works", State: passed, Seconds: 61, Berth: "v1"},
		"breaks":               {Name: "breaks", State: failed, Seconds: 2, Berth: "v2", Why: "what?"},
		"is skipped":           {Name: "is skipped", State: skipped, Berth: "v2", Why: "too few"},
		"is known better":      {Name: "is known better", State: failed, Berth: "v2", Why: "who?"},
		outside + "AfterSuite": {Name: outside + "AfterSuite", State: failed, Berth: "v2"},
	}}
	path := filepath.Join(t.TempDir(), "page.md")
	if err := r.writeFile(path); err != nil {
		t.Fatal(err)
	}
	better := result{Name: "is known better", State: passed, Seconds: 5, Berth: "v3"}
	got, err := results{better.Name: better}.withPage(path)
	want := maps.Clone(r.Results)
	delete(want, outside+"AfterSuite") // it is of a run, not of a spec
	want[better.Name] = better
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v\n%+v, want\n%+v", err, got, want)
	}
	if got, err := (results{}).withPage(path + ".none"); err != nil || len(got) != 0 {
		t.Errorf("of no page: %v, %v", got, err)
	}
}

// Specs about nodes are there twice; all are where somebody asked for others.
func TestWhatRunsOnKubelets(t *testing.T) {
	all := specsOf("[sig-node] Pods run [Conformance]", "[sig-node] Pods walk", "[sig-apps] Job runs [Conformance]")
	ours := onKubelets(all, focused)
	if len(ours) != 1 || ours[0].key() != "on a kubelet: [sig-node] Pods run [Conformance]" || len(onKubelets(all, "Pods")) != 3 {
		t.Errorf("%+v", ours)
	}
	if got := choose(append(all, ours...), regexp.MustCompile(""), results{all[0].Name: {State: passed}}, false, true); !slices.Equal(got, ours) {
		t.Errorf("%+v", got)
	}
	groups := regexp.MustCompile(groups)
	for name, in := range map[string]bool{"[sig-node] [Serial] Pod InPlace Resize Container (deferred)": true, "[sig-apps] Job should": true,
		"[sig-apps] Jobs": false, "[sig-storage] PersistentVolumes-local  [Volume type: dir]": true, "[sig-node] Pods Extended Pod": true} {
		if groups.MatchString(name) != in {
			t.Errorf("%s: counted is %t", name, !in)
		}
	}
}

// A failure without a known cause is one; so is a known cause of what passes, one outside of any spec, and that nothing ran.
func TestVerdict(t *testing.T) {
	for name, r := range map[string]report{
		"no spec ran":                            {Specs: specsOf("a")},
		"1 of 1 specs failed for no known cause": {Specs: specsOf("a"), Results: results{"a": {State: "failed"}}},
		"it passes, and has a cause not to: a":   {Specs: specsOf("a"), Results: results{"a": {State: passed}}, Causes: []cause{{"a", "", "why"}}},
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
	if got := choose(all, regexp.MustCompile("[abc]"), known, false, false); len(got) != 2 || got[0].Name != "b" || got[1].Name != "c" {
		t.Errorf("%+v", got)
	}
	if got := choose(all, regexp.MustCompile(""), known, true, false); len(got) != 4 {
		t.Errorf("%+v", got)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readResults(path); err == nil {
		t.Error("half a file is read")
	}
}
