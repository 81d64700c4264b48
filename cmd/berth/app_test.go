package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/config"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/ports"
)

func TestMain(m *testing.M) {
	silenceLibraries()
	os.Exit(m.Run())
}

// exited is how a command of kubectl ends in a test.
type exited int

// result is what a person sees of a call.
type result struct {
	out, errOut string
	status      int
}

// berth runs the binary's code in this process, with a home directory of its own.
func berth(t *testing.T, home string, args ...string) (res result) {
	t.Helper()
	return berthWith(t, home, nil, args...)
}

func berthWith(t *testing.T, home string, prepare func(*app), args ...string) (res result) {
	t.Helper()
	var out, errOut bytes.Buffer
	a := &app{
		in: strings.NewReader(""), out: &out, errOut: &errOut,
		getenv: func(k string) string { return map[string]string{"HOME": home}[k] },
		exit:   func(code int) { panic(exited(code)) },
		// Done once by TestMain: goroutines of an earlier call may still be logging.
		silence: func() {},
	}
	if prepare != nil {
		prepare(a)
	}
	defer func() {
		if p := recover(); p != nil {
			code, ok := p.(exited)
			if !ok {
				panic(p)
			}
			res.status = int(code)
		}
		res.out, res.errOut = out.String(), errOut.String()
	}()
	res.status = a.run(args)
	return res
}

func closedAddress(t *testing.T) string {
	t.Helper()
	claim, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(claim.Release)
	return "https://" + claim.Addr(0)
}

