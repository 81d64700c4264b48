package archtest

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// core are the packages whose results every server must get alike, from the
// same input.
var core = []string{"model", "store", "codec", "budgets", "owners", "queue", "quotas", "usage", "fsm", "sched", "controller"}

// bannedInCore: a package, what of it (nothing means all), and why.
var bannedInCore = []struct {
	Import string
	Names  []string
	Why    string
}{
	{"time", []string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer", "Sleep", "Local"},
		"servers would see different times; time comes with the entry, or as a parameter"},
	{"math/rand", nil, "servers would draw different numbers; derive what has to look random from replicated data"},
	{"math/rand/v2", nil, "servers would draw different numbers; derive what has to look random from replicated data"},
	{"crypto/rand", nil, "servers would draw different numbers; derive what has to look random from replicated data"},
	{"os", nil, "the core does no I/O: it would differ from server to server and stop the log when it blocks"},
	{"net", nil, "the core does no I/O: it would differ from server to server and stop the log when it blocks"},
	{"net/http", []string{"Client", "Get", "Post", "ListenAndServe", "Server", "DefaultClient", "NewRequest"},
		"the core does no I/O; the status codes of refusals are all that it may take from here"},
	{"log", nil, "the core does not log: it returns what there is to say"},
	{"log/slog", nil, "the core does not log: it returns what there is to say"},
	{"github.com/hashicorp/go-hclog", nil, "the core does not log: it returns what there is to say"},
	{"k8s.io/apimachinery/pkg/util/uuid", nil, "servers would make different UIDs; derive them from the entry and the revision"},
	{"k8s.io/apimachinery/pkg/util/rand", nil, "servers would draw different numbers; derive what has to look random from replicated data"},
	{"k8s.io/apimachinery/pkg/apis/meta/v1", []string{"Now", "NowMicro"}, "servers would see different times; time comes with the entry, or as a parameter"},
	{"github.com/google/uuid", []string{"New", "NewString", "NewRandom", "NewUUID", "NewV6", "NewV7"},
		"servers would make different UIDs; derive them from the entry and the revision"},
}

func TestTheCoreIsDeterministic(t *testing.T) {
	s := load(t)
	for _, f := range s.files {
		if f.Test || !within(f.Dir, core...) {
			continue
		}
		for _, b := range bannedInCore {
			if len(b.Names) == 0 && slices.Contains(f.imports(), b.Import) {
				t.Errorf("%s imports %s: %s", f.Path, b.Import, b.Why)
			}
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: a goroutine: its result would depend on who runs first; the core is called, it runs nothing", s.line(g.Pos()))
			}
			p, name, ok := f.qualified(n)
			for _, b := range bannedInCore {
				if ok && b.Import == p && slices.Contains(b.Names, name) {
					t.Errorf("%s: %s.%s: %s", s.line(n.Pos()), p, name, b.Why)
				}
			}
			return true
		})
	}
}

// judging are the files of the core in which a class is held against a node,
// with why that class is the right one.
var judging = map[string]string{
	"fsm/ruled.go":     "only a ruled class can be asked there",
	"sched/board.go":   "boards are of effective classes",
	"sched/explain.go": "the pod's effective class is asked there",
}

// TestNodesAreJudgedByWhatTheConfigurationAddsToo: whether a node takes a pod
// depends on the pod's profile, too; who asks with the pod's own class wakes,
// binds or evicts for a node that the scheduler does not want.
func TestNodesAreJudgedByWhatTheConfigurationAddsToo(t *testing.T) {
	s := load(t)
	for _, f := range s.files {
		if f.Test || !within(f.Dir, core...) || f.Dir == "model" || judging[f.Path] != "" {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			p, name, ok := f.qualified(n)
			if ok && strings.HasSuffix(p, "/model") && slices.Contains([]string{"Fits", "Check", "CheckNode", "NodeFailures"}, name) {
				t.Errorf("%s: model.%s: ask a ruled class (fsm/ruled.go), or explain here why this class is the effective one", s.line(n.Pos()), name)
			}
			return true
		})
	}
}

// floatsAllowed are the files of the core that may use floating-point numbers, with the reason.
var floatsAllowed = map[string]string{
	"controller/nodes.go": "the rate of evictions is the leader's own, and what it proposes is in the log: nobody computes it again",
}

