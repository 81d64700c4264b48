package fsm

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestLogFormatListsEveryCommand keeps the table in docs/log-format.md equal to
// the registry, and what it says of a command equal to the first sentence of
// the command's comment.
func TestLogFormatListsEveryCommand(t *testing.T) {
	const begin, end = "fills it in -->\n", "<!-- end of commands -->"
	path := filepath.Join("..", "docs", "log-format.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("%s has no table of commands", path)
	}
	got, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s: the table of commands has no end", path)
	}
	want := commandTable(t)
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("%s does not tell what the registry says; run go test -rewrite.\nthere:\n%s\nhere:\n%s", path, got, want)
	}
}

func commandTable(t *testing.T) string {
	t.Helper()
	out := "| number | command | since | what it does |\n|---|---|---|---|\n"
	for _, r := range commands {
		name := reflect.TypeOf(r.New()).Elem().Name()
		out += fmt.Sprintf("| %d | `%s` | %d | %s |\n", r.Number, name, r.Since, firstSentence(t, name))
	}
	return out
}

func firstSentence(t *testing.T, command string) string {
	t.Helper()
	path := "cmd_" + snake(command) + ".go"
	parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatalf("command %s has no file of its own: %v", command, err)
	}
	for _, d := range parsed.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE || g.Specs[0].(*ast.TypeSpec).Name.Name != command {
			continue
		}
		if !strings.Contains(g.Doc.Text(), "\nRefuses") {
			t.Errorf("%s: the comment does not say what the command refuses", path)
		}
		sentence, _, _ := strings.Cut(strings.ReplaceAll(g.Doc.Text(), "\n", " "), ". ")
		return strings.TrimPrefix(strings.TrimSpace(sentence), command+" ")
	}
	t.Fatalf("%s does not define %s", path, command)
	return ""
}
