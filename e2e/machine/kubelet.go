package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubelet is Kubernetes' own agent on a node, in place of one of Berth's workers.
type kubelet struct {
	cmd *exec.Cmd
	log *os.File
	// exited is closed when it has ended.
	exited chan struct{}
}

// KubeletConfig is a kubelet's over a container runtime, that keeps what is its own in a directory. As for a worker, the machine's disk may be as
// full as it is, and no image goes. more are lines of it.
func KubeletConfig(dir, authority, socket string, more ...string) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[2]s}}
authorization: {mode: Webhook}
serverTLSBootstrap: true
rotateCertificates: true
containerRuntimeEndpoint: unix://%[3]s
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
resolvConf: ""
podLogsDir: %[1]s/pods
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 50Mi}
`, dir, authority, socket) + strings.Join(append(more, ""), "\n")
}

// kubeletScript starts one where programs leave things under names that are always the same, and where what it would set for the whole of
// a machine is so already. What it mounts in its own folder is seen by its containerd.
const kubeletScript = `set -e
dir=$1
shift
mkdir -p /var/lib/kubelet /var/log/containers
for at in /var/lib/kubelet /var/log/containers; do mount -t tmpfs -o mode=755 none "$at"; done
for said in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file=$dir/$(echo "${said%=*}" | tr / -)
  echo "${said#*=}" > "$file"
  mount --bind "$file" "/proc/sys/${said%=*}"
done
exec "$@"`

// startKubelets starts one on every node, and returns when all have what they serve by.
func (c *Cluster) startKubelets(ctx context.Context, config *Config) error {
	for _, n := range c.Nodes {
		if err := c.startKubelet(ctx, config, n); err != nil {
			return fmt.Errorf("the kubelet of %s: %w", n.Name, err)
		}
	}
	return c.approveServing(ctx)
}

// startKubelet has a node's kubelet join by a token, as those of anybody do.
func (c *Cluster) startKubelet(ctx context.Context, config *Config, n *Node) error {
	dir := filepath.Join(config.Dir, n.Name+"-kubelet")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if _, err := MakeCgroups(n.Name); err != nil { // they end with the machine's
		return err
	}
	token := filepath.Join(dir, "bootstrap.conf")
	if err := c.createToken(ctx, config.Berth, token); err != nil {
		return err
	}
	file := filepath.Join(dir, "kubelet.yaml")
	// Its cgroups are below one of its own, as it removes those of pods that it does not know.
	text := KubeletConfig(dir, c.authority(), n.socket(), "cgroupRoot: /"+n.Name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(config.Dir, n.Name+"-kubelet.log"))
	if err != nil {
		return err
	}
	args := append(n.Prefix(), "unshare", "--mount", "--propagation", "unchanged", "sh", "-c", kubeletScript, "sh", dir, config.Kubelet,
		"--config", file, "--bootstrap-kubeconfig", token, "--kubeconfig", filepath.Join(dir, "kubelet.conf"),
		"--root-dir", filepath.Join(dir, "root"), "--cert-dir", filepath.Join(dir, "pki"),
		"--hostname-override", n.Name, "--node-ip", n.Address(), "-v", "2")
	k := &kubelet{cmd: exec.Command(args[0], args[1:]...), log: log, exited: make(chan struct{})}
	k.cmd.Stdout, k.cmd.Stderr = log, log
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := k.cmd.Start(); err != nil {
		return errors.Join(err, log.Close())
	}
	n.kubelet = k
	go func() {
		defer close(k.exited)
		_ = k.cmd.Wait() // how it ended is in its log
	}()
	return nil
}

// createToken writes what a kubelet joins by.
func (c *Cluster) createToken(ctx context.Context, berth, file string) error {
	server := c.Fleet.Reader()
	admin := server.RESTConfig()
	cert, err := c.Fleet.WriteFile("admin.pem", string(admin.CertData))
	if err != nil {
		return err
	}
	key, err := c.Fleet.WriteFile("admin-key.pem", string(admin.KeyData))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, berth, "token", "create", "--ttl", "1h", "--kubeconfig-file", file, "--server-address", server.HTTP(),
		"--addresses", server.HTTP(), "--ca-file", c.authority(), "--cert-file", cert, "--key-file", key, "--keep-trying")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("a token: %w: %s", err, out)
	}
	return nil
}

// authority is the file of the certificate that all others are of.
func (c *Cluster) authority() string { return filepath.Join(c.Fleet.Dir, "ca", "ca.pem") }

// alive is an error if it has ended.
func (k *kubelet) alive() error {
	select {
	case <-k.exited:
		return fmt.Errorf("a kubelet has ended; its log is %s", k.log.Name())
	default:
		return nil
	}
}

func (k *kubelet) stop() {
	_ = k.cmd.Process.Kill() // it may have ended
	<-k.exited
	_ = k.log.Close() // it is only for people
}

// approveServing signs what kubelets want to serve by, as an administrator does, once all have asked.
func (c *Cluster) approveServing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clusterStart)
	defer cancel()
	for {
		err := c.approveWhatIsAsked(ctx)
		if err == nil {
			return nil
		}
		if dead := c.Alive(); dead != nil {
			return dead
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the certificates that kubelets serve by: %w", err)
		case <-time.After(startPoll):
		}
	}
}

// approveWhatIsAsked is an error until every node has what it serves by.
func (c *Cluster) approveWhatIsAsked(ctx context.Context) error {
	requests := c.Fleet.Reader().Kube.CertificatesV1().CertificateSigningRequests()
	list, err := requests.List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=" + certificatesv1.KubeletServingSignerName})
	if err != nil {
		return err
	}
	signed := map[string]bool{}
	for i := range list.Items {
		r := &list.Items[i]
		if len(r.Status.Certificate) > 0 {
			signed[strings.TrimPrefix(r.Spec.Username, "system:node:")] = true
		}
		if len(r.Status.Conditions) > 0 {
			continue
		}
		r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved,
			Status: corev1.ConditionTrue, Reason: "Joins", Message: "a node of this run"}}
		if _, err := requests.UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes {
		if !signed[n.Name] {
			return fmt.Errorf("%s has none", n.Name)
		}
	}
	return nil
}
