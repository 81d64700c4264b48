package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/pki"
)

// fasterTarget is how many times as fast as kube-controller-manager Berth's controllers have to be.
const fasterTarget = 5

// controllers: what Berth's controllers do is done once more, in a cluster that runs none of them, by
// kube-controller-manager through the API.
func controllers(ctx context.Context, r *run) error {
	if err := r.mayContest(); err != nil {
		return err
	}
	dir := r.DataDir
	ours, err := r.inBerth(ctx, "Berth", filepath.Join(dir, "berth"), nil)
	if err != nil || r.ControllerManager == "" {
		return err
	}
	theirs, err := r.inBerth(ctx, controllerManager, filepath.Join(dir, "other"), func(c *contestant, ps *processes) error {
		return c.startControllerManager(ctx, ps)
	})
	if err != nil {
		return err
	}
	for i := range ours.legs {
		faster, cheaper := ours.legs[i].over(&theirs.legs[i])
		r.target(ours.legs[i].what+": times as fast", faster, "", fmt.Sprintf("≥ %d", fasterTarget), faster >= fasterTarget)
		r.figure(ours.legs[i].what+": times the processor time", cheaper, "")
	}
	return nil
}

// inBerth lets a cluster of Berth's servers go through the stages. With another program's start, that one does what
// Berth's controllers of these kinds do otherwise.
func (r *run) inBerth(ctx context.Context, who, dir string, start func(c *contestant, ps *processes) error) (*contestant, error) {
	var settings serverSettings
	if start != nil {
		settings.Controllers = []string{"*", "-deployment", "-replicaset", "-job"}
	}
	there := *r
	there.DataDir = dir
	ps, err := there.startProcesses(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", who, err)
	}
	defer ps.stop()
	fleet, err := ps.fleet(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", who, err)
	}
	defer fleet.stop()
	leader, _, err := ps.awaitLeader(ctx, 0)
	if err != nil {
		return nil, err
	}
	c := &contestant{run: r, who: who, client: leader.client, agree: func(ctx context.Context) error { return ps.awaitAgreement(ctx, leader) }}
	for _, p := range ps.servers {
		cmd, _ := p.running()
		c.pids = append(c.pids, cmd.Process.Pid)
	}
	defer c.stop()
	if start != nil {
		if err := start(c, ps); err != nil {
			return nil, fmt.Errorf("%s: %w", who, err)
		}
	}
	if err := c.carryOut(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w; the programs' last words:\n%s%s", who, err, c.lastWords(), ps.lastWords())
	}
	return c, nil
}

// awaitAgreement waits until the states of all servers are known to be equal.
func (ps *processes) awaitAgreement(ctx context.Context, by *process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not all servers agreed within %s", startTimeout))
	defer cancel()
	for {
		all, err := ps.verify(ctx, by)
		if err != nil || all {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * poll):
		}
	}
}

// startControllerManager starts the controllers whose work Berth's servers leave to it. It may ask the leader as much as it
// likes, as an administrator and in protobuf.
func (c *contestant) startControllerManager(ctx context.Context, ps *processes) error {
	leader, _, err := ps.awaitLeader(ctx, 0)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(leader.dir, "kubeconfig")
	if err := writeKubeconfig(kubeconfig, "https://"+leader.addr(leader.http), ps.ca); err != nil {
		return err
	}
	return c.startProgram(leader.dir, c.ControllerManager, append(unhurried(kubeconfig),
		"--controllers=deployment-controller,replicaset-controller,job-controller")...)
}

// unhurried are the flags with which kube-controller-manager is not held back by the bounds that it sets to itself.
func unhurried(kubeconfig string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0", "--kube-api-qps=100000", "--kube-api-burst=100000",
		"--kube-api-content-type=" + runtime.ContentTypeProtobuf,
	}
}

// writeKubeconfig writes how an administrator reaches a server.
func writeKubeconfig(path, server string, ca *pki.CA) error {
	pair, err := ca.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: user, Groups: groups})
	if err != nil {
		return err
	}
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{user: {Server: server, CertificateAuthorityData: ca.CertPEM()}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: pair.CertPEM, ClientKeyData: pair.KeyPEM}},
		Contexts:       map[string]*clientcmdapi.Context{user: {Cluster: user, AuthInfo: user}},
		CurrentContext: user,
	}, path)
}

// program is a process that takes part in a contest beside Berth's servers, or in their place.
type program struct {
	*exec.Cmd
	log   string
	ended chan struct{}
}

// startProgram starts one whose output goes into a directory. It is killed in the end: nothing of it is kept.
func (c *contestant) startProgram(dir, binary string, args ...string) error {
	p := &program{Cmd: exec.Command(binary, args...), log: filepath.Join(dir, filepath.Base(binary)+".log"), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own
	p.Stdout, p.Stderr = log, log
	if err := p.Start(); err != nil {
		return fmt.Errorf("start %s: %w", binary, err)
	}
	go func() {
		_ = p.Wait() // how it ended is in its log
		close(p.ended)
	}()
	c.programs = append(c.programs, p)
	c.pids = append(c.pids, p.Process.Pid)
	return nil
}

// stop ends the programs, the last one first.
func (c *contestant) stop() {
	for i := len(c.programs) - 1; i >= 0; i-- {
		_ = c.programs[i].Process.Kill() // it fails only for one that has ended
		<-c.programs[i].ended
	}
	c.ports.Release()
}

// alive is an error if one of the programs has ended.
func (c *contestant) alive() error {
	for _, p := range c.programs {
		select {
		case <-p.ended:
			return errors.New(filepath.Base(p.Path) + " has ended")
		default:
		}
	}
	return nil
}

// lastWords are the ends of the programs' logs.
func (c *contestant) lastWords() string {
	var b strings.Builder
	for _, p := range c.programs {
		log, err := os.ReadFile(p.log)
		if err != nil {
			log = []byte(err.Error())
		}
		fmt.Fprintf(&b, "%s:\n%s\n", filepath.Base(p.Path), log[max(0, len(log)-2000):])
	}
	return b.String()
}
