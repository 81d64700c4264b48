package archtest

import (
	"go/ast"
	"go/types"
	"regexp"
	"strings"
	"testing"
)

// guarded are the rooms whose goroutines must not end the process: whatever one of them calls, it calls through a guard.
var guarded = []string{"apiserver", "cluster", "explain", "handshake", "informers", "peers", "rpc", "server", "workloads"}

// unguarded are the rooms in which nothing holds that, with why.
var unguarded = map[string]string{
	"raftnode": "Raft's own goroutines are guarded by nobody, and a server whose promises, log or outcomes are half kept must not go on: " +
		"what is ours in it and could panic by what is in the log (Apply, a restore) is guarded where it is done",
	"raftlog": "as raftnode",
	"pki":     "it starts one, that looks at certificate files, and takes its own panic for files that can not be read",
	"worker":  "pods go on without their worker, and who starts it starts it again; what it calls for one pod alone is caught",
	"agent":   "what starts a server or a worker; a worker's loops are guarded one by one, and what carries its connections as worker",
	"guard":   "it is the guard",
	"cmd":     "a command line",
	"bench":   "it is no server and no worker",
	"e2e":     "it is no server and no worker",
	"sim":     "it is no server and no worker",
}

// goesAlone are the functions of the guarded rooms with goroutines that call something outside of a guard: how many, and why
// that cannot panic or must.
var goesAlone = map[string]struct {
	goroutines int
	why        string
}{
	"apiserver/audittrail/trail.go: End": {1, "the server stops, and it is waited for no longer than endTimeout"},
	"apiserver/server.go: Run":           {1, "the hub guards what it routes, its ticks and its way through the feed"},
	"apiserver/watcher.go: Watch":        {1, "a watch guards what it tells; it ends by channels alone"},
	"cluster/bootstrap.go: look":         {1, "whom it asks is asked in what catches a panic"},
	"cluster/transport.go: newGate":      {1, "it says that its caught passing broke"},
	"handshake/serve.go: Serve":          {1, "a handshake and what follows it are caught in it, for the gate has to be told of its end"},
	"informers/feed.go: Follow":          {1, "client-go's detector of who changes rows is there to end the process; it does nothing unless it is asked for"},
	"rpc/server.go: Serve":               {1, "what it does beside its caught serving is to stop the others when that broke"},
	"rpc/server.go: Stop":                {3, "gRPC's own stop, with which the server ends"},
	"rpc/tunnel.go: newTunnel":           {3, "bytes are pumped in what catches a panic (pump); the third waits for the two and lets go of the stream"},
	"server/reads.go: do":                {1, "a round is two pointers and what it asks, which is guarded (New)"},
	"server/state_bound.go: Wait":        {1, "what it does after its guarded wait is a sum"},
}

// guarding is a call that guards what it is given.
var guarding = regexp.MustCompile(`^((.*\.)?[gG]uard|g)(\.Or\(\))?(\.(Keep|Call))?$|^guard\.(Caught|Together)$|^caught$`)

// harmless is a call that does nothing that could panic where it stands.
var harmless = regexp.MustCompile(`^(close|len|cap|new|make|append|cancel)$|\.(Done|fail|Error|cancel)$|^errors\.(As|Is)$`)

// TestGoroutinesAreGuarded: nobody catches a panic of a goroutine but itself, so that one that is not guarded ends the server.
func TestGoroutinesAreGuarded(t *testing.T) {
	s, alone := load(t), map[string]int{}
	for _, f := range s.files {
		if f.Test || f.Generated || !within(f.Dir, guarded...) || strings.HasSuffix(f.Dir, "test") {
			continue
		}
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			groups := groupsIn(fn)
			ast.Inspect(fn, func(n ast.Node) bool {
				started := goroutineOf(n, groups)
				if started == nil {
					return true
				}
				if call := unguardedCall(started); call != "" {
					at := f.Path + ": " + fn.Name.Name
					if alone[at]++; alone[at] > goesAlone[at].goroutines {
						t.Errorf("%s: %q: a goroutine calls %s outside of a guard: a panic of it ends the process", s.line(n.Pos()), at, call)
					}
				}
				return true
			})
		}
	}
	for at, e := range goesAlone {
		if alone[at] != e.goroutines || e.why == "" {
			t.Errorf("%s: %d goroutines go alone, and %d are listed", at, alone[at], e.goroutines)
		}
	}
}

// TestRoomsAreGuardedOrSayWhyNot: a room that starts goroutines is in one of the lists.
func TestRoomsAreGuardedOrSayWhyNot(t *testing.T) {
	s := load(t)
	for _, f := range s.files {
		if f.Test || f.Generated || within(f.Dir, guarded...) {
			continue
		}
		listed := false
		for room, why := range unguarded {
			listed = listed || within(f.Dir, room) && why != ""
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if goroutineOf(n, nil) != nil && !listed {
				t.Errorf("%s: a goroutine in a room that is neither guarded nor says why not", s.line(n.Pos()))
			}
			return true
		})
	}
}

// groupsIn are the variables of a function that are guard.Groups.
func groupsIn(fn *ast.FuncDecl) map[string]bool {
	groups := map[string]bool{}
	ast.Inspect(fn, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && v.Type != nil && types.ExprString(v.Type) == "guard.Group" {
			for _, name := range v.Names {
				groups[name.Name] = true
			}
		}
		return true
	})
	return groups
}

// goroutineOf is what a node of the syntax starts as a goroutine that is in none of the groups; nil: it does not.
func goroutineOf(n ast.Node, groups map[string]bool) ast.Expr {
	switch n := n.(type) {
	case *ast.GoStmt:
		if lit, ok := n.Call.Fun.(*ast.FuncLit); ok {
			return lit
		}
		return n.Call
	case *ast.CallExpr:
		sel, ok := n.Fun.(*ast.SelectorExpr)
		if ok && sel.Sel.Name == "Go" && len(n.Args) == 1 && !groups[types.ExprString(sel.X)] {
			return n.Args[0]
		}
	}
	return nil
}

// unguardedCall is a call that a goroutine makes outside of a guard, or "".
func unguardedCall(started ast.Expr) (found string) {
	if _, isLiteral := started.(*ast.FuncLit); !isLiteral {
		return types.ExprString(started)
	}
	ast.Inspect(started, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return found == ""
		}
		name := types.ExprString(call.Fun)
		if guarding.MatchString(name) {
			return false
		}
		if _, isLiteral := call.Fun.(*ast.FuncLit); !isLiteral && !harmless.MatchString(name) {
			found = name
		}
		return found == ""
	})
	return found
}
