// Package containerdtest starts a containerd of its own for tests: its own root, state, socket, network folder and images.
// It leaves nothing behind. It must never be part of the product, nor touch a containerd that it did not start.
package containerdtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/worker/runtime/cri"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// Images that every daemon has.
const (
	Busybox = "registry.test/busybox:1" // /bin/sh and everything that busybox is, started without a command it runs sh
	Nonroot = "registry.test/nonroot:1" // the same, as user 1234
	Named   = "registry.test/named:1"   // the same, as the user somebody
	pause   = "registry.test/pause:1"
)

// Missing says what a machine lacks for a daemon; empty: nothing.
func Missing() string {
	if os.Geteuid() != 0 {
		return "root"
	}
	var missing []string
	for _, name := range [...]string{"containerd", "runc", "ctr", "busybox", "iptables", "nft"} {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if _, err := os.Stat(filepath.Join(cniPlugins, "bridge")); err != nil {
		missing = append(missing, "containernetworking-plugins")
	}
	return strings.Join(missing, ", ")
}

// cniPlugins is where Debian has them.
const cniPlugins = "/usr/lib/cni"

// Daemon is a containerd of a test's own.
type Daemon struct {
	Dir    string
	bridge string
	// systemd makes the cgroups of its containers.
	systemd bool
	cmd     *exec.Cmd
	log     *os.File
}

// Start starts a daemon over a new directory below parent, and waits until it answers. number tells it from others of the
// machine: it is part of its pods' network, 10.<number/256>.<number%256>.0/24 (10.0 for 10.96, where services are), and of the name of its bridge.
func Start(ctx context.Context, parent string, number uint16, options ...func(*Daemon)) (*Daemon, error) {
	dir, err := os.MkdirTemp(parent, "containerd-")
	if err != nil {
		return nil, err
	}
	d := &Daemon{Dir: dir, bridge: fmt.Sprintf("brth%d", number)}
	for _, option := range options {
		option(d)
	}
	err = d.configure(number)
	if err == nil {
		err = d.Run(ctx)
	}
	if err == nil {
		err = d.importImages(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// BySystemd lets systemd make the cgroups of containers.
func BySystemd(d *Daemon) { d.systemd = true }

// Endpoint is what an agent is configured with.
func (d *Daemon) Endpoint() string { return "unix://" + d.socket() }

func (d *Daemon) socket() string { return filepath.Join(d.Dir, "containerd.sock") }

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
  sandbox_image = "` + pause + `"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = %[2]t
  disable_apparmor = %[3]t
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + cniPlugins + `"
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

const network = `{"cniVersion": "0.4.0", "name": "%[1]s", "plugins": [
  {"type": "bridge", "bridge": "%[1]s", "isDefaultGateway": true, "ipMasq": false, "hairpinMode": true, "mtu": 1400,
   "ipam": {"type": "host-local", "dataDir": "%[2]s/ipam", "ranges": [[{"subnet": "10.%[3]d.%[4]d.0/24"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

func (d *Daemon) configure(number uint16) error {
	_, err := os.Stat("/sys/module/apparmor")
	noArmor := os.IsNotExist(err)
	second := number >> 8
	if second == 96 {
		second = 0 // 10.96 is where services' addresses are
	}
	files := map[string]string{
		"config.toml":        fmt.Sprintf(config, d.Dir, !mayLowerOOM(), noArmor, d.systemd),
		"cni/berth.conflist": fmt.Sprintf(network, d.bridge, d.Dir, second, number&255),
	}
	for name, text := range files {
		path := filepath.Join(d.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	d.log, err = os.Create(filepath.Join(d.Dir, "containerd.log"))
	return err
}

// mayLowerOOM: a machine of CI may not have the capability for it.
func mayLowerOOM() bool {
	const file = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(file)
	if err != nil || os.WriteFile(file, []byte("-997"), 0) != nil {
		return false
	}
	return os.WriteFile(file, bytes.TrimSpace(before), 0) == nil
}

// Run starts the daemon, again after Kill, and waits until it answers.
func (d *Daemon) Run(ctx context.Context) error {
	d.cmd = exec.Command("containerd", "-c", filepath.Join(d.Dir, "config.toml"))
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		return fmt.Errorf("starting containerd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, _, err := cri.Probe(ctx, d.Endpoint())
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("containerd does not answer: %w; its log ends: %s", err, d.logTail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (d *Daemon) logTail() string {
	b, _ := os.ReadFile(d.log.Name()) // what is not there is not shown
	return string(b[max(0, len(b)-2000):])
}

// Kill ends the daemon at once; its containers go on.
func (d *Daemon) Kill() { d.signal(syscall.SIGKILL) }

func (d *Daemon) signal(s syscall.Signal) {
	if d.cmd == nil || d.cmd.Process == nil {
		return
	}
	_ = d.cmd.Process.Signal(s)
	_ = d.cmd.Wait() // that it was killed is no news
	d.cmd = nil
}

// Freeze stops the daemon from answering, until Thaw.
func (d *Daemon) Freeze() error {
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		// Until the last of its threads has stopped.
		if err := unix.Waitid(unix.P_PID, d.cmd.Process.Pid, nil, unix.WSTOPPED, nil); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Thaw lets the daemon go on.
func (d *Daemon) Thaw() error { return d.cmd.Process.Signal(syscall.SIGCONT) }

// ctr is containerd's own client, on what is there by the container runtime interface.
func (d *Daemon) ctr(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ctr", append([]string{"-a", d.socket(), "-n", "k8s.io"}, args...)...)
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
	d := &Daemon{Dir: dir, bridge: fmt.Sprintf("brth%d", number)}
	if err := d.configure(number); err != nil {
		return err
	}
	images, err := images()
	if err != nil {
		return errors.Join(err, d.log.Close())
	}
	var tar bytes.Buffer
	if err := imagepack.Write(&tar, images...); err != nil {
		return errors.Join(err, d.log.Close())
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "images.tar"), tar.Bytes(), 0o644), d.log.Close())
}

func (d *Daemon) importImages(ctx context.Context) error {
	all, err := images()
	if err != nil {
		return err
	}
	return d.Import(ctx, all...)
}

// images are those that every daemon has.
func images() ([]*imagepack.Image, error) {
	base, err := BusyboxImage(Busybox)
	if err != nil {
		return nil, err
	}
	nonroot, named, still := *base, *base, *base
	nonroot.Names, nonroot.User = []string{Nonroot}, "1234"
	named.Names, named.User = []string{Named}, "somebody"
	still.Names, still.Cmd = []string{pause}, nil
	// It waits, and for the dead of a shared process namespace, too.
	still.Entrypoint = []string{"/bin/sh", "-c", `trap "exit 0" TERM INT; while :; do sleep 3600 & wait $!; done`}
	return []*imagepack.Image{base, &nonroot, &named, &still}, nil
}

// BusyboxImage is an image of busybox and the directories that programs expect.
func BusyboxImage(names ...string) (*imagepack.Image, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	i := &imagepack.Image{Names: names, Cmd: []string{"sh"}, WorkingDir: "/",
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	for _, dir := range [...]string{"bin", "etc", "proc", "sys", "dev", "root", "var", "usr", "usr/bin"} {
		i.Files = append(i.Files, imagepack.File{Path: dir, Mode: 0o755, Dir: true})
	}
	i.Files = append(i.Files,
		imagepack.File{Path: "tmp", Mode: 0o1777, Dir: true},
		imagepack.File{Path: "etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/bin/sh\nsomebody:x:1000:1000::/:/bin/sh\n")},
		imagepack.File{Path: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\nsomebody:x:1000:\ninimage:x:5000:somebody\n")},
		imagepack.File{Path: "bin/busybox", Mode: 0o755, Data: program})
	out, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("listing what busybox is: %w", err)
	}
	for _, applet := range strings.Fields(string(out)) {
		if applet != "busybox" {
			i.Files = append(i.Files, imagepack.File{Path: "bin/" + applet, Mode: 0o777, Link: "busybox"})
		}
	}
	return i, nil
}

// Close ends everything of the daemon's: what still runs in it, its mounts, networks and files.
func (d *Daemon) Close() error {
	d.signal(syscall.SIGKILL)
	for _, pid := range d.processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	var errs []error
	deadline := time.Now().Add(20 * time.Second)
	for len(d.processes()) > 0 && time.Now().Before(deadline) {
		<-time.After(20 * time.Millisecond)
	}
	mounts, err := mountsBelow(d.Dir)
	errs = append(errs, err)
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", m, err))
		}
	}
	cached, _ := filepath.Glob("/var/lib/cni/results/" + d.bridge + "-*") // the pattern is a good one
	for _, f := range cached {
		errs = append(errs, os.Remove(f))
	}
	_ = exec.Command("ip", "link", "delete", d.bridge).Run() // there is none unless a pod ran
	if d.log != nil {
		_ = d.log.Close()
	}
	return errors.Join(append(errs, os.RemoveAll(d.Dir))...)
}

// processes are the shims of the daemon and what runs below them.
func (d *Daemon) processes() []int {
	entries, _ := os.ReadDir("/proc") // none: nothing is found
	parent := map[int]int{}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // it may have just ended
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[0] != "Z" {
			parent[pid], _ = strconv.Atoi(f[1])
			if bytes.Contains(args, []byte(d.socket())) {
				out = append(out, pid)
			}
		}
	}
	for i := 0; i < len(out); i++ {
		for pid, up := range parent {
			if up == out[i] && !slices.Contains(out, pid) {
				out = append(out, pid)
			}
		}
	}
	return out
}

func mountsBelow(dir string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			out = append(out, f[1])
		}
	}
	slices.Reverse(out) // the innermost first
	return out, nil
}
