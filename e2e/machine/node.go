package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// cniPlugins is where Debian has them.
const cniPlugins = "/usr/lib/cni"

// HubAddress is where the tests and the servers are, and what all nodes are beside.
const HubAddress = "10.89.0.254"

const containerdStart = time.Minute

// Node is a network namespace with a containerd in it. Its number is part of all its addresses.
type Node struct {
	Name string

	number int
	dir    string
	cmd    *exec.Cmd
	log    *os.File
	// kubelet is the node's, where it is not of a worker.
	kubelet *kubelet
}

// Address is the node's on the hub.
func (n *Node) Address() string { return fmt.Sprintf("10.89.0.%d", n.number) }
func (n *Node) pods() string    { return fmt.Sprintf("10.88.%d.0/24", n.number) }
func (n *Node) socket() string  { return filepath.Join(n.dir, "containerd.sock") }

// Prefix executes a program on the node.
func (n *Node) Prefix() []string {
	return []string{"nsenter", "--net=/run/netns/" + n.Name, "--uts=/run/uts/" + n.Name, "--"}
}

const nodeScript = `set -e
name=$1 number=$2 address=$3 pods=$4 hub=$5
ip netns add "$name"
touch "/run/uts/$name"
unshare "--uts=/run/uts/$name" hostname "$name"
ip link add "wire$number" type veth peer name eth0 netns "$name"
ip link set "wire$number" master hub up
ip route add "$pods" via "$address"
on() { nsenter "--net=/run/netns/$name" "$@"; }
on ip link set lo up
on ip addr add "$address/24" dev eth0
on ip link set eth0 up
on ip route add default via "$hub"
on sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet'`

const containerdConfig = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/containerd.sock"
[ttrpc]
  address = "%[1]s/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[4]s"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  restrict_oom_score_adj = %[2]t
  disable_apparmor = %[3]t
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "%[1]s/certs.d"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + cniPlugins + `"
    conf_dir = "%[1]s/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.test-handler]
      runtime_type = "io.containerd.runc.v2"
`

// registryHosts has the names of a registry led to another.
const registryHosts = "[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n"

// Hubs route pods' addresses, so nothing is masqueraded.
const containerdNetwork = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isDefaultGateway": true, "ipMasq": false, "hairpinMode": true, "mtu": 1400,
   "ipam": {"type": "host-local", "dataDir": "%[1]s/ipam", "ranges": [[{"subnet": "%[2]s"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

// startNode makes a node and starts its containerd.
func startNode(ctx context.Context, c *Config, number int) (*Node, error) {
	name := fmt.Sprintf("node-%d", number)
	n := &Node{Name: name, number: number, dir: filepath.Join(c.Dir, name+"-containerd")}
	if err := shell(ctx, nodeScript, name, fmt.Sprint(number), n.Address(), n.pods(), HubAddress); err != nil {
		return nil, fmt.Errorf("the network of %s: %w", name, err)
	}
	_, err := os.Stat("/sys/module/apparmor")
	files := map[string]string{
		"config.toml":        fmt.Sprintf(containerdConfig, n.dir, !mayLowerOOM(), errors.Is(err, os.ErrNotExist), c.Pause),
		"cni/berth.conflist": fmt.Sprintf(containerdNetwork, n.dir, n.pods()),
	}
	for name, address := range c.Registries {
		files["certs.d/"+name+"/hosts.toml"] = fmt.Sprintf(registryHosts, address)
	}
	for name, text := range files {
		path := filepath.Join(n.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	if n.log, err = os.Create(filepath.Join(c.Dir, name+"-containerd.log")); err != nil {
		return nil, err
	}
	args := append(n.Prefix(), "containerd", "-c", filepath.Join(n.dir, "config.toml"))
	n.cmd = exec.Command(args[0], args[1:]...)
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	return n, n.waitAnswers(ctx)
}

// mayLowerOOM: a machine of CI may not have the capability for it.
func mayLowerOOM() bool {
	const file = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(file)
	if err != nil || os.WriteFile(file, []byte("-997"), 0) != nil {
		return false
	}
	return os.WriteFile(file, before[:len(before)-1], 0) == nil
}

func (n *Node) waitAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, containerdStart)
	defer cancel()
	for {
		err := exec.CommandContext(ctx, "ctr", "-a", n.socket(), "version").Run()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("containerd of %s does not answer: %w; its log is %s", n.Name, err, n.log.Name())
		case <-time.After(startPoll):
		}
	}
}

// load gives the node images, packed in a file.
func (n *Node) load(ctx context.Context, images string) error {
	out, err := exec.CommandContext(ctx, "ctr", "-a", n.socket(), "-n", "k8s.io", "images", "import", images).CombinedOutput()
	if err != nil {
		return fmt.Errorf("images of %s: %w: %s", n.Name, err, out)
	}
	return nil
}

// stop ends the containerd. What still runs in it ends with the machine.
func (n *Node) stop() {
	_ = n.cmd.Process.Kill() // it may have ended
	_ = n.cmd.Wait()         // that it was killed is no news
	_ = n.log.Close()        // it is only for people
}
