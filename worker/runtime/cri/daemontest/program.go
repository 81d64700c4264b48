// Package daemontest is what the daemons of containers that tests start have in common: a directory of their own below which everything
// of theirs is, a network, a process, and images. It must never be part of the product, nor touch a daemon that it did not start.
package daemontest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// CNIPlugins is where Debian has the plugins of networks.
const CNIPlugins = "/usr/lib/cni"

// cniResults is where runtimes note what plugins have answered.
const cniResults = "/var/lib/cni/results"

// Program is a daemon's, of a test's own. Kill, Freeze, Thaw and Close are for the goroutine that called Run.
type Program struct {
	Dir  string // with everything of it
	name string // of the program, for its files and errors

	bridge string
	cmd    *exec.Cmd
	log    *os.File // nil: it was never executed
}

// NewProgram makes a directory below parent, with the configuration of a network. number tells it from others of the machine: it is part of
// its pods' network, 10.<number/256>.<number%256>.0/24 (10.0 for 10.96, where services are), and of the name of its bridge.
func NewProgram(parent, name string, number uint16) (*Program, error) {
	dir, err := os.MkdirTemp(parent, name+"-")
	if err != nil {
		return nil, err
	}
	p, err := In(dir, name, number)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

// In is NewProgram in a directory that is there.
func In(dir, name string, number uint16) (*Program, error) {
	p := &Program{Dir: dir, name: name, bridge: fmt.Sprintf("brth%d", number)}
	return p, p.Write(networkFile, fmt.Sprintf(network, p.bridge, p.Dir, secondOctet(number), number&255))
}

// Begin configures and runs a daemon, and gives it its images. One for which that fails is closed.
func Begin(ctx context.Context, d Daemon, configure func() error) error {
	err := configure()
	if err == nil {
		err = d.Run(ctx)
	}
	var images []*imagepack.Image
	if err == nil {
		images, err = Images()
	}
	if err == nil {
		err = d.Import(ctx, images...)
	}
	if err != nil {
		return errors.Join(err, d.Close())
	}
	return nil
}

// Daemon is a program that Begin can begin.
type Daemon interface {
	Run(ctx context.Context) error
	Import(ctx context.Context, images ...*imagepack.Image) error
	Close() error
}

// Missing are the programs, and the plugins of networks, that the machine does not have. name is looked for as an executable.
func Missing(names ...string) []string {
	var missing []string
	for _, name := range append(names, "busybox", "iptables", "nft") {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if _, err := os.Stat(filepath.Join(CNIPlugins, "bridge")); err != nil {
		missing = append(missing, "containernetworking-plugins")
	}
	return missing
}

const networkFile = "cni/berth.conflist"

// addressesDir is where the plugin that gives addresses keeps them, in a directory a network.
const addressesDir = "ipam"

const network = `{"cniVersion": "0.4.0", "name": "%[1]s", "plugins": [
  {"type": "bridge", "bridge": "%[1]s", "isDefaultGateway": true, "ipMasq": false, "hairpinMode": true, "mtu": 1400,
   "ipam": {"type": "host-local", "dataDir": "%[2]s/` + addressesDir + `", "ranges": [[{"subnet": "10.%[3]d.%[4]d.0/24"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

func secondOctet(number uint16) uint16 {
	if number>>8 == 96 {
		return 0 // 10.96 is where services' addresses are
	}
	return number >> 8
}

// Write writes a file below the directory.
func (p *Program) Write(name, text string) error {
	path := filepath.Join(p.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// MayLowerBadness: whether processes may be made to go later than others when memory is short. A machine of CI may not have the capability for it.
func MayLowerBadness() bool {
	const file = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(file)
	if err != nil || os.WriteFile(file, []byte("-997"), 0) != nil {
		return false
	}
	return os.WriteFile(file, bytes.TrimSpace(before), 0) == nil
}

// Socket is where the daemon listens.
func (p *Program) Socket() string { return filepath.Join(p.Dir, p.name+".sock") }

// Endpoint is what an agent is configured with.
func (p *Program) Endpoint() string { return "unix://" + p.Socket() }

// Dial is a connection to the daemon, which is the caller's to close.
func (p *Program) Dial() (*grpc.ClientConn, error) {
	return grpc.NewClient(p.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// Execute starts the daemon by its command, again after Kill, and waits until it answers.
func (p *Program) Execute(ctx context.Context, cmd *exec.Cmd) error {
	if p.log == nil {
		log, err := os.Create(filepath.Join(p.Dir, p.name+".log"))
		if err != nil {
			return err
		}
		p.log = log
	}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	p.cmd = cmd
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := p.answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w; its log ends: %s", p.name, err, p.LogTail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (p *Program) answers(ctx context.Context) error {
	conn, err := p.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is under way
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = criv1.NewRuntimeServiceClient(conn).Version(ctx, &criv1.VersionRequest{})
	return err
}

// LogTail is the end of what the daemon has logged.
func (p *Program) LogTail() string {
	const tailBytes = 8 << 10
	b, _ := os.ReadFile(p.log.Name()) // what is not there is not shown
	return string(b[max(0, len(b)-tailBytes):])
}

// Kill ends the daemon at once; its containers go on.
func (p *Program) Kill() {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // that it was killed is no news
	p.cmd = nil
}

// BreakNetwork has the plugin that gives pods their addresses fail, until it is repaired, which may be asked for twice.
func (p *Program) BreakNetwork() (repair func() error, err error) {
	given := p.addresses()
	aside := given + ".aside"
	if err := os.Rename(given, aside); err != nil {
		return nil, err
	}
	repair = sync.OnceValue(func() error { return errors.Join(os.Remove(given), os.Rename(aside, given)) })
	if err := os.WriteFile(given, nil, 0o600); err != nil {
		return nil, errors.Join(err, repair())
	}
	return repair, nil
}

// Freeze stops the daemon from answering, until Thaw.
func (p *Program) Freeze() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		// Until the last of its threads has stopped.
		if err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WSTOPPED, nil); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Thaw lets the daemon go on.
func (p *Program) Thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Close ends everything of the daemon's: what still runs in it, its mounts, networks and files.
func (p *Program) Close() error {
	p.Kill()
	for _, pid := range p.Processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	var errs []error
	deadline := time.Now().Add(20 * time.Second)
	for len(p.Processes()) > 0 && time.Now().Before(deadline) {
		<-time.After(20 * time.Millisecond)
	}
	mounts, err := MountsBelow(p.Dir)
	errs = append(errs, err)
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", m, err))
		}
	}
	cached, _ := filepath.Glob(cniResults + "/" + p.bridge + "-*") // the pattern is a good one
	for _, f := range cached {
		errs = append(errs, os.Remove(f))
	}
	_ = exec.Command("ip", "link", "delete", p.bridge).Run() // there is none unless a pod ran
	if p.log != nil {
		_ = p.log.Close()
	}
	return errors.Join(append(errs, os.RemoveAll(p.Dir))...)
}

// Processes are those that were started with something of the daemon's directory, such as shims, and what runs below them.
func (p *Program) Processes() []int {
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
			if bytes.Contains(args, []byte(p.Dir+"/")) {
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

// KillWith kills the daemon's processes that have one of the values after an option of their command.
func (p *Program) KillWith(option string, values []string) {
	for _, pid := range p.Processes() {
		b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")) // it may have just ended
		args := strings.Split(string(b), "\x00")
		if i := slices.Index(args, option); i > 0 && i+1 < len(args) && slices.Contains(values, args[i+1]) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // or it has
		}
	}
}

// addresses is where a file has the name of each address that is taken.
func (p *Program) addresses() string { return filepath.Join(p.Dir, addressesDir, p.bridge) }

// Network names what the network has for pods: addresses that are taken, ends of links, and what plugins have noted of each to take it
// back by. It is empty where no pod has an address.
func (p *Program) Network() ([]string, error) {
	var out []string
	for dir, is := range map[string]func(name string) bool{
		p.addresses(): func(name string) bool {
			_, err := netip.ParseAddr(name) // others are the plugin's own: its lock, and the last that it gave
			return err == nil
		},
		filepath.Join("/sys/class/net", p.bridge, "brif"): func(string) bool { return true },
		cniResults: func(name string) bool { return strings.HasPrefix(name, p.bridge+"-") },
	} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // no pod had an address yet
			return nil, fmt.Errorf("looking at the network: %w", err)
		}
		for _, e := range entries {
			if is(e.Name()) {
				out = append(out, filepath.Join(dir, e.Name()))
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// MountsBelow are the mount points below a directory, the innermost first.
func MountsBelow(dir string) ([]string, error) {
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
	slices.Reverse(out)
	return out, nil
}
