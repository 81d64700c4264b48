package archtest

import (
	"go/ast"
	"go/token"
	"go/types"
	"testing"
)

// TestNamesAreNotBuiltins: whoever reads new(T), min(a, b) or any takes them for the language's.
func TestNamesAreNotBuiltins(t *testing.T) {
	s := load(t)
	for _, f := range s.files {
		if f.Generated {
			continue
		}
		for _, id := range declared(f.AST) {
			if types.Universe.Lookup(id.Name) != nil {
				t.Errorf("%s: %s is the language's own name; call it by what it is", s.line(id.Pos()), id.Name)
			}
		}
	}
}

// declared are the names that a file declares, but for methods and fields, which are asked of something.
func declared(f *ast.File) []*ast.Ident {
	var out []*ast.Ident
	all := func(from []ast.Expr) {
		for _, e := range from {
			if id, ok := e.(*ast.Ident); ok {
				out = append(out, id)
			}
		}
	}
	fields := func(l *ast.FieldList) {
		if l != nil {
			for _, field := range l.List {
				out = append(out, field.Names...)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncType:
			fields(n.TypeParams)
			fields(n.Params)
			fields(n.Results)
		case *ast.FuncDecl:
			if n.Recv == nil {
				out = append(out, n.Name)
			}
			fields(n.Recv)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				all(n.Lhs)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				all([]ast.Expr{n.Key, n.Value})
			}
		case *ast.ValueSpec:
			out = append(out, n.Names...)
		case *ast.TypeSpec:
			out = append(out, n.Name)
			fields(n.TypeParams)
		case *ast.ImportSpec:
			if n.Name != nil {
				out = append(out, n.Name)
			}
		}
		return true
	})
	return out
}
