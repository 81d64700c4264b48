package config

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
)

// Problem is one mistake in the configuration.
type Problem struct {
	// File and Line say where; File is empty for what is missing altogether.
	File string
	Line int
	// Message says what is wrong and what to do about it.
	Message string
}

func (p Problem) String() string {
	switch {
	case p.File == "":
		return p.Message
	case p.Line == 0:
		return p.File + ": " + p.Message
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Message)
}

// Error is every mistake found, in the order of files and lines, one a line.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// problems collects mistakes; the zero value is ready.
type problems []Problem

func (ps *problems) add(file string, line int, format string, args ...any) {
	*ps = append(*ps, Problem{File: file, Line: line, Message: fmt.Sprintf(format, args...)})
}

func (ps *problems) at(r hcl.Range, format string, args ...any) {
	ps.add(r.Filename, r.Start.Line, format, args...)
}

func (ps *problems) addDiagnostics(file string, diags hcl.Diagnostics) {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		line := 0
		if d.Subject != nil {
			line = d.Subject.Start.Line
		}
		ps.add(file, line, "%s", sentence(d))
	}
}

// sentence joins a diagnostic's two texts on one line.
func sentence(d *hcl.Diagnostic) string {
	detail := strings.TrimSuffix(strings.Join(strings.Fields(d.Detail), " "), ".")
	summary := strings.TrimSuffix(d.Summary, ".")
	switch {
	case detail == "":
		return lowerFirst(summary)
	case summary == "":
		return lowerFirst(detail)
	}
	return lowerFirst(summary) + ": " + lowerFirst(detail)
}

func lowerFirst(s string) string {
	if len(s) > 1 && s[1] >= 'a' && s[1] <= 'z' || len(s) > 1 && s[1] == ' ' {
		return strings.ToLower(s[:1]) + s[1:]
	}
	return s
}

// err returns the collected mistakes as an *Error, or nil.
func (ps problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	sort.SliceStable(ps, func(i, j int) bool {
		if ps[i].File != ps[j].File {
			return ps[i].File < ps[j].File
		}
		return ps[i].Line < ps[j].Line
	})
	return &Error{Problems: slices.Compact(ps)}
}

// suggest returns `; did you mean "x"?` for the name that is nearest to what was
// written, or nothing if none is near.
func suggest(given string, names []string) string {
	best, bestDistance := "", 3
	if len(given) > 8 {
		bestDistance = 4
	}
	sorted := slices.Sorted(slices.Values(names))
	for _, n := range sorted {
		if d := levenshtein.Distance(strings.ToLower(given), strings.ToLower(n), nil); d < bestDistance {
			best, bestDistance = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// oneOf returns what is wrong with a value that must be one of a few.
func oneOf(given string, names ...string) (string, bool) {
	if slices.Contains(names, given) {
		return "", true
	}
	if hint := suggest(given, names); hint != "" {
		return fmt.Sprintf("%q is not known%s", given, hint), false
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = fmt.Sprintf("%q", n)
	}
	last := len(quoted) - 1
	return fmt.Sprintf("%q is not known; it can be %s or %s", given, strings.Join(quoted[:last], ", "), quoted[last]), false
}