// TestTheCoreCountsInIntegers: a compiler may fuse a multiplication with an
// addition on one processor and not on another, and logarithms are computed in
// other ways; servers, and whoever replays a log, would decide differently.
func TestTheCoreCountsInIntegers(t *testing.T) {
	s := load(t)
	for _, f := range s.files {
		if f.Test || f.Generated || !within(f.Dir, core...) || floatsAllowed[f.Path] != "" {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if what := floating(f, n); what != "" {
				t.Errorf("%s: %s: floating-point results differ between processors; count in integers (model.MulDiv)", s.line(n.Pos()), what)
			}
			return true
		})
	}
}

// floating is what of a node of the syntax is about floating-point numbers, or "".
func floating(f *file, n ast.Node) string {
	switch n := n.(type) {
	case *ast.Ident:
		if slices.Contains([]string{"float32", "float64", "complex64", "complex128"}, n.Name) {
			return n.Name
		}
	case *ast.BasicLit:
		if n.Kind == token.FLOAT || n.Kind == token.IMAG {
			return n.Value
		}
	case *ast.SelectorExpr:
		p, name, ok := f.qualified(n)
		if ok && p == "math" && !strings.HasPrefix(name, "Max") && !strings.HasPrefix(name, "Min") {
			return "math." + name
		}
		if n.Sel.Name == "AsApproximateFloat64" || ok && p == "math" && (name == "Max" || name == "Min") {
			return n.Sel.Name
		}
	}
	return ""
}

func TestNoInit(t *testing.T) {
	s := load(t)
	for _, f := range s.files {
		for _, d := range f.AST.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" && !f.Generated {
				t.Errorf("%s: init(): what happens because a package is imported cannot be found by reading; call it, or make it a value", s.line(fn.Pos()))
			}
		}
	}
}

func TestTestsDoNotSleep(t *testing.T) {
	s := load(t)
	for _, f := range s.files {
		if !f.Test {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if p, name, ok := f.qualified(n); ok && p == "time" && name == "Sleep" && !mentions(f.AST, n, "synctest") {
				t.Errorf("%s: time.Sleep in a test is too short on a busy machine and too long on an idle one: wait for a revision, an index or a condition", s.line(n.Pos()))
			}
			return true
		})
	}
}

// mentions: inside of testing/synctest time is virtual, and sleeping is the way
// to let it pass.
func mentions(f *ast.File, at ast.Node, word string) bool {
	for _, d := range f.Decls {
		if d.Pos() <= at.Pos() && at.End() <= d.End() {
			found := false
			ast.Inspect(d, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && id.Name == word {
					found = true
				}
				return !found
			})
			return found
		}
	}
	return false
}

func TestErrorsAreNotMatchedByText(t *testing.T) {
	s := load(t)
	for _, f := range s.files {
		if f.Test {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			p, name, ok := f.qualified(call.Fun)
			if !ok || p != "strings" || !slices.Contains([]string{"Contains", "HasPrefix", "HasSuffix", "EqualFold"}, name) {
				return true
			}
			if text, ok := call.Args[1].(*ast.BasicLit); ok && !strings.ContainsFunc(text.Value[1:], ofWord) {
				return true // about the layout, not the meaning
			}
			for _, a := range call.Args {
				if c, ok := a.(*ast.CallExpr); ok && len(c.Args) == 0 {
					if sel, ok := c.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Error" {
						t.Errorf("%s: an error matched by its text breaks when somebody words it better: use errors.Is or errors.As", s.line(call.Pos()))
					}
				}
			}
			return true
		})
	}
}

func ofWord(r rune) bool { return r != 'n' && r != 't' && unicode.IsLetter(r) } // \n and \t are no words

func TestNothingIsLeftForLater(t *testing.T) {
	s := load(t)
	for _, f := range s.files {
		if f.Generated || within(f.Dir, "archtest") {
			continue
		}
		for _, group := range f.AST.Comments {
			for _, c := range group.List {
				for _, word := range []string{"TODO", "FIXME", "XXX", "HACK"} {
					if strings.Contains(c.Text, word) {
						t.Errorf("%s: %s: what is not done is not there; write an issue, or do it", s.line(c.Pos()), word)
					}
				}
			}
		}
	}
}
