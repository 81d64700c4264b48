package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// TestDevWithContainers: a development cluster runs containers of images, and throws them away at its end.
func TestDevWithContainers(t *testing.T) {
	d := realContainers(t)
	dir := t.TempDir()
	env := []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "BERTH_CLI_CONFIG=" + filepath.Join(dir, "cli.hcl")}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dev := startDev(ctx, t, env, "--servers", "1", "--workers", "2", "--runtime", "cri", "--cri-endpoint", d.Endpoint())
	berth := func(args ...string) string {
		t.Helper()
		r := run(t, env, "", args...)
		if r.code != 0 {
			t.Errorf("berth %v: exit status %d: %s", args, r.code, r.err)
		}
		return r.out
	}
	manifest, err := os.ReadFile("../examples/manifests/container.yaml")
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "container.yaml")
	if err := os.WriteFile(own, []byte(strings.ReplaceAll(string(manifest), "docker.io/library/busybox:1.37", daemontest.Busybox)), 0o600); err != nil {
		t.Fatal(err)
	}
	berth("apply", "-f", own)
	berth("rollout", "status", "deployment/hello", "--timeout=60s")
	has(t, "logs", berth("logs", "deployment/hello"), "serving")
	has(t, "exec", berth("exec", "deployment/hello", "--", "wget", "-q", "-O", "-", "127.0.0.1:8080"), "hello from hello-")
	if running, err := d.Running(ctx); err != nil || len(running) != 2*2 { // a sandbox and a container each
		t.Errorf("there run %v, %v", running, err)
	}
	dev.interrupt(t)
	dev.ended(t)
	if left, err := d.Left(t.Context()); err != nil || left != "" {
		t.Error(fmt.Errorf("left behind: %s (%w)", left, err))
	}
}

// development is a development cluster in a process of its own.
type development struct {
	*exec.Cmd
	out *bufio.Scanner
	err bytes.Buffer // complete when it has ended
}

// startDev starts one, and returns when it is ready.
func startDev(ctx context.Context, t *testing.T, env []string, args ...string) *development {
	t.Helper()
	d := &development{Cmd: exec.CommandContext(ctx, binary, append([]string{"dev"}, args...)...)}
	d.Env, d.Stderr = env, &d.err
	d.Cancel = func() error { return d.Process.Signal(os.Interrupt) }
	out, err := d.StdoutPipe()
	if err == nil {
		err = d.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	d.out = bufio.NewScanner(out)
	d.says(t, "Ctrl-C ends it")
	return d
}

// says waits for a line.
func (d *development) says(t *testing.T, text string) {
	t.Helper()
	var told []string
	for d.out.Scan() {
		if strings.Contains(d.out.Text(), text) {
			return
		}
		told = append(told, d.out.Text())
	}
	t.Fatalf("it ended and never said %q: %q", text, told)
}

func (d *development) interrupt(t *testing.T) {
	t.Helper()
	if err := d.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}

// ended waits until it has, in good order.
func (d *development) ended(t *testing.T) {
	t.Helper()
	for d.out.Scan() {
	}
	if err := d.Wait(); err != nil {
		t.Errorf("it ended with %v: %s", err, &d.err)
	}
}

// TestDevBesideDev: each development cluster has a context of its own, and leaves the file of contexts as it was; one that is interrupted
// twice ends in good order still, and says so.
func TestDevBesideDev(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "cli.hcl")
	const was = `# what is for good
context "prod" {
  addresses = ["https://prod:1"]
}
`
	if err := os.WriteFile(file, []byte(was), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH"), "BERTH_CLI_CONFIG=" + file}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	data := filepath.Join(dir, "data")
	first := startDev(ctx, t, env, "--servers", "1", "--workers", "1", "--kubeconfig", kubeconfig)
	second := startDev(ctx, t, env, "--servers", "1", "--workers", "0", "--kubeconfig", kubeconfig, "--data-dir", data)
	if r := run(t, env, "", "dev", "--data-dir", data); r.code != 1 || !strings.Contains(r.err, "another berth dev runs in "+data) {
		t.Errorf("a third in the directory of the second: exit status %d: %s", r.code, r.err)
	}
	nodes := func(context string, want int) {
		t.Helper()
		r := run(t, env, "", "get", "nodes", "-o", "name", "--context", context)
		if got := len(strings.Fields(r.out)); r.code != 0 || got != want {
			t.Errorf("context %q: exit status %d, %d nodes: %s", context, r.code, got, r.err)
		}
	}
	nodes("berth-dev", 1)
	nodes("berth-dev-2", 0)
	nodes("", 0) // the one that came last
	contexts := func(want ...string) {
		t.Helper()
		c, err := clientcmd.LoadFromFile(kubeconfig)
		if err != nil || !slices.Equal(slices.Sorted(maps.Keys(c.Contexts)), want) || len(c.Clusters) != len(want) {
			t.Errorf("the kubeconfig has %v, %v; want %q", c, err, want)
		}
	}
	contexts("berth-dev", "berth-dev-2")
	second.interrupt(t)
	second.ended(t)
	nodes("berth-dev", 1)
	if r := run(t, env, "", "--context", "berth-dev", "run", "rests", "--image=none", "--restart=Never", "--command", "--", "sleep", "1000"); r.code != 0 {
		t.Error(r.err)
	}
	if r := run(t, env, "", "--context", "berth-dev", "wait", "pod/rests", "--for=condition=Ready", "--timeout=60s"); r.code != 0 {
		t.Error(r.err)
	}
	first.interrupt(t)
	first.says(t, "Stopping")
	first.interrupt(t)
	first.ended(t)
	has(t, "to the second interrupt", first.err.String(), "Interrupted once more this ends at once")
	contexts("berth-dev-2") // that of the cluster which is kept
	got, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(got), was) || strings.Contains(string(got), `"berth-dev" {`) || !strings.Contains(string(got), `"berth-dev-2" {`) {
		t.Errorf("the file of contexts is now %q, %v", got, err)
	}
}
