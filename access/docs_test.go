package access

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the table into docs/security.md")

const (
	document = "../docs/security.md"
	begin    = "<!-- the table, written by `go test ./access -rewrite` -->\n"
	end      = "<!-- the table ends -->\n"
)

// TestDocumentation: docs/security.md prints the table.
func TestDocumentation(t *testing.T) {
	data, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	printed, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", document)
	}
	want := markdown()
	if printed == want {
		return
	}
	if !*rewrite {
		t.Fatalf("%s prints another table; run go test ./access -rewrite\nwant:\n%s", document, want)
	}
	if err := os.WriteFile(document, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func markdown() string {
	var b strings.Builder
	b.WriteString("\n| who | may | on | for |\n|---|---|---|---|\n")
	for _, r := range Rules() {
		who, verbs, on := "`"+r.Group+"`", strings.Join(r.Verbs, ", "), slices.Concat(r.Resources, r.Paths, r.Methods)
		if r.Group == Everybody {
			who = "everybody"
		}
		if verbs == "*" {
			verbs = "everything"
		}
		if r.Methods != nil {
			verbs = "call"
		}
		for i := range on {
			on[i] = "`" + on[i] + "`"
		}
		objects := strings.Join(on, ", ")
		if objects == "`*`" {
			objects = "everything"
		}
		if r.OwnNamespaces {
			objects += "; not in `" + strings.Join(SystemNamespaces(), "`, `") + "`"
		}
		if r.Home {
			objects += "; in its own namespace"
		}
		if r.Before {
			who += ", without roles"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", who, verbs, objects, r.Why)
	}
	b.WriteString("\n")
	return b.String()
}
