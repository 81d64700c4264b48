package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const twoContexts = `
current_context = "prod"

context "prod" {
  addresses = ["10.0.0.1", "10.0.0.2:8443", "http://10.0.0.3:80"]
  namespace = "web"
  output    = "yaml"
  tls {
    ca_file   = "prod/ca.pem"
    cert_file = "prod/cert.pem"
    key_file  = "prod/key.pem"
  }
}

context "test" {
  addresses  = ["127.0.0.1:1"]
  token_file = "token"
}
`

func env(kv ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return func(k string) string { return m[k] }
}

func TestResolve(t *testing.T) {
	dir := write(t, map[string]string{"cli.hcl": twoContexts, "token": "s3cret\n"})
	file := filepath.Join(dir, "cli.hcl")
	inDir := func(name string) string { return filepath.Join(dir, name) }
	prod := Connection{
		Context: "prod", Servers: []string{"https://10.0.0.1:7640", "https://10.0.0.2:8443", "http://10.0.0.3:80"},
		CAFile: inDir("prod/ca.pem"), CertFile: inDir("prod/cert.pem"), KeyFile: inDir("prod/key.pem"),
		Namespace: "web", Output: "yaml",
	}
	with := func(c Connection, change func(*Connection)) Connection { change(&c); return c }
	tests := []struct {
		name  string
		flags Flags
		env   func(string) string
		want  Connection
	}{
		{"current context", Flags{}, env("BERTH_CLI_CONFIG", file), prod},
		{"other context by flag", Flags{CLIConfig: file, Context: "test"}, env(),
			Connection{Context: "test", Servers: []string{"https://127.0.0.1:1"}, Token: "s3cret", Namespace: "default", Output: "table"}},
		{"flag before variable before file", Flags{CLIConfig: file, Namespace: "flag"},
			env("BERTH_NAMESPACE", "variable", "BERTH_OUTPUT", "json", "BERTH_ADDRESSES", "a, b:1"),
			with(prod, func(c *Connection) {
				c.Namespace, c.Output, c.Servers = "flag", "json", []string{"https://a:7640", "https://b:1"}
			})},
		{"nothing verified", Flags{CLIConfig: file}, env("BERTH_SKIP_VERIFY", "true"),
			with(prod, func(c *Connection) { c.SkipVerify, c.CAFile = true, "" })},
		{"flag's context before variable's", Flags{CLIConfig: file, Context: "prod"}, env("BERTH_CONTEXT", "test"), prod},
		{"no file", Flags{}, env("HOME", dir), Connection{Servers: []string{"https://127.0.0.1:7640"}, Namespace: "default", Output: "table"}},
		{"no home", Flags{Addresses: []string{"[::1]"}, Token: "t"}, env(),
			Connection{Servers: []string{"https://[::1]:7640"}, Token: "t", Namespace: "default", Output: "table"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Resolve(tt.flags, tt.env)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*got, tt.want) {
				t.Errorf("want %+v\n got %+v", tt.want, *got)
			}
		})
	}
}

func TestResolveMistakes(t *testing.T) {
	tests := []struct {
		name, file string
		flags      Flags
		want       string
	}{
		{"unknown context", twoContexts, Flags{Context: "stage"}, `unknown context "stage": cli.hcl has prod, test`},
		{"nearly a context", twoContexts, Flags{Context: "tset"}, `unknown context "tset"; did you mean "test"?`},
		{"no contexts", "", Flags{Context: "prod"}, `unknown context "prod": cli.hcl has no contexts`},
		{"unknown current context", "current_context = \"x\"\n", Flags{}, `cli.hcl:1: current_context: unknown context "x": cli.hcl has no contexts`},
		{"address", twoContexts, Flags{Addresses: []string{"ftp://x"}}, `"ftp://x" begins with ftp://; servers speak https`},
		{"address with a path", "context \"a\" {\n  addresses = [\"x/y\"]\n}\n", Flags{}, `cli.hcl:2: context.a.addresses: "x/y" is not the address of a server; write, for example, "10.0.0.1:7640"`},
		{"output", twoContexts, Flags{Output: "yml"}, `output: "yml" is not known; did you mean "yaml"?`},
		{"no label", "context {\n}\n", Flags{}, `cli.hcl:1: block "context" needs one label; write context "name" { ... }`},
		{"unknown option", "context \"a\" {\n  address = []\n}\n", Flags{}, `cli.hcl:2: unknown option "context.a.address"; did you mean "addresses"?`},
		{"same context twice", "context \"a\" {\n}\ncontext \"a\" {\n}\n", Flags{}, `cli.hcl:3: block "context.a" is already at line 1 of this file`},
		{"certificate without key", "context \"a\" {\n  tls {\n    cert_file = \"c\"\n  }\n}\n", Flags{}, `cli.hcl:2: context.a.tls: cert_file and key_file go together; one is missing`},
		{"CA without use", "context \"a\" {\n  tls {\n    ca_file = \"c\"\n    skip_verify = true\n  }\n}\n", Flags{}, `cli.hcl:4: context.a.tls.skip_verify: with it nothing is verified, and ca_file has no use; leave one out`},
		{"two tokens", "context \"a\" {\n  token = \"x\"\n  token_file = \"y\"\n}\n", Flags{}, `cli.hcl:2: context.a.token: token and token_file are both set; leave one out`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := write(t, map[string]string{"cli.hcl": tt.file})
			tt.flags.CLIConfig = filepath.Join(dir, "cli.hcl")
			_, err := Resolve(tt.flags, env())
			if err == nil {
				t.Fatal("no error")
			}
			if got := strings.ReplaceAll(err.Error(), dir+string(filepath.Separator), ""); got != tt.want {
				t.Errorf("want %s\n got %s", tt.want, got)
			}
		})
	}
	if _, err := Resolve(Flags{}, env()); err == nil {
		t.Error("without a home directory and an address nothing can be found, and no error said so")
	}
}

