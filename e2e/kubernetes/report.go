package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// report is what all specs came to, in one run or several, for docs/conformance.md.
type report struct {
	Specs      []spec
	Results    results
	Causes     []cause
	Workers    int
	Kubernetes string
}

// count is how many specs there are of a kind, and what they came to.
type count struct{ all, passed, failed, skipped, not int }

func (c *count) add(r result) {
	c.all++
	switch r.State {
	case passed:
		c.passed++
	case skipped:
		c.skipped++
	case "":
		c.not++
	default:
		c.failed++
	}
}

// verdict is an error if a spec failed for no known cause, if a known cause explains nothing, or if nothing has run.
func (r *report) verdict() error {
	ran, unexplained := 0, 0
	var errs []error
	for _, s := range r.Specs {
		one := r.Results[s.key()]
		if one.State == "" || one.State == skipped {
			continue
		}
		ran++
		for _, c := range r.Causes {
			if c.said == "" && one.State == passed && strings.HasPrefix(s.key(), c.specs) {
				errs = append(errs, fmt.Errorf("it passes, and has a cause not to: %s", s.key()))
			}
		}
		if one.State != passed && causeOf(r.Causes, s.key(), one) == "" {
			unexplained++
		}
	}
	for name := range r.Results {
		if strings.HasPrefix(name, outside) {
			unexplained++
		}
	}
	if ran == 0 {
		return errors.New("no spec ran")
	}
	if unexplained > 0 {
		errs = append(errs, fmt.Errorf("%d of %d specs failed for no known cause", unexplained, ran))
	}
	return errors.Join(errs...)
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

Kubernetes has end-to-end tests by which any implementation of its API can be judged; those labelled [Conformance] every Kubernetes has
to pass. They are built as they are, from ` + "`k8s.io/kubernetes/test/e2e`" + ` %s, and run against the real binary: three servers, and %d
nodes, each with a network, a containerd and a worker of its own, which carries services and answers for names. Nothing in Berth knows that they are there.

    make conformance                        # build the tests, run what has not passed yet, write this page
    make conformance FOCUS='sig-node'       # only what matches
    make conformance AGAIN=1                # all of them, whatever they came to before
    make conformance ON_KUBELET=1           # those of nodes, on nodes of Kubernetes' own kubelet, which is built, too
    make conformance SPECS='sig-apps.*Job'  # others of Kubernetes' specs; what they came to is told on the terminal, and not here

What every spec came to is kept in ` + "`bin/conformance.json`" + ` as soon as it is known, so that a run that was ended is gone on with: the whole
takes some hours. What is not in there is left on this page as it was. It needs root and Debian's packages (` + "`make containers`" + `), runs in namespaces of its own and leaves nothing behind.

The images are stand-ins under the same names, on the nodes before anything runs, and one that a spec wants fetched in a registry of the
run's own: ` + "`agnhost`" + `, which most specs use, ` + "`sample-apiserver`" + ` and ` + "`kubectl`" + ` are built from Kubernetes' sources and ` + "`etcd`" + ` from its own;
` + "`busybox`" + `, its shell and the tools beside them are this machine's; ` + "`nginx`" + ` is busybox's server. Specs of images that nobody stands in for fail.

This page is written by that command. With every spec is said how long it took, and which Berth it was.

Beside [Conformance] those groups are run that say more of scheduling, of pods and their nodes, of controllers, quotas and services, and of kubectl; of them all specs
but those of features that Kubernetes itself has switched off, those that it calls flaky, what a kubelet uses over hours, and clustered databases. Claims of volumes
that name no class get directories of the nodes (` + "`berth.dev/local`" + `), but not on the nodes of a kubelet; there nothing carries services or answers for names, either, as Berth's workers do.

`

func (r *report) write(w io.Writer) {
	var b strings.Builder
	fmt.Fprintf(&b, introduction, r.Kubernetes, r.Workers)
	for _, p := range parts {
		r.table(&b, p.title, p.of)
	}
	r.section(&b, sections[failed], func(one result) bool { return one.State != passed && one.State != skipped && one.State != "" })
	r.section(&b, sections[skipped], func(one result) bool { return one.State == skipped })
	r.section(&b, "What was not run", func(one result) bool { return one.State == "" })
	r.section(&b, sections[passed], func(one result) bool { return one.State == passed })
	_, _ = io.WriteString(w, b.String()) // the terminal, or a file whose Close tells
}

// parts are the tables, one for each kind of specs.
var parts = [...]struct {
	title string
	of    func(*spec) bool
}{
	{"[Conformance]", func(s *spec) bool { return !s.Kubelet && s.conformance() }},
	{"[Conformance], on nodes of Kubernetes' own kubelet", func(s *spec) bool { return s.Kubelet }},
	{"Beyond: what is about scheduling", func(s *spec) bool { return !s.Kubelet && !s.conformance() && s.aboutScheduling() }},
	{"Beyond: other groups", func(s *spec) bool { return !s.Kubelet && !s.conformance() && !s.aboutScheduling() }},
}

// table counts specs by sig and group.
func (r *report) table(b *strings.Builder, title string, of func(*spec) bool) {
	type key struct{ sig, group string }
	counts := map[key]*count{}
	var all count
	for i := range r.Specs {
		s := &r.Specs[i]
		if !of(s) {
			continue
		}
		k := key{s.Sig, s.Group}
		if counts[k] == nil {
			counts[k] = &count{}
		}
		counts[k].add(r.Results[s.key()])
		all.add(r.Results[s.key()])
	}
	if all.all == 0 {
		return
	}
	fmt.Fprintf(b, "## %s\n\n| sig | group | specs | passed | failed | skipped | not run |\n|---|---|---|---|---|---|---|\n", title)
	row := func(sig, group string, c count, mark string) {
		fmt.Fprintf(b, "| %s | %s |", sig, group)
		for _, n := range [...]int{c.all, c.passed, c.failed, c.skipped, c.not} {
			fmt.Fprintf(b, " %s%d%s |", mark, n, mark)
		}
		b.WriteString("\n")
	}
	keys := slices.SortedFunc(maps.Keys(counts), func(x, y key) int {
		return cmp.Or(strings.Compare(x.sig, y.sig), strings.Compare(x.group, y.group))
	})
	for _, k := range keys {
		row(k.sig, k.group, *counts[k], "")
	}
	row("**all**", "", all, "**")
	b.WriteString("\n")
}

func (r *report) section(b *strings.Builder, title string, wanted func(result) bool) {
	begun := false
	line := func(one result) {
		if !begun {
			fmt.Fprintf(b, "## %s\n\n", title)
			begun = true
		}
		fmt.Fprintf(b, "* %s", one.Name)
		if one.State != "" {
			fmt.Fprintf(b, " (%.0f s, %s)", one.Seconds, one.Berth)
		}
		if why := causeOf(r.Causes, one.Name, one); why != "" && one.State != passed {
			fmt.Fprintf(b, "\n  — %s", why)
		}
		if one.Why != "" {
			fmt.Fprintf(b, "\n  — `%s`", strings.ReplaceAll(one.Why, "`", "'"))
		}
		b.WriteString("\n")
	}
	for _, s := range r.Specs {
		one := r.Results[s.key()]
		if wanted(one) {
			one.Name = s.key()
			line(one)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Results)) {
		if one := r.Results[name]; strings.HasPrefix(name, outside) && wanted(one) {
			line(one)
		}
	}
	if begun {
		b.WriteString("\n")
	}
}
