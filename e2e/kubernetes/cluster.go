package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/pki"
)

const (
	servers      = 3
	clusterStart = 3 * time.Minute
	clusterStop  = 30 * time.Second
	startPoll    = 100 * time.Millisecond
)

// cluster is the real binary as servers and workers, each a process of its own, and the containerd of every worker.
type cluster struct {
	kubeconfig string
	fleet      *fleet.Fleet
	nodes      []*node
	registry   *registry
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

// startCluster starts everything on the machine's network, and returns when all nodes are ready.
func startCluster(ctx context.Context, o options, dir string) (c *cluster, err error) {
	c = &cluster{kubeconfig: filepath.Join(dir, "kubeconfig")}
	defer func() {
		if err != nil {
			c.stop()
			c.keepLogs(o.logs)
		}
	}()
	list, err := suiteImages(o.tools)
	images := filepath.Join(dir, "images.tar")
	if err == nil {
		err = writeImages(images, list)
	}
	if err == nil {
		c.registry, err = startRegistry(list)
	}
	if err != nil {
		return nil, fmt.Errorf("the images: %w", err)
	}
	for i := range o.workers {
		n, err := startNode(ctx, dir, i+1, c.registry.address)
		if n != nil {
			c.nodes = append(c.nodes, n)
		}
		if err != nil {
			return nil, err
		}
		if err := n.load(ctx, images); err != nil {
			return nil, err
		}
	}
	if err := os.Remove(images); err != nil {
		return nil, err
	}
	if c.fleet, err = fleet.New(o.berth, filepath.Join(dir, "agents")); err != nil {
		return nil, err
	}
	c.fleet.DieTogether = true
	var specs []fleet.Spec
	for i := range servers {
		specs = append(specs, fleet.Spec{Name: fmt.Sprintf("server-%d", i+1), Kind: pki.Server, Host: hubAddress,
			HCL: fmt.Sprintf("server {\n  enabled = true\n  bootstrap_expect = %d\n}\n", servers)})
	}
	for _, n := range c.nodes {
		specs = append(specs, fleet.Spec{Name: n.name, Kind: pki.Worker, Host: n.address(), Prefix: n.prefix(),
			HCL: fmt.Sprintf(workerConfig, n.socket())})
	}
	if _, err := c.fleet.Add(specs...); err != nil {
		return nil, err
	}
	if err := c.fleet.Start(); err != nil {
		return nil, err
	}
	if err := c.writeKubeconfig(); err != nil {
		return nil, err
	}
	return c, c.waitReady(ctx)
}

// writeKubeconfig gives the tests an administrator's access to one of the servers.
func (c *cluster) writeKubeconfig() error {
	r := c.fleet.Reader().RESTConfig()
	k := clientcmdapi.NewConfig()
	k.Clusters["berth"] = &clientcmdapi.Cluster{Server: r.Host, CertificateAuthorityData: r.CAData}
	k.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: r.CertData, ClientKeyData: r.KeyData}
	k.Contexts["berth"] = &clientcmdapi.Context{Cluster: "berth", AuthInfo: "admin"}
	k.CurrentContext = "berth"
	return clientcmd.WriteToFile(*k, c.kubeconfig)
}

func (c *cluster) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clusterStart)
	defer cancel()
	for {
		err := c.ready(ctx)
		if err == nil {
			return nil
		}
		if dead := c.fleet.Alive(); dead != nil {
			return dead
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it was not ready in time: %w", err)
		case <-time.After(startPoll):
		}
	}
}

func (c *cluster) ready(ctx context.Context) error {
	nodes, err := c.fleet.Reader().Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
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
	if ready < len(c.nodes) {
		return fmt.Errorf("%d of %d nodes are ready", ready, len(c.nodes))
	}
	_, err = c.fleet.Reader().Kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// alive is an error if an agent has ended.
func (c *cluster) alive() error { return c.fleet.Alive() }

func (c *cluster) stop() {
	if c.fleet != nil {
		c.fleet.Stop(clusterStop)
	}
	for _, n := range c.nodes {
		n.stop()
	}
	if c.registry != nil {
		c.registry.stop()
	}
}

// keepLogs copies what servers, workers and containerds have said.
func (c *cluster) keepLogs(dir string) {
	paths := make([]string, 0, len(c.nodes)+servers)
	for _, n := range c.nodes {
		paths = append(paths, n.log.Name())
	}
	if c.fleet != nil {
		for _, p := range c.fleet.Processes() {
			paths = append(paths, p.Log)
		}
	}
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil { // what was never begun has no log
			_ = os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o644) // they are only for people
		}
	}
}

// versionOf asks the binary what it is. It says so after the last space of its first line.
func versionOf(ctx context.Context, binary string) (string, error) {
	out, err := exec.CommandContext(ctx, binary, "version", "--client").Output()
	if err != nil {
		return "", errors.Join(fmt.Errorf("%s version", binary), err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return first[strings.LastIndexByte(first, ' ')+1:], nil
}
