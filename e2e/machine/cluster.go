package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

const (
	servers      = 3
	clusterStart = 3 * time.Minute
	clusterStop  = 30 * time.Second
	startPoll    = 100 * time.Millisecond
)

// Config is what a cluster is made of.
type Config struct {
	// Berth is the binary; Dir holds everything, and is the machine's.
	Berth, Dir string
	// Kubelet is Kubernetes' own agent: nodes are of it, carry no services and answer for no names. Empty: they are of Berth's workers.
	Kubelet string
	Workers int
	// Images are on every node; Pause is the name of the one that sandboxes are made of.
	Images []*imagepack.Image
	Pause  string
	// Registries are the addresses that images of a registry, by its name, are fetched from.
	Registries map[string]string
}

// Cluster is the real binary as servers and workers, each a process of its own, and the containerd of every worker.
type Cluster struct {
	// Kubeconfig gives an administrator's access to one of the servers.
	Kubeconfig string
	Fleet      *fleet.Fleet
	Nodes      []*Node
}

// workerConfig: the machine's disk may be as full as it is, and no image goes, since none could be fetched again.
const workerConfig = `worker {
  enabled = true
  runtime = "cri"
  cri {
    endpoint              = "unix://%s"
    image_gc_high_percent = 100
    image_gc_low_percent  = 99
  }
  services {
    mode = "on"
  }
  eviction {
    hard = { "nodefs.available" = "1Gi", "imagefs.available" = "1Gi", "memory.available" = "100Mi" }
  }
}
`

// Start starts everything on the machine's network, and returns when all nodes are ready. What it started before an error is in the
// cluster as well, to be stopped.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	c := &Cluster{Kubeconfig: filepath.Join(config.Dir, "kubeconfig")}
	images := filepath.Join(config.Dir, "images.tar")
	if err := writeImages(images, config.Images); err != nil {
		return c, fmt.Errorf("the images: %w", err)
	}
	for i := range config.Workers {
		n, err := startNode(ctx, &config, i+1)
		if n != nil {
			c.Nodes = append(c.Nodes, n)
		}
		if err != nil {
			return c, err
		}
		if err := n.load(ctx, images); err != nil {
			return c, err
		}
	}
	if err := os.Remove(images); err != nil {
		return c, err
	}
	var err error
	if c.Fleet, err = fleet.New(config.Berth, filepath.Join(config.Dir, "agents")); err != nil {
		return c, err
	}
	c.Fleet.DieTogether = true
	var specs []fleet.Spec
	signed := config.Kubelet != ""
	for i := range servers {
		specs = append(specs, fleet.Spec{Name: fmt.Sprintf("server-%d", i+1), Kind: pki.Server, Host: HubAddress,
			HCL: fmt.Sprintf("server {\n  enabled = true\n  bootstrap_expect = %d\n  signed_kubelets = %t\n}\n", servers, signed)})
	}
	if config.Kubelet == "" {
		for _, n := range c.Nodes {
			specs = append(specs, fleet.Spec{Name: n.Name, Kind: pki.Worker, Host: n.Address(), Prefix: n.Prefix(),
				HCL: fmt.Sprintf(workerConfig, n.socket())})
		}
	}
	if _, err := c.Fleet.Add(specs...); err != nil {
		return c, err
	}
	if err := c.Fleet.Start(); err != nil {
		return c, err
	}
	if err := c.writeKubeconfig(); err != nil {
		return c, err
	}
	if config.Kubelet != "" {
		if err := c.startKubelets(ctx, &config); err != nil {
			return c, err
		}
	}
	return c, c.waitReady(ctx)
}

func (c *Cluster) writeKubeconfig() error {
	r := c.Fleet.Reader().RESTConfig()
	k := clientcmdapi.NewConfig()
	k.Clusters["berth"] = &clientcmdapi.Cluster{Server: r.Host, CertificateAuthorityData: r.CAData}
	k.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: r.CertData, ClientKeyData: r.KeyData}
	k.Contexts["berth"] = &clientcmdapi.Context{Cluster: "berth", AuthInfo: "admin"}
	k.CurrentContext = "berth"
	return clientcmd.WriteToFile(*k, c.Kubeconfig)
}

func (c *Cluster) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clusterStart)
	defer cancel()
	for {
		err := c.ready(ctx)
		if err == nil {
			return nil
		}
		if dead := c.Alive(); dead != nil {
			return dead
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it was not ready in time: %w", err)
		case <-time.After(startPoll):
		}
	}
}

func (c *Cluster) ready(ctx context.Context) error {
	nodes, err := c.Fleet.Reader().Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := 0
	for i := range nodes.Items {
		for _, condition := range nodes.Items[i].Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	if ready < len(c.Nodes) {
		return fmt.Errorf("%d of %d nodes are ready", ready, len(c.Nodes))
	}
	_, err = c.Fleet.Reader().Kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// Alive is an error if an agent has ended.
func (c *Cluster) Alive() error {
	for _, n := range c.Nodes {
		if n.kubelet == nil {
			continue
		}
		if err := n.kubelet.alive(); err != nil {
			return err
		}
	}
	return c.Fleet.Alive()
}

// Stop ends the agents and the containerds.
func (c *Cluster) Stop() {
	for _, n := range c.Nodes {
		if n.kubelet != nil {
			n.kubelet.stop()
		}
	}
	if c.Fleet != nil {
		c.Fleet.Stop(clusterStop)
	}
	for _, n := range c.Nodes {
		n.stop()
	}
}

// KeepLogs copies what servers, the agents of nodes and containerds have said.
func (c *Cluster) KeepLogs(dir string) {
	paths := make([]string, 0, 2*len(c.Nodes)+servers)
	for _, n := range c.Nodes {
		paths = append(paths, n.log.Name())
		if n.kubelet != nil {
			paths = append(paths, n.kubelet.log.Name())
		}
	}
	if c.Fleet != nil {
		for _, p := range c.Fleet.Processes() {
			paths = append(paths, p.Log)
		}
	}
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil { // what was never begun has no log
			_ = os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o644) // they are only for people
		}
	}
}

// writeImages packs images into a file.
func writeImages(path string, list []*imagepack.Image) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := imagepack.Write(f, list...); err != nil {
		_ = f.Close() // what is written is of no use
		return err
	}
	return f.Close()
}
