package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// asNumber are the conversions of a time into a number, which is what the
// state's times are.
var asNumber = []string{"Unix", "UnixNano", "UnixMilli", "UnixMicro"}

// wallNumbers are where a time that is not the state's becomes a number all the
// same, each with its reason.
var wallNumbers = map[string]string{
	"server/logs.go":   "a client says from when on it wants a log: the worker's times, not the state's",
	"server/leases.go": "a node says when it renewed its lease: that is shown to who reads the lease, and compared with nothing",
}

// stamped are the rooms in which every number that is a time is the state's.
var stamped = []string{"server", "raftnode", "rpc", "apiserver", "explain"}

// wallCompared are where a wall clock is held against a time of an object, or against
// one that came as a number, each with its reason.
var wallCompared = map[string]string{
	"apiserver/tokens/check.go": "a token says until what time of day it is good: no deadline of the state's",
}

// ownTime are the rooms whose time is not the state's.
var ownTime = map[string]string{
	"sim":   "its clocks are what it tests with: it knows the real time",
	"bench": "it measures what a client sees",
	"e2e":   "it measures what a client sees",
	"cmd":   "a client has no other clock than its machine's",
}

const whyNotWall = "a wall clock beside the state's time: ask the clock of the leadership (raftnode.Node.Clock), or say here why not"

// A wall clock can be wrong, and can be set. Where it is compared with the
// state's time, deadlines pass early or never; so what runs by the state's time
// asks the clock of the leadership, and nothing else.
func TestNobodyComparesAWallClockWithTheStatesTime(t *testing.T) {
	s := load(t)
	used := map[string]bool{}
	for _, f := range s.files {
		if f.Test {
			continue
		}
		if within(f.Dir, core...) && slices.Contains(f.imports(), module+"/clock") {
			t.Errorf("%s imports clock: the core reads none; time comes with the entry, or as a parameter", f.Path)
		}
		if ownTime[strings.Split(f.Dir, "/")[0]] != "" {
			continue
		}
		for _, at := range comparedWithWall(f) {
			if used[f.Path] = true; wallCompared[f.Path] == "" {
				t.Errorf("%s: %s", s.line(at.Pos()), whyNotWall)
			}
		}
		if !within(f.Dir, stamped...) {
			continue
		}
		for _, at := range numbered(f) {
			if used[f.Path] = true; wallNumbers[f.Path] == "" {
				t.Errorf("%s: a time becomes a number: %s", s.line(at.Pos()), whyNotWall)
			}
		}
	}
	for _, allowed := range []map[string]string{wallNumbers, wallCompared} {
		for path := range allowed {
			if !used[path] {
				t.Errorf("%s is allowed what it does not do", path)
			}
		}
	}
}

// numbered are where times become numbers.
func numbered(f *file) (out []ast.Node) {
	ast.Inspect(f.AST, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		_, _, qualified := f.qualified(call.Fun)
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok && !qualified && len(call.Args) == 0 && slices.Contains(asNumber, sel.Sel.Name) {
			out = append(out, call)
		}
		return true
	})
	return out
}

// comparisons are the methods by which two times are held against each other.
var comparisons = []string{"After", "Before", "Equal", "Compare", "Sub"}

// comparedWithWall are where what the wall clock shows is held against a time that did
// not come from it: time.Since and time.Until of one, and comparisons of one with
// time.Now, or with a variable that it was kept in. What one function hands to another
// is not followed.
func comparedWithWall(f *file) (out []ast.Node) {
	for _, d := range f.AST.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		kept := keptWall(f, fn.Body)
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			if p, name, ok := f.qualified(call.Fun); ok {
				if p == "time" && (name == "Since" || name == "Until") && told(f, call.Args[0]) {
					out = append(out, call)
				}
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(comparisons, sel.Sel.Name) {
				return true
			}
			a, b := sel.X, call.Args[0]
			if wall(f, kept, a) && told(f, b) || told(f, a) && wall(f, kept, b) {
				out = append(out, call)
			}
			return true
		})
	}
	return out
}

