package archtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// orderComment is what a range over a map in the core has to say, on its line or
// the line before, with the reason.
const orderComment = "// order does not matter: "

// TestMapRangesAreJustified: the order in which Go walks a map differs from
// server to server. Where it can reach the state, a plan or a message, servers
// drift apart; so every such walk in the core says why it cannot.
func TestMapRangesAreJustified(t *testing.T) {
	s := load(t)
	var dirs []string
	for _, f := range s.files {
		if within(f.Dir, core...) && !f.Test && !slices.Contains(dirs, f.Dir) {
			dirs = append(dirs, f.Dir)
		}
	}
	exports := exportData(t, dirs)
	for _, dir := range dirs {
		var files []*file
		var parsed []*ast.File
		for _, f := range s.files {
			if f.Dir == dir && !f.Test {
				files, parsed = append(files, f), append(parsed, f.AST)
			}
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
		config := types.Config{Importer: importer.ForCompiler(s.fset, "gc", exports)}
		if _, err := config.Check(module+"/"+dir, s.fset, parsed, info); err != nil {
			t.Fatalf("type-check %s: %v", dir, err)
		}
		for _, f := range files {
			s.checkRanges(t, f, info)
		}
	}
}

func (s *source) checkRanges(t *testing.T, f *file, info *types.Info) {
	justified := map[int]bool{}
	for _, g := range f.AST.Comments {
		for _, c := range g.List {
			if strings.HasPrefix(c.Text, orderComment) && len(c.Text) > len(orderComment)+5 {
				line := s.fset.Position(c.Pos()).Line
				justified[line], justified[line+1] = true, true
			}
		}
	}
	complain := func(at token.Pos, what string) {
		if p := s.fset.Position(at); !justified[p.Line] {
			t.Errorf("%s: %s: its order differs from server to server; sort it, or say why it does not matter:\n\t%s…", p, what, orderComment)
		}
	}
	sorted := map[ast.Expr]bool{}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt:
			if _, isMap := info.TypeOf(n.X).Underlying().(*types.Map); isMap {
				complain(n.Pos(), "a range over a map")
			}
		case *ast.CallExpr:
			p, name, ok := f.qualified(n.Fun)
			switch {
			case ok && p == "slices" && strings.HasPrefix(name, "Sorted"):
				sorted[n.Args[0]] = true
			case ok && p == "maps" && slices.Contains([]string{"Keys", "Values", "All"}, name) && !sorted[n]:
				complain(n.Pos(), "maps."+name)
			}
		}
		return true
	})
}

// exportData finds what the compiler knows of the packages that these import.
func exportData(t *testing.T, dirs []string) importer.Lookup {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, d := range dirs {
		args = append(args, "./"+d)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	at := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		at[p.ImportPath] = p.Export
	}
	return func(path string) (io.ReadCloser, error) {
		if at[path] == "" {
			return nil, fmt.Errorf("no export data for %s", path)
		}
		return os.Open(at[path])
	}
}
