package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/berth-dev/berth"

// file is one parsed source file of the module.
type file struct {
	Path      string // from the module's root, with slashes
	Dir       string
	Lines     int
	Generated bool
	Test      bool
	AST       *ast.File
}

func (f *file) imports() []string {
	var out []string
	for _, i := range f.AST.Imports {
		out = append(out, strings.Trim(i.Path.Value, `"`))
	}
	return out
}

// source is the whole module, but for what belongs to another one and for what
// the go tool leaves out as well.
type source struct {
	fset  *token.FileSet
	files []*file
}

func load(t *testing.T) *source {
	t.Helper()
	s, err := readOnce()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// readOnce reads the module once for all tests, which only look at it.
var readOnce = sync.OnceValues(read)

func read() (*source, error) {
	root, err := filepath.Abs("..")
	if err != nil {
		return nil, err
	}
	s := &source{fset: token.NewFileSet()}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, rel := d.Name(), strings.TrimPrefix(filepath.ToSlash(strings.TrimPrefix(p, root)), "/")
		if d.IsDir() {
			if rel == "" {
				return nil
			}
			_, err := os.Stat(filepath.Join(p, "go.mod"))
			if err == nil || name == "testdata" || name == "node_modules" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(s.fset, rel, text, parser.ParseComments)
		if err != nil {
			return err
		}
		s.files = append(s.files, &file{
			Path: rel, Dir: path.Dir(rel), Lines: strings.Count(string(text), "\n"),
			Generated: ast.IsGenerated(parsed), Test: strings.HasSuffix(name, "_test.go"), AST: parsed,
		})
		return nil
	})
	return s, err
}

func (s *source) line(p token.Pos) string { return s.fset.Position(p).String() }

// within says whether a directory is one of the given or below it.
func within(dir string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return dir == r || strings.HasPrefix(dir, r+"/") })
}

// qualified is a call or a mention like time.Now, with the import path of what
// it names in place of the local name.
func (f *file) qualified(n ast.Node) (importPath, name string, ok bool) {
	sel, isSelector := n.(*ast.SelectorExpr)
	if !isSelector {
		return "", "", false
	}
	id, isIdent := sel.X.(*ast.Ident)
	if !isIdent || id.Obj != nil {
		return "", "", false
	}
	for _, i := range f.AST.Imports {
		p := strings.Trim(i.Path.Value, `"`)
		local := path.Base(p)
		if i.Name != nil {
			local = i.Name.Name
		}
		if local == id.Name {
			return p, sel.Sel.Name, true
		}
	}
	return "", "", false
}
