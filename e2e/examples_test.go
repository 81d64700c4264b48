package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The examples are what they say: three servers and a worker of these files, as
// the units start them, with the usual ports, run the manifests. Only addresses
// and directories are other ones.
func TestExamples(t *testing.T) {
	dir, err := os.MkdirTemp(root, "examples-")
	if err != nil {
		t.Fatal(err)
	}
	x := &examples{dir: dir, net: fmt.Sprintf("127.%d.%d", 1+rand.IntN(250), rand.IntN(250)), env: []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}}
	t.Cleanup(func() { reap(dir) })
	x.certificates(t)
	x.start(t)
	x.env = append(x.env, "BERTH_CLI_CONFIG="+x.file(t, "cluster/cli.hcl", "cli"))
	berth := func(args ...string) string {
		t.Helper()
		r := run(t, x.env, "", args...)
		if r.code != 0 {
			t.Fatalf("berth %v: exit status %d\n%s\n%s", args, r.code, r.err, x.logs())
		}
		return r.out
	}
	x.eventually(t, "the node", "worker-1   Ready", "get", "nodes")
	berth("apply", "-f", "../examples/manifests/classes.yaml")
	berth("apply", "-f", "../examples/manifests/batch.yaml")
	berth("wait", "--for=condition=Ready", "pod", "-l", "app=batch", "--timeout=100s")
	x.eventually(t, "the work to go on", "batch 2", "logs", "batch-1")
	has(t, "plan", berth("plan", "-f", "../examples/manifests/urgent.yaml"), "urgent", "worker-1", "batch-")
	berth("apply", "-f", "../examples/manifests/urgent.yaml")
	berth("wait", "--for=condition=Ready", "pod/urgent", "--timeout=100s")
	has(t, "logs", berth("logs", "urgent"), "running at ")
	has(t, "preemptions", berth("preemptions"), "urgent", "batch-")
	has(t, "list-peers", berth("operator", "raft", "list-peers"), "server-1", "server-2", "server-3")
	berth("operator", "verify")
	berth("delete", "pods", "--all", "--grace-period=1")
}

// examples is a cluster of the examples' files.
type examples struct {
	dir, net string
	env      []string
	key      string
}

// certificates are made as docs/operations.md says.
func (x *examples) certificates(t *testing.T) {
	t.Helper()
	tls := filepath.Join(x.dir, "tls")
	must := func(args ...string) string {
		t.Helper()
		r := run(t, x.env, "", args...)
		if r.code != 0 {
			t.Fatalf("berth %v: %s", args, r.err)
		}
		return strings.TrimSpace(r.out)
	}
	must("tls", "ca", "-d", tls)
	for i := 1; i <= 3; i++ {
		must("tls", "server", fmt.Sprintf("server-%d", i), "--ip", fmt.Sprintf("%s.%d", x.net, i), "-d", tls)
	}
	must("tls", "worker", "worker-1", "-d", tls)
	must("tls", "client", "ada", "--group", "system:masters", "-d", tls)
	x.key = must("operator", "gossip-key")
}

// file copies an example with this cluster's addresses and directories.
func (x *examples) file(t *testing.T, example, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../examples", example))
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(x.dir, name+".hcl")
	replaced := strings.NewReplacer("10.0.0.", x.net+".", "/etc/berth/tls", filepath.Join(x.dir, "tls"),
		"/var/lib/berth", filepath.Join(x.dir, name), "make one with: berth operator gossip-key", x.key).Replace(string(text))
	if err := os.WriteFile(out, []byte(replaced), 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

func (x *examples) start(t *testing.T) {
	t.Helper()
	for i := 1; i <= 3; i++ {
		name := fmt.Sprintf("server-%d", i)
		x.agent(t, "berth-server.service", name, x.file(t, "cluster/"+name+".hcl", name))
	}
	// A machine of a known size, so that the urgent pod has to make room, and that does not run short of anything.
	size := filepath.Join(x.dir, "size.hcl")
	if err := os.WriteFile(size, []byte("worker {\n  capacity { cpu = \"2500m\" }\n  "+ample+"\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	x.agent(t, "berth-worker.service", "worker-1", x.file(t, "cluster/worker.hcl", "worker-1"), "-config", size)
}

// agent runs what a unit says.
func (x *examples) agent(t *testing.T, unit, name, config string, more ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../examples/systemd", unit))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(unit, "worker") != strings.Contains(string(text), "\nKillMode=process\n") {
		t.Errorf("%s: KillMode=process is what keeps pods alive, and the worker's alone", unit)
	}
	_, command, _ := strings.Cut(string(text), "\nExecStart=")
	command, _, _ = strings.Cut(command, "\n")
	args := strings.Fields(command)
	if len(args) != 4 || args[0] != "/usr/local/bin/berth" || !strings.HasPrefix(args[3], "/etc/berth/") {
		t.Fatalf("%s starts %q", unit, command)
	}
	args[3] = config
	log, err := os.Create(filepath.Join(x.dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the child has its own
	cmd := exec.Command(binary, append(args[1:], more...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		late := time.AfterFunc(stopGrace, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		_ = cmd.Wait() // as above
	})
}

// eventually asks the command line until it prints what is awaited.
func (x *examples) eventually(t *testing.T, what, want string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		r := run(t, x.env, "", args...)
		if strings.Contains(r.out, want) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s: berth %v says\n%s%s\n%s", what, args, r.out, r.err, x.logs())
		case <-time.After(10 * pollEvery):
		}
	}
}

func (x *examples) logs() string {
	files, _ := filepath.Glob(filepath.Join(x.dir, "*.log")) // the pattern is good
	var out strings.Builder
	for _, f := range files {
		text, _ := os.ReadFile(f) // what can not be read is not shown
		fmt.Fprintf(&out, "%s ends:\n%s\n", filepath.Base(f), text[max(0, len(text)-3000):])
	}
	return out.String()
}
