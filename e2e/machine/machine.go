// Package machine makes a part of this machine that a cluster and what is tried on it have for themselves: namespaces of
// processes, mounts, networks and cgroups. Whatever they leave there goes with it, however it ends. On it, it starts clusters of the real
// binary, of servers and of nodes with real containers. It must never be part of the product, and changes nothing of the machine outside.
package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// insideVariable names the machine's folder, in the process that has it for itself.
	insideVariable = "BERTH_MACHINE_INSIDE"
	machineStop    = 2 * time.Minute
)

// Inside is the machine's folder, in the process that has one for itself; elsewhere empty.
func Inside() string { return os.Getenv(insideVariable) }

// needed are the programs that nodes need. Debian's packages are named in the Makefile.
var needed = [...]string{"containerd", "runc", "ctr", "busybox", "ip", "iptables", "nft", "nsenter", "unshare"}

// Missing is an error if this machine lacks something that nodes need, or one of the programs.
func Missing(programs ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can make nodes with networks of their own")
	}
	var missing []string
	for _, name := range append(needed[:], programs...) {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if _, err := os.Stat(filepath.Join(cniPlugins, "bridge")); err != nil {
		missing = append(missing, "containernetworking-plugins")
	}
	if len(missing) > 0 {
		return fmt.Errorf("this machine lacks %s", strings.Join(missing, ", "))
	}
	return nil
}

// Run runs this program again on a machine of its own, until it ends or the context does, and clears up. Of an error
// that is ErrSaid the terminal has been told.
func Run(ctx context.Context, dir string) (err error) {
	if why := Unbounded(); why != "" {
		return fmt.Errorf("nodes need cgroups that bound their pods: %s", why)
	}
	groups, err := MakeCgroups(fmt.Sprintf("berth-machine-%d", os.Getpid()))
	defer func() { err = errors.Join(err, RemoveCgroups(groups)) }()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The shell that is the first process waits for whoever lost his parent.
	args := append([]string{"sh", "-c", `"$@"; exit $?`, "sh", self}, os.Args[1:]...)
	args = Enter(groups, []string{"--mount", "--pid", "--fork", "--uts", "--net", "--mount-proc", "--kill-child"}, args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// The end of its input tells it to end, also where this process was killed.
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err := <-exited:
		return silent(err)
	case <-ctx.Done():
	}
	_ = input.Close() // it may have ended
	select {
	case err := <-exited:
		return errors.Join(ctx.Err(), silent(err))
	case <-time.After(machineStop):
		_ = cmd.Process.Kill() // as above
		<-exited
		return errors.Join(ctx.Err(), fmt.Errorf("the tests did not stop within %s", machineStop))
	}
}

// ErrSaid is an error of which the terminal has been told.
var ErrSaid = errors.New("")

func silent(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return ErrSaid
	}
	return err
}

// Context is for the process inside. It ends with the input, as whoever made this machine wishes.
func Context() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // there is nothing in it
		stop()
	}()
	return ctx, stop
}

// privateMounts are what the machine's processes see instead of the host's: cgroups that begin with their own, and folders in which
// programs leave things under names that are always the same. Names are asked nowhere: who listens at the address refuses.
const privateMounts = `set -e
awk '{ for (i = 7; i <= NF; i++) if ($i == "-") { print $5, $(i+1), $NF; break } }' /proc/self/mountinfo |
while read -r at type options; do
  case $type in
  cgroup) umount "$at"; mount -t cgroup -o "${options#rw,}" none "$at" ;;
  cgroup2) umount "$at"; mount -t cgroup2 none "$at" ;;
  esac
done
mount -t tmpfs -o mode=755 none /run
mkdir -p /run/lock /run/netns /run/uts /var/lib/cni
mount -t tmpfs -o mode=755 none /var/lib/cni
echo "nameserver $2" > "$1/resolv.conf"
mount --bind "$1/resolv.conf" "$(readlink -f /etc/resolv.conf)" || true
mount --bind "$1" "$1"
mount --make-rshared "$1"
`

// Prepare makes the mounts, and the network that joins the nodes. It is for the process inside.
func Prepare(ctx context.Context, dir string) error {
	if err := shell(ctx, privateMounts, dir, HubAddress); err != nil {
		return err
	}
	return shell(ctx, `set -e
ip link set lo up
ip link add hub type bridge
ip addr add "$1/24" dev hub
ip link set hub up
echo 1 > /proc/sys/net/ipv4/ip_forward`, HubAddress)
}

// shell runs a script with arguments.
func shell(ctx context.Context, script string, args ...string) error {
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", script, "sh"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