// keptWall are the variables of a function that hold what the wall clock showed.
func keptWall(f *file, body ast.Node) map[string]bool {
	kept := map[string]bool{}
	for range 3 { // one that is made of another
		ast.Inspect(body, func(n ast.Node) bool {
			a, ok := n.(*ast.AssignStmt)
			if !ok || len(a.Lhs) != len(a.Rhs) {
				return true
			}
			for i, e := range a.Rhs {
				if id, ok := a.Lhs[i].(*ast.Ident); ok && wall(f, kept, e) {
					kept[id.Name] = true
				}
			}
			return true
		})
	}
	return kept
}

// sameTime are the methods and functions that make a time of a time.
var sameTime = []string{"Add", "AddDate", "Truncate", "Round", "UTC", "Local", "In", "NewTime", "NewMicroTime", "Rfc3339Copy"}

// wall: an expression that is what the wall clock shows, or made of it.
func wall(f *file, kept map[string]bool, e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return kept[e.Name]
	case *ast.ParenExpr:
		return wall(f, kept, e.X)
	case *ast.UnaryExpr:
		return wall(f, kept, e.X)
	case *ast.SelectorExpr: // now.Time of a metav1.Time
		return e.Sel.Name == "Time" && wall(f, kept, e.X)
	case *ast.CallExpr:
		p, name, qualified := f.qualified(e.Fun)
		if qualified && (p == "time" || strings.HasSuffix(p, "/meta/v1")) && (name == "Now" || name == "NowMicro") {
			return true
		}
		sel, ok := e.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(sameTime, sel.Sel.Name) {
			return false
		}
		if qualified {
			return len(e.Args) == 1 && wall(f, kept, e.Args[0])
		}
		return wall(f, kept, sel.X)
	}
	return false
}

// told: a time that somebody else has told: a field of one of Kubernetes' objects, which
// is a metav1.Time, or one that was made of a number.
func told(f *file, e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return told(f, e.X)
	case *ast.UnaryExpr:
		return told(f, e.X)
	case *ast.StarExpr:
		return told(f, e.X)
	case *ast.SelectorExpr:
		return strings.HasSuffix(e.Sel.Name, "Time") || strings.HasSuffix(e.Sel.Name, "Timestamp")
	case *ast.CallExpr:
		if p, name, ok := f.qualified(e.Fun); ok {
			return p == "time" && strings.HasPrefix(name, "Unix")
		}
		sel, ok := e.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		if strings.HasSuffix(sel.Sel.Name, "Time") || strings.HasSuffix(sel.Sel.Name, "Timestamp") {
			return true // a getter
		}
		return slices.Contains(sameTime, sel.Sel.Name) && told(f, sel.X)
	}
	return false
}

// The rule finds what it is there for, and lets go what waits in real time.
func TestWhatIsAComparisonWithTheWallClock(t *testing.T) {
	for text, found := range map[string]bool{
		"time.Now().After(x.Time)":                                                              true,
		"x.CreationTimestamp.Time.Before(time.Now())":                                           true,
		"x.DeletionTimestamp.Before(&limit)":                                                    false,
		"now := metav1.Now(); _ = x.DeletionTimestamp.Before(&now)":                             true,
		"now := time.Now().Add(-age); _ = now.Sub(x.StartTime.Time)":                            true,
		"now := time.Now(); then := now.UTC(); _ = then.Compare(x.GetCreationTimestamp().Time)": true,
		"var now time.Time; now = time.Now(); _ = x.StartTime.Add(age).After(now)":              true,
		"time.Since(x.CreationTimestamp.Time)":                                                  true,
		"time.Until(time.Unix(0, deadlineUnixNano))":                                            true,
		"time.Since(time.UnixMicro(n))":                                                         true,
		"time.Since(began)":                                                                     false,
		"give := time.Now().Add(patience); _ = time.Now().After(give)":                          false,
		"now.After(x.Time)":                                                                     false,
	} {
		file := &file{}
		var err error
		const head = "package p\nimport (\"time\"; metav1 \"k8s.io/apimachinery/pkg/apis/meta/v1\")\nvar _ metav1.Time\nfunc f() {\n"
		if file.AST, err = parser.ParseFile(token.NewFileSet(), "p.go", head+text+"\n}\n", 0); err != nil {
			t.Fatal(err)
		}
		if got := len(comparedWithWall(file)) > 0; got != found {
			t.Errorf("%s: found %v, want %v", text, got, found)
		}
	}
}
