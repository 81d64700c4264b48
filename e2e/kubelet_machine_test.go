package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	nodes "github.com/berth-dev/berth/e2e/machine"
	"github.com/berth-dev/berth/worker/runtime/cri/containerdtest"
)

// kubeletProgram is Kubernetes' own agent: `make kubelet` builds it.
var kubeletProgram = flag.String("kubelet", "", "the program whose nodes join a cluster of ours; none: the tests of it are left out")

// machine is one for an agent, with a containerd: see testdata/kubelet/machine.sh.
type machine struct {
	name, dir string
	number    int // its network's
	cmd       *exec.Cmd
	done      chan struct{}
}

// needsKubelet leaves a test out where there is no kubelet, or where a machine for one cannot be made.
func needsKubelet(t *testing.T) {
	t.Helper()
	if *kubeletProgram == "" {
		t.Skip("`make kubelet` builds a kubelet and runs this test with it")
	}
	needsContainers(t)
	if why := nodes.Unbounded(); why != "" {
		t.Skipf("a kubelet needs cgroups that bound its pods: %s", why)
	}
	if _, err := os.Stat(*kubeletProgram); err != nil && mayLackContainers() {
		t.Skipf("there is no kubelet: %v", err)
	}
}

// addKubelet starts a machine whose kubelet joins by what `berth token create` writes.
func (c *cluster) addKubelet(t *testing.T, name string) *machine {
	t.Helper()
	m := c.newMachine(t, name, 0)
	if err := os.Mkdir(m.manifests(), 0o755); err != nil {
		t.Fatal(err)
	}
	config := nodes.KubeletConfig(m.dir, filepath.Join(c.Dir, "ca", "ca.pem"), filepath.Join(m.dir, "containerd.sock"), "staticPodPath: "+m.manifests())
	if err := os.WriteFile(filepath.Join(m.dir, "kubelet.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.dir, "bootstrap.conf")
	said := c.berth(t, "token", "create", "--ttl", "1h", "--kubeconfig-file", file, "--server-address", c.Servers()[0].HTTP())
	has(t, "what is said of the token", said, file, "kubelets join")
	program, err := filepath.Abs(*kubeletProgram)
	if err != nil {
		t.Fatal(err)
	}
	c.startMachine(t, m, program, "--config", filepath.Join(m.dir, "kubelet.yaml"), "--bootstrap-kubeconfig", file,
		"--kubeconfig", filepath.Join(m.dir, "kubelet.conf"), "--root-dir", filepath.Join(m.dir, "kubelet"), "--cert-dir", filepath.Join(m.dir, "pki"),
		"--hostname-override", name, "--node-ip", m.address(), "-v", "2")
	return m
}

// newMachine prepares the nth machine of a test.
func (c *cluster) newMachine(t *testing.T, name string, nth int) *machine {
	t.Helper()
	m := &machine{name: name, dir: filepath.Join(c.Dir, name), number: (os.Getpid() + nth) % 250, done: make(chan struct{})}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := containerdtest.Prepare(m.dir, uint16(86<<8|m.number)); err != nil {
		t.Fatal(err)
	}
	return m
}

// address is the machine's own.
func (m *machine) address() string { return fmt.Sprintf("10.87.%d.2", m.number) }

// startMachine starts a machine with an agent.
func (c *cluster) startMachine(t *testing.T, m *machine, agent ...string) {
	t.Helper()
	groups, err := nodes.MakeCgroups(fmt.Sprintf("berth-kubelet-%d-%d", os.Getpid(), m.number))
	t.Cleanup(func() {
		c.eventually(t, "the cgroups of "+m.name+" to be gone", func(context.Context) error { return nodes.RemoveCgroups(groups) })
	})
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"sh", "testdata/kubelet/machine.sh", m.dir, m.name, fmt.Sprint(m.number)}, agent...)
	args = nodes.Enter(groups, []string{"--mount", "--pid", "--fork", "--uts", "--mount-proc", "--kill-child"}, args...)
	m.cmd = exec.Command(args[0], args[1:]...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var out strings.Builder
	m.cmd.Stdout, m.cmd.Stderr = &out, &out
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(m.done)
		_ = m.cmd.Wait() // that it was killed is no news
	}()
	t.Cleanup(func() {
		m.kill()
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(m.dir, "agent.log")) // what is not there is not shown
			t.Logf("machine %s said %q; the log of its agent ends:\n%s", m.name, out.String(), b[max(0, len(b)-8000):])
		}
	})
}

// manifests is the folder of its static pods.
func (m *machine) manifests() string { return filepath.Join(m.dir, "manifests") }

// kill is a loss of power.
func (m *machine) kill() {
	_ = m.cmd.Process.Kill() // it may have ended
	<-m.done
}
