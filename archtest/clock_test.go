package archtest

import (
	"go/ast"
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

// A wall clock can be wrong, and can be set. Where it is compared with the
// state's time, deadlines pass early or never; so what runs by the state's time
// asks the clock of the leadership, and nothing else.
func TestNobodyComparesAWallClockWithTheStatesTime(t *testing.T) {
	const why = "a wall clock beside the state's time: ask the clock of the leadership (raftnode.Node.Clock)"
	s := load(t)
	for _, f := range s.files {
		if f.Test || wallNumbers[f.Path] != "" {
			continue
		}
		if within(f.Dir, core...) && slices.Contains(f.imports(), module+"/clock") {
			t.Errorf("%s imports clock: the core reads none; time comes with the entry, or as a parameter", f.Path)
		}
		if !within(f.Dir, "server", "raftnode", "rpc", "apiserver", "explain") {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			p, name, qualified := f.qualified(call.Fun)
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && !qualified && len(call.Args) == 0 && slices.Contains(asNumber, sel.Sel.Name) {
				t.Errorf("%s: %s: %s", s.line(call.Pos()), sel.Sel.Name, why)
			}
			if qualified && p == "time" && (name == "Since" || name == "Until") && ofNumber(f, call.Args[0]) {
				t.Errorf("%s: time.%s of a number: %s", s.line(call.Pos()), name, why)
			}
			return true
		})
	}
}

// ofNumber: a time that was made of a number.
func ofNumber(f *file, e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	p, name, ok := f.qualified(call.Fun)
	return ok && p == "time" && strings.HasPrefix(name, "Unix")
}
