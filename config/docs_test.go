package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// row is a line of a table whose first cell is an option.
type row struct{ cells []string }

var optionRow = regexp.MustCompile("^\\| `([a-z_.]+)` \\|")

// documented reads the option tables below the given headline, up to the
// headline that ends it.
func documented(t *testing.T, from, to string) map[string]row {
	t.Helper()
	data, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(data), from+"\n")
	if !ok {
		t.Fatalf("docs/configuration.md has no %q", from)
	}
	if to != "" {
		text, _, _ = strings.Cut(text, to+"\n")
	}
	rows := map[string]row{}
	for line := range strings.SplitSeq(text, "\n") {
		m := optionRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if _, twice := rows[m[1]]; twice {
			t.Errorf("%s is documented twice", m[1])
		}
		var cells []string
		for c := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(c))
		}
		rows[m[1]] = row{cells}
	}
	return rows
}

// typeNames are the words of the documentation for the types of the code.
var typeNames = map[reflect.Type]string{
	reflect.TypeFor[string]():              "string",
	reflect.TypeFor[bool]():                "bool",
	reflect.TypeFor[int]():                 "number",
	reflect.TypeFor[Path]():                "path",
	reflect.TypeFor[Duration]():            "duration",
	reflect.TypeFor[Quantity]():            "amount",
	reflect.TypeFor[[]string]():            "list of strings",
	reflect.TypeFor[map[string]string]():   "map of strings",
	reflect.TypeFor[map[string]Quantity](): "map of amounts",
	reflect.TypeFor[map[string]Duration](): "map of durations",
}

// leaves calls f for every option below v with its full name.
func leaves(v reflect.Value, prefix string, f func(name string, v reflect.Value)) {
	for _, o := range optionsOf(v.Type()) {
		field := v.Field(o.index)
		switch o.kind {
		case "block":
			leaves(field.Elem(), prefix+o.name+".", f)
		case "optional":
			f(prefix+o.name, field)
		}
	}
}

// inHCL writes a default as the documentation does.
func inHCL(v reflect.Value) string {
	switch v.Kind() {
	case reflect.String:
		return fmt.Sprintf("`%q`", v.String())
	case reflect.Slice:
		var items []string
		for i := range v.Len() {
			items = append(items, fmt.Sprintf("%q", v.Index(i).String()))
		}
		return "`[" + strings.Join(items, ", ") + "]`"
	case reflect.Map:
		return "`{}`"
	}
	return fmt.Sprintf("`%v`", v.Interface())
}

func TestEveryOptionIsDocumented(t *testing.T) {
	rows := documented(t, "## The agent", "## The command line")
	seen := map[string]bool{}
	leaves(reflect.ValueOf(Default()).Elem(), "", func(name string, v reflect.Value) {
		seen[name] = true
		r, ok := rows[name]
		if !ok {
			t.Errorf("docs/configuration.md does not have the option %s", name)
			return
		}
		if want := typeNames[v.Type()]; r.cells[1] != want {
			t.Errorf("%s: the type is documented as %q and is %q", name, r.cells[1], want)
		}
		// An empty string as the default is explained in words.
		if want := inHCL(v); !(v.Kind() == reflect.String && v.Len() == 0) && r.cells[2] != want {
			t.Errorf("%s: the default is documented as %s and is %s", name, r.cells[2], want)
		}
		if len(r.cells) != 4 || len(r.cells[3]) < 10 {
			t.Errorf("%s: it is not said what it means", name)
		}
	})
	for name := range rows {
		if !seen[name] {
			t.Errorf("docs/configuration.md has %s, which is no option", name)
		}
	}
}

func TestEveryCLIOptionIsDocumented(t *testing.T) {
	rows := documented(t, "## The command line", "")
	seen := map[string]bool{}
	sample := &CLI{}
	for _, o := range optionsOf(reflect.TypeFor[CLI]()) {
		if o.kind != "block" {
			seen[o.name] = true
		}
	}
	sample.Contexts = []*Context{{TLS: &ClientTLS{}}}
	leaves(reflect.ValueOf(sample.Contexts[0]).Elem(), "context.", func(name string, _ reflect.Value) { seen[name] = true })
	for name := range seen {
		if _, ok := rows[name]; !ok {
			t.Errorf("docs/configuration.md does not have the command line's option %s", name)
		}
	}
	for name := range rows {
		if !seen[name] {
			t.Errorf("docs/configuration.md has %s, which is no option of the command line", name)
		}
	}
}

// The examples of the documentation must be what Load accepts, but for the files
// and the key, which are somebody else's.
func TestDocumentedExamplesLoad(t *testing.T) {
	data, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := strings.Split(string(data), "```hcl\n")[1:]
	if len(examples) != 3 {
		t.Fatalf("want two examples of an agent and one of the command line, found %d", len(examples))
	}
	for i, e := range examples {
		text, _, _ := strings.Cut(e, "```")
		text = strings.NewReplacer(`"..."`, `"AAAAAAAAAAAAAAAAAAAAAA=="`, "/etc/berth/ca.pem", "ca.pem",
			"/etc/berth/server-server-1.pem", "cert.pem", "/etc/berth/server-server-1-key.pem", "key.pem", "tokens.csv", "ca.pem").Replace(text)
		if i < 2 {
			if got := problemsOf(t, text); got != "" {
				t.Errorf("example %d: %s", i+1, got)
			}
			continue
		}
		if _, err := LoadCLI(write(t, map[string]string{"cli.hcl": text}) + "/cli.hcl"); err != nil {
			t.Error(err)
		}
	}
}
