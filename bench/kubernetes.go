package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/keyutil"

	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/ports"
)

// The programs of Kubernetes' control plane.
const (
	etcd, apiServer              = "etcd", "kube-apiserver"
	controllerManager, scheduler = "kube-controller-manager", "kube-scheduler"
)

// thirdTarget is how much of what Kubernetes' programs need Berth's servers may: of processor time, and of memory.
const thirdTarget = 1.0 / 3

// controlPlane: what Berth's servers do is done once more by Kubernetes' own programs.
func controlPlane(ctx context.Context, r *run) error {
	if err := r.mayContest(); err != nil {
		return err
	}
	if r.Kubernetes != "" {
		for _, name := range []string{etcd, apiServer, controllerManager, scheduler} {
			if _, err := exec.LookPath(filepath.Join(r.Kubernetes, name)); err != nil {
				return err
			}
		}
	}
	ours, err := r.inBerth(ctx, "Berth", filepath.Join(r.DataDir, "berth"), nil)
	if err != nil || r.Kubernetes == "" {
		return err
	}
	theirs, err := r.inKubernetes(ctx, "Kubernetes", filepath.Join(r.DataDir, "kubernetes"))
	if err != nil {
		return err
	}
	under := "≤ 0.33"
	for i := range ours.legs {
		faster, cheaper := ours.legs[i].over(&theirs.legs[i])
		r.figure(ours.legs[i].what+": times as fast", faster, "")
		r.target(ours.legs[i].what+": times the processor time", cheaper, "", under, cheaper <= thirdTarget)
	}
	memory := ours.peak / theirs.peak
	r.target("times the memory", memory, "", under, memory <= thirdTarget)
	return nil
}

// inKubernetes lets etcd, kube-apiserver, kube-controller-manager and kube-scheduler, one of each, go through the stages.
func (r *run) inKubernetes(ctx context.Context, who, dir string) (*contestant, error) {
	c := &contestant{run: r, who: who}
	defer c.stop()
	if err := c.startKubernetes(ctx, dir); err != nil {
		return nil, fmt.Errorf("%s: %w; the programs' last words:\n%s", who, err, c.lastWords())
	}
	nodes, err := playNodes(ctx, c.client, r.Nodes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; the programs' last words:\n%s", who, err, c.lastWords())
	}
	defer nodes.stop()
	c.agree = nodes.verify // of the state there is one replica
	if err := c.carryOut(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w; the programs' last words:\n%s", who, errors.Join(err, nodes.lastError()), c.lastWords())
	}
	return c, nil
}

// startKubernetes starts the four programs as they are by default, etcd with every write synced, but for what would hold them
// back here: etcd is asked without TLS, and the clients of kube-apiserver are administrators, for whom it keeps no queues,
// and set no bound to their requests.
func (c *contestant) startKubernetes(ctx context.Context, dir string) error {
	var err error
	if c.ports, err = ports.Free(3); err != nil {
		return err
	}
	local := func(scheme string, i int) string { return scheme + "://" + c.ports.Addr(i) }
	ca, at, err := furnishKubernetes(dir, local("https", 2))
	if err != nil {
		return err
	}
	store, peer := local("http", 0), local("http", 1)
	start := func(name string, args ...string) error {
		return c.startProgram(dir, filepath.Join(c.Kubernetes, name), args...)
	}
	err = start(etcd, "--data-dir="+at("etcd"), "--listen-client-urls="+store, "--advertise-client-urls="+store, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer, "--quota-backend-bytes=8589934592", "--log-level=warn")
	if err != nil {
		return err
	}
	err = start(apiServer, "--etcd-servers="+store, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.Ports[2]),
		"--tls-cert-file="+at(certFile), "--tls-private-key-file="+at(keyFile), "--client-ca-file="+at(caFile), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+at(accountsFile),
		"--service-account-signing-key-file="+at(accountsFile), "--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none")
	if err != nil {
		return err
	}
	admin, err := ca.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: user, Groups: groups})
	if err != nil {
		return err
	}
	if c.client, err = newClient(c.ports.Addr(2), ca.CertPEM(), admin); err != nil {
		return err
	}
	if err := c.awaitReady(ctx); err != nil {
		return err
	}
	err = start(controllerManager, append(unhurried(at(kubeconfigFile)), "--service-account-private-key-file="+at(accountsFile), "--root-ca-file="+at(caFile))...)
	if err != nil {
		return err
	}
	return start(scheduler, "--config="+at(schedulerFile), "--secure-port=0")
}

// What the programs are given.
const (
	caFile, certFile, keyFile = "ca.pem", "server.pem", "server-key.pem"
	accountsFile              = "accounts-key.pem"
	kubeconfigFile            = "kubeconfig"
	schedulerFile             = "scheduler.json"
)

// furnishKubernetes writes it, and gives the authority and where each file is.
func furnishKubernetes(dir, server string) (*pki.CA, func(name string) string, error) {
	at := func(name string) string { return filepath.Join(dir, name) }
	now := time.Now()
	ca, err := pki.NewCA(now, 24*time.Hour)
	if err != nil {
		return nil, nil, err
	}
	pair, err := ca.Issue(now, pki.Request{Kind: pki.Server, Name: apiServer, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		return nil, nil, err
	}
	accounts, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return nil, nil, err
	}
	asked, err := json.Marshal(map[string]any{
		"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
		"leaderElection":   map[string]any{"leaderElect": false},
		"clientConnection": map[string]any{"kubeconfig": at(kubeconfigFile), "qps": 100_000, "burst": 100_000, "contentType": runtime.ContentTypeProtobuf},
	})
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	for name, content := range map[string][]byte{
		caFile: ca.CertPEM(), certFile: pair.CertPEM, keyFile: pair.KeyPEM, accountsFile: accounts, schedulerFile: asked,
	} {
		if err := os.WriteFile(at(name), content, 0o600); err != nil {
			return nil, nil, fmt.Errorf("furnish Kubernetes: %w", err)
		}
	}
	return ca, at, writeKubeconfig(at(kubeconfigFile), server, ca)
}

// awaitReady waits until the API server says that it is ready.
func (c *contestant) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		_, err := c.client.CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			return nil
		}
		if ended := c.alive(); ended != nil {
			return ended
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the API server: %w", err)
		case <-time.After(contestPoll):
		}
	}
}
