package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// TestDevWithContainers: a development cluster runs containers of images, and throws them away at its end.
func TestDevWithContainers(t *testing.T) {
	d := realContainers(t)
	dir := t.TempDir()
	env := []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "BERTH_CLI_CONFIG=" + filepath.Join(dir, "cli.hcl")}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dev := exec.CommandContext(ctx, binary, "dev", "--servers", "1", "--workers", "2", "--runtime", "cri", "--cri-endpoint", d.Endpoint())
	dev.Env = env
	dev.Cancel = func() error { return dev.Process.Signal(os.Interrupt) }
	out, err := dev.StdoutPipe()
	if err == nil {
		dev.Stderr = os.Stderr
		err = dev.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "Ctrl-C ends it") {
		t.Log(lines.Text())
	}
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
	if err := dev.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(out) // until it ends, which Wait tells of
	if err := dev.Wait(); err != nil {
		t.Errorf("it ended with %v: %s", err, rest)
	}
	if left, err := d.Left(t.Context()); err != nil || left != "" {
		t.Error(fmt.Errorf("left behind: %s (%w)", left, err))
	}
}
