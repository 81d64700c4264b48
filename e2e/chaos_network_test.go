package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
)

// chaosNetwork is one machine after another, each in a network namespace of its
// own, all at one bridge of this process' namespace. The namespaces live as long as
// their holders, and those no longer than this process.
type chaosNetwork struct {
	holders map[string]*exec.Cmd // by address
	order   []string
}

// bridgeAddress is this process' on the bridge.
const bridgeAddress = "10.77.0.1"

func newChaosNetwork() (*chaosNetwork, error) {
	n := &chaosNetwork{holders: map[string]*exec.Cmd{}}
	return n, execute(
		"ip link set lo up",
		"ip link add bridge type bridge",
		"ip addr add "+bridgeAddress+"/24 dev bridge",
		"ip link set bridge up",
	)
}

func execute(commands ...string) error {
	for _, c := range commands {
		args := strings.Fields(c)
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", c, err, out)
		}
	}
	return nil
}

// add makes a machine, and gives the prefix of the programs that run there.
func (n *chaosNetwork) add(address string) ([]string, error) {
	holder := exec.Command("sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := holder.Start(); err != nil {
		return nil, err
	}
	n.holders[address] = holder
	n.order = append(n.order, address)
	prefix := []string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", holder.Process.Pid)}
	inside := strings.Join(prefix, " ") + " "
	link := fmt.Sprintf("link%d", len(n.order))
	return prefix, execute(
		fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", link, holder.Process.Pid),
		"ip link set "+link+" master bridge",
		"ip link set "+link+" up",
		inside+"ip link set lo up",
		inside+"ip addr add "+address+"/24 dev eth0",
		inside+"ip link set eth0 up",
	)
}

// cut loses without a word what one machine sends to another: it goes to a network
// card that nobody has. The other way stays.
func (n *chaosNetwork) cut(from, to string) error {
	return n.inside(from, "ip neigh replace "+to+" lladdr 02:00:00:00:00:99 dev eth0 nud permanent")
}

func (n *chaosNetwork) mend(from, to string) error {
	return n.inside(from, "ip neigh del "+to+" dev eth0")
}

func (n *chaosNetwork) inside(address, command string) error {
	return execute(fmt.Sprintf("nsenter --net=/proc/%d/ns/net %s", n.holders[address].Process.Pid, command))
}

// close ends the namespaces.
func (n *chaosNetwork) close() error {
	var errs []error
	for _, h := range n.holders {
		errs = append(errs, h.Process.Kill())
		_ = h.Wait() // it was killed
	}
	return errors.Join(errs...)
}