func TestWriteContext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "berth", "cli.hcl")
	dev := Context{Name: "dev", Addresses: []string{"https://127.0.0.1:1"}, TLS: &ClientTLS{CAFile: "/ca.pem", CertFile: "/c.pem", KeyFile: "/k.pem"}}
	if err := WriteContext(file, dev, true); err != nil {
		t.Fatal(err)
	}
	if err := WriteContext(file, Context{Name: "other", Token: "t"}, false); err != nil {
		t.Fatal(err)
	}
	dev.Addresses = []string{"https://127.0.0.1:2", "https://127.0.0.1:3"}
	if err := WriteContext(file, dev, true); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const want = `current_context = "dev"

context "dev" {
  addresses = ["https://127.0.0.1:2", "https://127.0.0.1:3"]
  tls {
    ca_file   = "/ca.pem"
    cert_file = "/c.pem"
    key_file  = "/k.pem"
  }
}

context "other" {
  token = "t"
}
`
	if string(got) != want {
		t.Errorf("want\n%s\ngot\n%s", want, got)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file may hold a token, and is %v, %v", info.Mode(), err)
	}
	c, err := LoadCLI(file)
	if err != nil || c.CurrentContext != "dev" || len(c.Contexts) != 2 {
		t.Errorf("read back %+v, %v", c, err)
	}
}

func TestWriteContextKeepsABrokenFile(t *testing.T) {
	dir := write(t, map[string]string{"cli.hcl": "context {"})
	file := filepath.Join(dir, "cli.hcl")
	var ce *Error
	if err := WriteContext(file, Context{Name: "dev"}, true); !errors.As(err, &ce) {
		t.Errorf("want an *Error, got %v", err)
	}
	if data, _ := os.ReadFile(file); string(data) != "context {" {
		t.Errorf("a file that cannot be read was overwritten with %q", data)
	}
}

// A file that is named is one that is meant.
func TestANamedFileIsThere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cli.hcl")
	var ce *Error
	if _, err := Resolve(Flags{CLIConfig: file}, func(string) string { return "" }); !errors.As(err, &ce) || err.Error() != file+": there is no such file" {
		t.Errorf("got %v", err)
	}
}

func TestRemoveContext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cli.hcl")
	if err := RemoveContext(file, "dev", ""); err != nil {
		t.Errorf("a file that is not there: %v", err)
	}
	for _, name := range []string{"prod", "dev"} {
		if err := WriteContext(file, Context{Name: name, Addresses: []string{"https://" + name + ":1"}}, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveContext(file, "dev", "prod"); err != nil {
		t.Fatal(err)
	}
	cli, err := LoadCLI(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(cli.Contexts) != 1 || cli.Contexts[0].Name != "prod" || cli.CurrentContext != "prod" {
		t.Errorf("left: current %q, %d contexts", cli.CurrentContext, len(cli.Contexts))
	}
	if err := RemoveContext(file, "prod", "gone"); err != nil {
		t.Fatal(err)
	}
	if cli, err = LoadCLI(file); err != nil || cli.CurrentContext != "" || len(cli.Contexts) != 0 {
		t.Errorf("left: %+v, %v", cli, err)
	}
}

// TestAContextComesAndGoes: what somebody has written stays as it was, however often.
func TestAContextComesAndGoes(t *testing.T) {
	for what, was := range map[string]string{
		"nothing": "",
		"a current context": `# where things are for good
current_context = "prod" # not the others

# by token
context "prod" {
  addresses = ["https://prod:1"]
}
`,
	} {
		file := filepath.Join(write(t, map[string]string{"cli.hcl": was}), "cli.hcl")
		for range 3 {
			if err := WriteContext(file, Context{Name: "dev", Addresses: []string{"https://dev:1"}}, true); err != nil {
				t.Fatal(err)
			}
			before := ""
			if was != "" {
				before = "prod"
			}
			if err := RemoveContext(file, "dev", before); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != was {
				t.Errorf("%s: it is now %q, %v", what, got, err)
			}
		}
	}
}