// apiServer is just enough of an API for `get pods`.
func apiServer() http.Handler {
	answers := map[string]string{
		"/version": `{"major":"1","minor":"36","gitVersion":"v1.36.3"}`,
		"/api":     `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis":    `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		"/api/v1":  `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get","list","watch"]}]}`,
		"/api/v1/namespaces/web/pods": `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"columnDefinitions":[{"name":"Name","type":"string"},{"name":"Status","type":"string"}],` +
			`"rows":[{"cells":["front","Running"],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"front","namespace":"web"}}}]}`,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			body = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"there is no ` + r.URL.Path + `"}`
		}
		io.WriteString(w, body)
	})
}

// cluster is a server with a CA, and a home directory whose context reaches it
// after an address at which nobody listens.
func cluster(t *testing.T) (home string) {
	t.Helper()
	home = t.TempDir()
	if res := berth(t, home, "tls", "ca", "-d", home); res.status != 0 {
		t.Fatal(res)
	}
	for _, args := range [][]string{{"server", "s1"}, {"client", "ada", "--group", "ops"}} {
		if res := berth(t, home, append([]string{"tls", args[0], "-d", home}, args[1:]...)...); res.status != 0 {
			t.Fatal(res)
		}
	}
	source, err := pki.Open(pki.Files{
		CA: filepath.Join(home, pki.CAFile), Cert: filepath.Join(home, "server-s1.pem"), Key: filepath.Join(home, "server-s1-key.pem"),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(apiServer())
	if s.TLS, err = source.ServerConfig(0); err != nil {
		t.Fatal(err)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	err = config.WriteContext(filepath.Join(home, ".config", "berth", "cli.hcl"), config.Context{
		Name: "test", Addresses: []string{closedAddress(t), s.URL}, Namespace: "web",
		TLS: &config.ClientTLS{
			CAFile:   config.Path(filepath.Join(home, pki.CAFile)),
			CertFile: config.Path(filepath.Join(home, "client-ada.pem")), KeyFile: config.Path(filepath.Join(home, "client-ada-key.pem")),
		},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	return home
}

func TestKubectlGoesToTheServerThatIsUp(t *testing.T) {
	home := cluster(t)
	res := berth(t, home, "get", "pods")
	if want := "NAME    STATUS\nfront   Running\n"; res.out != want || res.status != 0 {
		t.Errorf("want %q, got %+v", want, res)
	}
	unserved := "error: the server doesn't have a resource type \"ghosts\"\nBerth does not serve it; \"berth api-resources\" lists what it serves\n"
	if res := berth(t, home, "get", "ghosts"); res.status != 1 || res.errOut != unserved {
		t.Errorf("unknown resource: %+v", res)
	}
	res = berth(t, home, "version", "-o", "json")
	var v versions
	if err := json.Unmarshal([]byte(res.out), &v); err != nil || v.Server != "v1.36.3" || v.Berth == "" || v.API == "" || res.status != 0 {
		t.Errorf("version: %+v, %v", res, err)
	}
}

func TestSentencesAndStatuses(t *testing.T) {
	home := t.TempDir()
	broken := t.TempDir()
	dir := filepath.Join(broken, ".config", "berth")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cli.hcl"), []byte("context \"a\" {\n  adresses = []\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(home, "pod.yaml")
	if err := os.WriteFile(manifest, []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	down := closedAddress(t)
	noServer := "error: no Berth server answers at " + down + ": connection refused\n"
	inFile := filepath.Join(dir, "cli.hcl") + `:2: unknown option "context.a.adresses"; did you mean "addresses"?` + "\n"
	tests := []struct {
		name, home string
		args       []string
		errOut     string
		status     int
	}{
		{"no server, kubectl's verb", home, []string{"get", "pods", "--addresses", down}, noServer, 1},
		{"no server, kubectl's verb with a manifest", home, []string{"apply", "-f", manifest, "--addresses", down}, noServer, 1},
		{"no server, own verb", home, []string{"queue", "--addresses", down}, noServer, 1},
		{"no server, operator", home, []string{"operator", "verify", "--addresses", down}, noServer, 1},
		{"unknown context", home, []string{"get", "pods", "--context", "x"}, `error: unknown context "x": ` + home + "/.config/berth/cli.hcl has no contexts\n", 1},
		{"broken file, own verb", broken, []string{"members"}, "error: " + inFile, 1},
		{"broken file, kubectl's verb", broken, []string{"get", "pods"}, "error: " + inFile, 1},
		{"unknown command", home, []string{"que"}, "error: unknown command \"que\" for \"berth\"\n\nDid you mean this?\n\tqueue\n\trun\n\n", 2},
		{"unknown flag", home, []string{"queue", "--al"}, "error: unknown flag: --al\nSee 'berth queue --help' for usage.\n", 2},
		{"missing argument", home, []string{"why"}, "error: accepts 1 arg(s), received 0\nSee 'berth why --help' for usage.\n", 2},
		{"missing subcommand", home, []string{"operator", "raft"}, "error: berth operator raft needs one of: list-peers, remove-peer\nSee 'berth operator raft --help' for usage.\n", 2},
		{"wrong output", home, []string{"version", "-o", "wide"}, "error: output \"wide\" is not known; it can be table, json or yaml\nSee 'berth version --help' for usage.\n", 2},
		{"no days", home, []string{"tls", "ca", "-d", home, "--days", "0"}, "error: --days must be at least 1\nSee 'berth tls ca --help' for usage.\n", 2},
		{"no CA", home, []string{"tls", "worker", "w1", "-d", home}, "error: no CA in " + home + " (make one with `berth tls ca`): open " + home + "/ca.pem: no such file or directory\n", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := berth(t, tt.home, tt.args...)
			if res.errOut != tt.errOut || res.status != tt.status {
				t.Errorf("want %d and\n%s\ngot %d and\n%s", tt.status, tt.errOut, res.status, res.errOut)
			}
		})
	}
	res := berth(t, home, "version", "--addresses", down)
	if res.status != 0 || !strings.HasPrefix(res.out, "Berth: ") || "error: "+res.errOut != noServer {
		t.Errorf("a version without a server: %+v", res)
	}
}

// A flag of ours that a mounted command has as well would change its meaning.
func TestGlobalFlagsCollideWithNone(t *testing.T) {
	var a *app
	berthWith(t, t.TempDir(), func(b *app) { a = b }, "help")
	root := a.root()
	seen := 0
	global := root.PersistentFlags()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		seen++
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if g := global.Lookup(f.Name); g != nil && g != f {
				t.Errorf("%s has a flag --%s of its own", c.CommandPath(), f.Name)
			}
			if f.Shorthand == "" {
				return
			}
			if g := global.ShorthandLookup(f.Shorthand); g != nil && g.Name != f.Name {
				t.Errorf("%s uses -%s for --%s, and we for --%s", c.CommandPath(), f.Shorthand, f.Name, g.Name)
			}
		})
		if text := c.Use + c.Short + c.Long + c.Example; strings.Contains(text, "kubectl ") {
			t.Errorf("the help of %s speaks of kubectl", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	for _, c := range root.Commands() {
		walk(c)
	}
	if seen < 60 {
		t.Errorf("only %d commands are mounted", seen)
	}
}

func TestInspectSnapshot(t *testing.T) {
	var buf bytes.Buffer
	s := fsm.NewState()
	if err := s.View().Write(&buf); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "berth.snap")
	if err := os.WriteFile(file, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	res := berth(t, t.TempDir(), "operator", "snapshot", "inspect", file)
	if res.status != 0 || !strings.Contains(res.out, s.View().Digest()) {
		t.Errorf("inspect: %+v", res)
	}
	buf.Bytes()[buf.Len()-1] ^= 1
	if err := os.WriteFile(file, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	res = berth(t, t.TempDir(), "operator", "snapshot", "inspect", file)
	if res.status != 1 || !strings.HasPrefix(res.errOut, "error: snapshot "+file+": ") {
		t.Errorf("inspect of a damaged file: %+v", res)
	}
}

// fakeAgent is an agent that does nothing until it is ended.
type fakeAgent struct {
	fatal   chan error
	stopErr error
	stopped bool
}

func (f *fakeAgent) Fatal() <-chan error { return f.fatal }

func (f *fakeAgent) Stop(context.Context) error {
	f.stopped = true
	return f.stopErr
}

func serverFile(t *testing.T) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	file = filepath.Join(dir, "berth.hcl")
	if err := os.WriteFile(file, []byte("name = \"s1\"\ndata_dir = \"data\"\nlog_level = \"error\"\nserver { enabled = true }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, file
}

func TestAgent(t *testing.T) {
	dir, file := serverFile(t)
	failing := func() *fakeAgent {
		f := &fakeAgent{fatal: make(chan error, 1)}
		f.fatal <- errors.New("no space left on device")
		return f
	}
	start := func(f *fakeAgent, err error) func(*app) {
		return func(a *app) {
			a.startAgent = func(_ context.Context, c agent.Config) (runningAgent, error) {
				if c.Name != "s1" || c.Server == nil || c.Worker != nil || c.DataDir != filepath.Join(dir, "data") {
					t.Errorf("the agent was started with %+v", c)
				}
				return f, err
			}
		}
	}
	const ended = "error: the agent had to end: no space left on device\n"
	tests := []struct {
		name   string
		start  func(*app)
		args   []string
		status int
		errOut string
	}{
		{"file", start(failing(), nil), []string{"-config", file}, 1, ended},
		{"one word", start(failing(), nil), []string{"-config=" + file}, 1, ended},
		{"two dashes and a directory", start(failing(), nil), []string{"--config", dir}, 1, ended},
		{"does not start", start(nil, errors.New("port in use")), []string{"-config", file}, 1, "error: starting the agent: port in use\n"},
		{"no configuration", start(nil, nil), nil, 2, "error: -config is missing: where is the agent's configuration?\nSee 'berth agent --help' for usage.\n"},
		{"no file", start(nil, nil), []string{"-config", file + "x"}, 1, "error: " + file + "x: there is no such file or directory\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := berthWith(t, dir, tt.start, append([]string{"agent"}, tt.args...)...)
			if res.status != tt.status || res.errOut != tt.errOut {
				t.Errorf("want %d and\n%s\ngot %d and\n%s", tt.status, tt.errOut, res.status, res.errOut)
			}
		})
	}
}

func TestAgentEndsWithASignal(t *testing.T) {
	_, file := serverFile(t)
	for _, want := range []error{nil, errors.New("a pod is stuck")} {
		f := &fakeAgent{stopErr: want}
		ctx, cancel := context.WithCancel(t.Context())
		a := &app{errOut: io.Discard, getenv: func(string) string { return "" }, startAgent: func(context.Context, agent.Config) (runningAgent, error) {
			cancel()
			return f, nil
		}}
		if err := a.runAgent(ctx, []string{file}, func(*config.Config) error { return nil }); !errors.Is(err, want) || !f.stopped {
			t.Errorf("want %v and a stopped agent, got %v", want, err)
		}
	}
}

func TestAdvertise(t *testing.T) {
	cidr := func(s string) net.Addr {
		ip, n, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		n.IP = ip
		return n
	}
	machine := []net.Addr{cidr("127.0.0.1/8"), cidr("203.0.113.5/24"), cidr("10.1.2.3/8"), cidr("192.168.0.9/24")}
	tests := []struct {
		bind, advertise string
		machine         []net.Addr
		want            string
	}{
		{"127.0.0.1", "", machine, "127.0.0.1"},
		{"10.1.2.3", "", machine, "10.1.2.3"},
		{"0.0.0.0", "203.0.113.5", machine, "203.0.113.5"},
		{"0.0.0.0", "", machine, "10.1.2.3"},
		{"::", "", machine[:2], ""},
	}
	for _, tt := range tests {
		c := config.Default()
		c.BindAddr, c.AdvertiseAddr = tt.bind, tt.advertise
		got, err := advertise(c, tt.machine)
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("bind %s, advertise %q: want %q, got %q, %v", tt.bind, tt.advertise, tt.want, got, err)
		}
	}
}

// TestWaitIsTaken: waiting for a leader is not called --wait, because commands have one of their own that waits for objects; who
// looks for it finds the other.
func TestWaitIsTaken(t *testing.T) {
	home := t.TempDir()
	for _, command := range []string{"delete", "apply", "replace"} {
		if res := berth(t, home, command, "--help"); !strings.Contains(res.out, "--wait=") {
			t.Errorf("berth %s has no --wait of its own any more: it could mean the servers", command)
		}
	}
	if res := berth(t, home, "options"); !strings.Contains(res.out, "--keep-trying") || !strings.Contains(res.out, "(--wait, of some commands, is kubectl's") {
		t.Errorf("options: %s", res.out)
	}
}
