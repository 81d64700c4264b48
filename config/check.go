package config

import (
	"reflect"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// sources remembers where each option was written: "server.raft.trailing_logs"
// to its range.
type sources struct {
	ranges map[string]hcl.Range
	// first is the file that was read first.
	first string
}

func newSources() *sources { return &sources{ranges: map[string]hcl.Range{}} }

// set tells whether any file has the option.
func (s *sources) set(path string) bool {
	_, ok := s.ranges[path]
	return ok
}

// option is one hcl tag of a struct.
type option struct {
	name  string
	kind  string // "optional", "block" or "label"
	index int
}

func optionsOf(t reflect.Type) []option {
	var out []option
	for i := range t.NumField() {
		name, kind, _ := strings.Cut(t.Field(i).Tag.Get("hcl"), ",")
		if name != "" {
			out = append(out, option{name: name, kind: kind, index: i})
		}
	}
	return out
}

func find(opts []option, name string) (option, bool) {
	for _, o := range opts {
		if o.name == name && o.kind != "label" {
			return o, true
		}
	}
	return option{}, false
}

func names(opts []option) []string {
	var out []string
	for _, o := range opts {
		if o.kind != "label" {
			out = append(out, o.name)
		}
	}
	return out
}

// structOf is the struct behind a block's field: *T, or []*T.
func structOf(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

// checkBody compares a parsed body with the struct that it will be decoded into
// and notes where each option stands. gohcl would refuse the same mistakes, but
// without telling the option's full name and what to write instead.
func (s *sources) checkBody(ps *problems, body *hclsyntax.Body, t reflect.Type, prefix string) {
	opts := optionsOf(t)
	for name, attr := range body.Attributes {
		o, ok := find(opts, name)
		switch {
		case !ok:
			ps.at(attr.NameRange, "unknown option %q%s", prefix+name, suggest(name, names(opts)))
			continue
		case o.kind == "block":
			ps.at(attr.NameRange, "%q is a block; write %s { ... } without the equals sign", prefix+name, name)
			continue
		}
		s.ranges[prefix+name] = attr.SrcRange
		checkValue(ps, prefix+name, attr.Expr, t.Field(o.index).Type)
	}
	seen := map[string]hcl.Range{}
	for _, block := range body.Blocks {
		o, ok := find(opts, block.Type)
		if !ok {
			ps.at(block.TypeRange, "unknown block %q%s", prefix+block.Type, suggest(block.Type, names(opts)))
			continue
		}
		if o.kind != "block" {
			ps.at(block.TypeRange, "%q is not a block; write %s = ...", prefix+block.Type, block.Type)
			continue
		}
		field := t.Field(o.index).Type
		elem := structOf(field)
		path := prefix + block.Type
		if !checkLabels(ps, block, elem, path) {
			continue
		}
		if len(block.Labels) > 0 {
			path += "." + strings.Join(block.Labels, ".")
		}
		if first, twice := seen[path]; twice {
			ps.at(block.TypeRange, "block %q is already at line %d of this file", path, first.Start.Line)
			continue
		}
		seen[path] = block.TypeRange
		s.ranges[path] = block.TypeRange
		s.checkBody(ps, block.Body, elem, path+".")
	}
}

func checkLabels(ps *problems, block *hclsyntax.Block, elem reflect.Type, path string) bool {
	want := 0
	for _, o := range optionsOf(elem) {
		if o.kind == "label" {
			want++
		}
	}
	switch {
	case len(block.Labels) == want:
		return true
	case want == 0:
		ps.at(block.TypeRange, "block %q has no label; write %s { ... }", path, block.Type)
	default:
		ps.at(block.TypeRange, `block %q needs one label; write %s "name" { ... }`, path, block.Type)
	}
	return false
}

// checkValue refuses what is no value of the option's type. Words without quotes HCL takes for variables.
func checkValue(ps *problems, path string, expr hcl.Expression, t reflect.Type) {
	if tr, ok := expr.(*hclsyntax.ScopeTraversalExpr); ok && len(tr.Traversal) == 1 {
		name := path[strings.LastIndexByte(path, '.')+1:]
		ps.at(tr.SrcRange, "the value of %q needs quotes; write %s = %q", path, name, tr.Traversal.RootName())
		return
	}
	v, diags := expr.Value(nil)
	if diags.HasErrors() {
		ps.at(expr.Range(), "the value of %q must be written out: there are no variables and functions", path)
		return
	}
	if gohcl.DecodeExpression(expr, nil, reflect.New(t).Interface()).HasErrors() {
		ps.at(expr.Range(), "the value of %q must be %s, and is a %s", path, wanted(t), v.Type().FriendlyName())
	}
}

// wanted says what is to be written for a type.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Int32:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return `a list, ["...", "..."]`
	case reflect.Map:
		return `pairs, { name = "..." }`
	}
	return "a text in quotes"
}
