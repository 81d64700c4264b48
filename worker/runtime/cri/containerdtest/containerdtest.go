// Package containerdtest starts a containerd of its own for tests: its own root, state, socket, network folder and images.
// It leaves nothing behind. It must never be part of the product, nor touch a containerd that it did not start.
package containerdtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// Missing says what a machine lacks for a daemon; empty: nothing.
func Missing() string {
	if os.Geteuid() != 0 {
		return "root"
	}
	return strings.Join(daemontest.Missing("containerd", "runc", "ctr"), ", ")
}

// program is what containerd's executable and files are called.
const program = "containerd"

// Daemon is a containerd of a test's own.
type Daemon struct {
	*daemontest.Program
	// systemd makes the cgroups of its containers.
	systemd bool
}

// Start starts a daemon over a new directory below parent, and waits until it answers. number tells it from others of the machine
// (daemontest.NewProgram).
func Start(ctx context.Context, parent string, number uint16, options ...func(*Daemon)) (*Daemon, error) {
	p, err := daemontest.NewProgram(parent, program, number)
	if err != nil {
		return nil, err
	}
	d := &Daemon{Program: p}
	for _, option := range options {
		option(d)
	}
	if err := daemontest.Begin(ctx, d, d.configure); err != nil {
		return nil, err
	}
	return d, nil
}

// BySystemd lets systemd make the cgroups of containers.
func BySystemd(d *Daemon) { d.systemd = true }

const configFile = "config.toml"

const config = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/containerd.sock"
[ttrpc]
  address = "%[1]s/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + daemontest.Pause + `"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = %[2]t
  disable_apparmor = %[3]t
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + daemontest.CNIPlugins + `"
    conf_dir = "%[1]s/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = %[4]t
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other]
      runtime_type = "io.containerd.runc.v2"
`

func (d *Daemon) configure() error {
	_, err := os.Stat("/sys/module/apparmor")
	noArmor := os.IsNotExist(err)
	return d.Write(configFile, fmt.Sprintf(config, d.Dir, !daemontest.MayLowerBadness(), noArmor, d.systemd))
}

// Run starts the daemon, again after Kill, and waits until it answers.
func (d *Daemon) Run(ctx context.Context) error {
	return d.Execute(ctx, exec.Command(program, "-c", filepath.Join(d.Dir, configFile)))
}

// ctr is containerd's own client, on what is there by the container runtime interface.
func (d *Daemon) ctr(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ctr", append([]string{"-a", d.Socket(), "-n", "k8s.io"}, args...)...)
}

// RemoveImage removes an image by all its names, and waits until containerd has collected what nobody holds of it.
func (d *Daemon) RemoveImage(ctx context.Context, names ...string) error {
	if out, err := d.ctr(ctx, append([]string{"images", "rm", "--sync"}, names...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("removing images: %w: %s", err, out)
	}
	return nil
}

// Import adds images.
func (d *Daemon) Import(ctx context.Context, images ...*imagepack.Image) error {
	var tar bytes.Buffer
	if err := imagepack.Write(&tar, images...); err != nil {
		return err
	}
	cmd := d.ctr(ctx, "images", "import", "-")
	cmd.Stdin = &tar
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("importing images: %w: %s", err, out)
	}
	return nil
}

// Prepare writes into a directory what Start starts a daemon with, for one that somebody else starts, on a network of its own:
// config.toml, and images.tar to be imported.
func Prepare(dir string, number uint16) error {
	p, err := daemontest.In(dir, program, number)
	if err != nil {
		return err
	}
	d := &Daemon{Program: p}
	if err := d.configure(); err != nil {
		return err
	}
	images, err := daemontest.Images()
	if err != nil {
		return err
	}
	var tar bytes.Buffer
	if err := imagepack.Write(&tar, images...); err != nil {
		return err
	}
	return d.Write("images.tar", tar.String())
}
