package ecosystem

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-dev/berth/e2e/ecosystem/tools"
	"github.com/berth-dev/berth/e2e/machine"
)

var (
	berthFlag = flag.String("berth", "../../bin/berth", "Berth's binary.")
	toolsFlag = flag.String("tools", "../../bin/ecosystem", "Where the tools are.")
	logsFlag  = flag.String("logs", "", "Keep the logs of the cluster here; empty: thrown away.")
)

const (
	workers = 2
	// patience is for a machine that is busy with other things.
	patience  = 3 * time.Minute
	pollEvery = 200 * time.Millisecond
)

// shared is the cluster that all is tried on. TestMain sets it, once.
var shared *cluster

func TestMain(m *testing.M) {
	flag.Parse()
	err := start(m)
	if err != nil && !errors.Is(err, machine.ErrSaid) {
		fmt.Fprintln(os.Stderr, "ecosystem:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

// start makes a machine for the cluster and the tools, or, there, runs the tests.
func start(m *testing.M) error {
	if dir := machine.Inside(); dir != "" {
		ctx, stop := machine.Context()
		defer stop()
		return run(ctx, m, dir)
	}
	if err := machine.Missing(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "berth-ecosystem-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // temporary files: the system clears what is left
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return machine.Run(ctx, dir)
}

func run(ctx context.Context, m *testing.M, dir string) error {
	if err := machine.Prepare(ctx, dir); err != nil {
		return fmt.Errorf("prepare the machine: %w", err)
	}
	c, err := startCluster(ctx, dir)
	defer c.end()
	if err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	shared = c
	if m.Run() != 0 {
		return machine.ErrSaid
	}
	return c.Alive()
}

// cluster is the real binary, and a folder with the tools.
type cluster struct {
	*machine.Cluster
	dir, tools string
}

func startCluster(ctx context.Context, dir string) (*cluster, error) {
	c := &cluster{Cluster: &machine.Cluster{}, dir: dir}
	berth, err := filepath.Abs(*berthFlag)
	if err != nil {
		return c, err
	}
	if c.tools, err = filepath.Abs(*toolsFlag); err != nil {
		return c, err
	}
	list, err := images(c.tools)
	if err != nil {
		return c, err
	}
	c.Cluster, err = machine.Start(ctx, machine.Config{Berth: berth, Dir: dir, Workers: workers, Images: list, Pause: pauseImage})
	return c, err
}

func (c *cluster) end() {
	c.Stop()
	if *logsFlag == "" {
		return
	}
	if err := os.MkdirAll(*logsFlag, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "ecosystem: the logs:", err)
		return
	}
	c.KeepLogs(*logsFlag)
}

// tool runs a tool that must succeed, and returns what it said.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := command(t, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// refused runs a tool that must fail, and say something.
func refused(t *testing.T, says, name string, args ...string) {
	t.Helper()
	out, err := command(t, name, args...).CombinedOutput()
	if err == nil {
		t.Fatalf("%s %s succeeded:\n%s", name, strings.Join(args, " "), out)
	}
	contains(t, string(out), says)
}

// command is a tool as an administrator runs it: with a kubeconfig, and a home of its own.
func command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	needTool(t, name)
	cmd := exec.CommandContext(t.Context(), filepath.Join(shared.tools, name), args...)
	cmd.Env = []string{"HOME=" + shared.dir, "PATH=" + os.Getenv("PATH"), "KUBECONFIG=" + shared.Kubeconfig}
	return cmd
}

// namespaced runs kubectl in a namespace.
type namespaced struct {
	t         *testing.T
	namespace string
}

func (k namespaced) on(t *testing.T) namespaced { return namespaced{t, k.namespace} }

func (k namespaced) args(args []string) []string { return append([]string{"-n", k.namespace}, args...) }

// run runs a command that must succeed, and returns what it said.
func (k namespaced) run(args ...string) string {
	k.t.Helper()
	return tool(k.t, "kubectl", k.args(args)...)
}

// input is run for a command that reads.
func (k namespaced) input(text string, args ...string) string {
	k.t.Helper()
	cmd := command(k.t, "kubectl", k.args(args)...)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil {
		k.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// atEnd runs kubectl at the end of a test, when its context has ended.
func atEnd(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), filepath.Join(shared.tools, "kubectl"), append([]string{"--kubeconfig", shared.Kubeconfig}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// told is what kubectl says at the end of a test that failed, be it an error.
func told(args ...string) string {
	cmd := exec.CommandContext(context.Background(), filepath.Join(shared.tools, "kubectl"), append([]string{"--kubeconfig", shared.Kubeconfig}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%v", out, err)
	}
	return string(out)
}

// needTool fails a test whose tool is not there, or is another one.
func needTool(t *testing.T, name string) {
	t.Helper()
	for _, one := range tools.All {
		if one.Name == name {
			if err := one.Check(shared.tools); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no tool is called %s", name)
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Fatalf("%q is not in:\n%s", p, text)
		}
	}
}

// eventually asks until there is no error any more.
func eventually(t *testing.T, what string, ask func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return
		}
		if ended := shared.Alive(); ended != nil {
			t.Fatalf("waiting for %s: %v", what, ended)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, err)
		case <-time.After(pollEvery):
		}
	}
}
