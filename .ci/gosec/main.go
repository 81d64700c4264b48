// Gosec looks at packages of Go with gosec's rules, all of them at once: its own program loads each package anew with all that
// it is made of, which for this module takes half an hour. Tests and generated files are left out.
//
//	gosec [-exclude RULE,…] PACKAGE…
//
// What is right as it is says so where it stands: `#nosec G115 -- why`. One without a rule or without a reason is a finding.
package main

import (
	"flag"
	"fmt"
	"go/token"
	"io"
	"log"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/securego/gosec/v2"
	"github.com/securego/gosec/v2/analyzers"
	"github.com/securego/gosec/v2/rules"
	"golang.org/x/tools/go/packages"
)

func main() {
	exclude := flag.String("exclude", "", "rules that are left out, with commas between them")
	flag.Parse()
	findings, err := look(flag.Args(), strings.FieldsFunc(*exclude, func(r rune) bool { return r == ',' || r == ' ' }))
	if err != nil {
		fmt.Fprintln(os.Stderr, "gosec:", err)
		os.Exit(2)
	}
	for _, f := range findings {
		fmt.Println(f)
	}
	if len(findings) > 0 {
		os.Exit(1)
	}
}

// look gives what the rules find, a line each, in the order of the files.
func look(patterns, exclude []string) (findings []string, err error) {
	fset := token.NewFileSet()
	pkgs, err := packages.Load(&packages.Config{Mode: gosec.LoadMode, Fset: fset}, patterns...)
	if err != nil {
		return nil, err
	}
	checker := gosec.NewAnalyzer(gosec.NewConfig(), false, true, false, 1, log.New(io.Discard, "", 0))
	checker.LoadRules(rules.Generate(false, rules.NewRuleFilter(true, exclude...)).RulesInfo())
	checker.LoadAnalyzers(analyzers.Generate(false, analyzers.NewAnalyzerFilter(true, exclude...)).AnalyzersInfo())
	for _, pkg := range pkgs {
		for _, e := range pkg.Errors {
			return nil, e // what is not understood is not looked at
		}
		checker.CheckRules(pkg)
		checker.CheckAnalyzers(pkg)
		findings = append(findings, unreasoned(pkg)...)
	}
	issues, _, broken := checker.Report()
	for file, errs := range broken {
		return nil, fmt.Errorf("%s: %v", file, errs)
	}
	for _, i := range issues {
		findings = append(findings, fmt.Sprintf("%s:%s: %s: %s", i.File, i.Line, i.RuleID, i.What))
	}
	slices.Sort(findings)
	return slices.Compact(findings), nil
}

var (
	exception = regexp.MustCompile(`#nosec|gosec:disable`)
	reasoned  = regexp.MustCompile(`#nosec( G\d{3})+ -- \S+ \S+`)
)

// unreasoned are exceptions that do not say of which rule, or why.
func unreasoned(pkg *packages.Package) (findings []string) {
	for _, file := range pkg.Syntax {
		for _, group := range file.Comments {
			for _, c := range group.List {
				if exception.MatchString(c.Text) && !reasoned.MatchString(c.Text) {
					at := pkg.Fset.Position(c.Pos())
					findings = append(findings, fmt.Sprintf("%s:%d: an exception needs its rule and a reason: #nosec G000 -- why", at.Filename, at.Line))
				}
			}
		}
	}
	return findings
}
