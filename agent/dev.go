package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/server"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// DevConfig says what a development cluster is made of.
type DevConfig struct {
	// DataDir is kept between runs: a cluster that is started again from it
	// goes on where it was.
	DataDir string
	Version string
	Servers int
	Workers int
	// Runtime of the workers: "process", "cri" or "fake".
	Runtime string
	// CRI is where the workers' containers are, with the runtime cri.
	CRI CRIPart
	// Capacity of every worker; what it leaves out is the machine's.
	Capacity corev1.ResourceList
	// HTTPPort is the first server's API port; 0 takes a free one.
	HTTPPort  int
	Scheduler *berthv1.SchedulerConfiguration
	Consensus server.Consensus
	Logger    hclog.Logger
}

// Dev is a running development cluster: all of it in this process, on the
// loopback interface, with an authority of its own.
type Dev struct {
	config    DevConfig
	ca        *pki.CA
	gossipKey string
	agents    []*Agent
	held      disk.File // the data directory
	cancel    context.CancelFunc
	done      chan struct{} // the shared timeline of fake containers has ended
}

// devUser is who the development cluster's client is.
const devUser = "dev"

// StartDev starts a development cluster and waits until it has a leader and all
// its nodes are ready.
func StartDev(ctx context.Context, c DevConfig) (*Dev, error) {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Servers < 1 {
		return nil, errors.New("a cluster needs a server")
	}
	d := &Dev{config: c, done: make(chan struct{})}
	run, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	timeline := fake.NewTimeline(nil)
	go func() {
		defer close(d.done)
		timeline.Run(run)
	}()
	if err := d.start(ctx, timeline); err != nil {
		return nil, errors.Join(fmt.Errorf("start the development cluster: %w", err), d.Stop(ctx))
	}
	return d, nil
}

func (d *Dev) start(ctx context.Context, timeline *fake.Timeline) error {
	err := d.hold()
	if err != nil {
		return err
	}
	if d.ca, err = devCA(d.caDir()); err != nil {
		return err
	}
	if d.gossipKey, err = devGossipKey(d.caDir()); err != nil {
		return err
	}
	ports, claim, err := devPorts(filepath.Join(d.config.DataDir, "ports"), d.config.Servers)
	if err != nil {
		return err
	}
	defer claim.Release()
	if d.config.HTTPPort != 0 {
		ports[0].HTTP = d.config.HTTPPort
	}
	var join []string
	for i := range d.config.Servers {
		c, err := d.member(pki.Server, fmt.Sprintf("server-%d", i+1), join)
		if err != nil {
			return err
		}
		c.Ports = ports[i]
		c.Server = &ServerPart{
			BootstrapExpect: d.config.Servers, Scheduler: d.config.Scheduler, Consensus: d.config.Consensus,
		}
		a, err := Start(ctx, c)
		if err != nil {
			return err
		}
		d.agents = append(d.agents, a)
		join = append(join, a.GossipAddr())
	}
	for i := range d.config.Workers {
		c, err := d.member(pki.Worker, fmt.Sprintf("worker-%d", i+1), join)
		if err != nil {
			return err
		}
		c.Worker = &WorkerPart{
			Runtime: d.config.Runtime, CRI: d.config.CRI, Address: devAddress(d.config.Runtime, i), Capacity: d.config.Capacity, Timeline: timeline,
		}
		a, err := Start(ctx, c)
		if err != nil {
			return err
		}
		d.agents = append(d.agents, a)
	}
	return d.waitReady(ctx)
}

// hold takes the data directory, until the cluster has ended.
func (d *Dev) hold() (err error) {
	if err = os.MkdirAll(d.config.DataDir, 0o700); err != nil {
		return err
	}
	if d.held, err = disk.Open(disk.OS{}, d.config.DataDir); err == nil {
		err = d.held.Hold(false)
	}
	if errors.Is(err, disk.ErrHeld) {
		return fmt.Errorf("another berth dev runs in %s: end it, or give this one a data directory of its own", d.config.DataDir)
	}
	return err
}

// devRetry is how often a member of a development cluster looks for the others.
const devRetry = time.Second

func (d *Dev) member(kind pki.Kind, name string, join []string) (Config, error) {
	source, err := d.issue(kind, name)
	return Config{
		Name: name, Version: d.config.Version, DataDir: filepath.Join(d.config.DataDir, name),
		BindAddr: "127.0.0.1", Join: join, RetryInterval: devRetry, EncryptionKey: d.gossipKey,
		TLS: source, CA: d.ca.CertPEM(), Logger: d.config.Logger,
		Authority: pki.Files{CA: filepath.Join(d.caDir(), pki.CAFile), Key: filepath.Join(d.caDir(), pki.CAKeyFile)},
	}, err
}

// devAddress is an address of its own for a node whose containers are entries in
// memory: nothing listens there. Real containers listen where the machine does.
func devAddress(runtime string, i int) string {
	if runtime != "fake" {
		return ""
	}
	const perBlock = 250
	return net.IPv4(127, 0, byte(1+i/perBlock), byte(1+i%perBlock)).String()
}

func (d *Dev) issue(kind pki.Kind, name string) (*pki.Source, error) {
	r := pki.Request{Kind: kind, Name: name}
	if kind == pki.Server {
		r.DNSNames, r.IPs = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	}
	pair, err := d.ca.Issue(time.Now(), r)
	if err != nil {
		return nil, err
	}
	return pki.FromPEM(d.ca.CertPEM(), pair)
}

// caDir is where the authority of a development cluster is.
func (d *Dev) caDir() string { return filepath.Join(d.config.DataDir, "ca") }

// devCA opens the authority of a development cluster, or makes it.
func devCA(dir string) (*pki.CA, error) {
	if _, err := os.Stat(filepath.Join(dir, pki.CAFile)); err == nil {
		return pki.LoadCA(dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return pki.CreateCA(dir, pki.DefaultCAValidity, false)
}

// devGossipKey is the key of a development cluster's gossip, beside its authority, or makes it: all users of the machine reach
// the loopback interface.
func devGossipKey(dir string) (string, error) {
	if err := foundGossipKey(dir); err != nil {
		return "", err
	}
	return ownGossipKey(dir)
}

// waitReady returns once the servers agree on a leader and know every worker as
// ready.
func (d *Dev) waitReady(ctx context.Context) error {
	for {
		lacks, err := d.lacks()
		if lacks == "" || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the cluster: %s: %w", lacks, ctx.Err())
		case <-time.After(readyPoll):
		}
	}
}

const readyPoll = 20 * time.Millisecond

// lacks says what the cluster waits for; "" is nothing.
func (d *Dev) lacks() (string, error) {
	for _, a := range d.agents {
		select {
		case err := <-a.fatal: // of workers
			return "", err
		default:
		}
	}
	for _, s := range d.Servers() {
		select {
		case err := <-s.Fatal():
			return "", err
		default:
		}
		view := s.View()
		if _, ok := view.Namespaces.Get("default"); !ok {
			return "nobody leads it", nil
		}
		if n := view.Nodes.Len(); n < d.config.Workers {
			return fmt.Sprintf("it has %d of %d nodes", n, d.config.Workers), nil
		}
	}
	return "", nil
}

// Servers are the cluster's servers, the first one first.
func (d *Dev) Servers() []*server.Server {
	var out []*server.Server
	for _, a := range d.agents {
		if a.server != nil {
			out = append(out, a.server)
		}
	}
	return out
}

// Leader is the server that leads, nil while there is none.
func (d *Dev) Leader() *server.Server {
	for _, s := range d.Servers() {
		if s.IsLeader() {
			return s
		}
	}
	return nil
}

// CA is the PEM of the cluster's authority.
func (d *Dev) CA() []byte { return d.ca.CertPEM() }

// Source is a certificate of the cluster, for members that are started beside
// it.
func (d *Dev) Source(kind pki.Kind, name string) (*pki.Source, error) { return d.issue(kind, name) }

// Client makes a client certificate for an administrator.
func (d *Dev) Client() (pki.Pair, error) {
	return d.ca.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: devUser, Groups: []string{"system:masters"}})
}

// Fatal tells why the cluster can not go on: the first member that had to give
// up.
func (d *Dev) Fatal(ctx context.Context) <-chan error {
	out := make(chan error, 1)
	for _, a := range d.agents {
		go func() {
			select {
			case err := <-a.Fatal():
				select {
				case out <- err:
				default:
				}
			case <-ctx.Done():
			}
		}()
	}
	return out
}

// Stop ends the cluster. Pods go on running and are found again, but for those of
// the fake runtime.
func (d *Dev) Stop(ctx context.Context) error {
	errs := make([]error, len(d.agents))
	servers := min(d.config.Servers, len(d.agents))
	var workers sync.WaitGroup
	for i, a := range d.agents[servers:] {
		workers.Go(func() { errs[servers+i] = a.Stop(ctx) })
	}
	workers.Wait()
	for i := servers - 1; i >= 0; i-- {
		errs[i] = d.agents[i].Stop(ctx)
	}
	d.cancel()
	<-d.done
	if d.held != nil {
		errs = append(errs, d.held.Close())
	}
	return errors.Join(errs...)
}

// Running are the pods that are on the workers, by namespace/name, of which Stop leaves something behind.
func (d *Dev) Running() []string {
	if d.config.Runtime == "fake" {
		return nil
	}
	var out []string
	d.Servers()[0].View().Pods.Scan("", func(key string, pod *corev1.Pod) bool {
		if pod.Spec.NodeName != "" && !model.Terminal(pod) {
			out = append(out, key)
		}
		return true
	})
	return out
}

// EndPods ends every pod of the cluster, and the workloads that would make
// them again. It returns when nothing of them is left, or with the context's error.
func (d *Dev) EndPods(ctx context.Context) error {
	leader := d.Servers()[0]
	for empty := 0; empty < endSeenEmpty; {
		var ps []fsm.Proposal
		grace := int64(1)
		v := leader.View()
		for _, kind := range fsm.ObjectKinds() {
			if kind.Workload == nil {
				continue
			}
			v.Objects.Scan(kind.Resource+"/", func(_ string, o *fsm.Object) bool {
				if o.Value.GetDeletionTimestamp() == nil {
					ps = append(ps, fsm.Proposal{User: devUser, Command: &fsm.DeleteObject{
						Resource: kind.Resource, Namespace: o.Value.GetNamespace(), Name: o.Value.GetName(),
					}})
				}
				return len(ps) < endBatch
			})
		}
		v.Pods.Scan("", func(key string, pod *corev1.Pod) bool {
			if pod.DeletionGracePeriodSeconds == nil || *pod.DeletionGracePeriodSeconds > grace {
				ps = append(ps, fsm.Proposal{User: devUser, Command: &fsm.DeletePod{Key: key, GraceSeconds: &grace}})
			}
			return len(ps) < endBatch
		})
		if empty++; v.Pods.Len() > 0 {
			empty = 0
		}
		if len(ps) > 0 {
			if _, err := leader.Propose(ctx, ps...); err != nil {
				return fmt.Errorf("end the pods: %w", err)
			}
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end the pods: %w", ctx.Err())
		case <-time.After(readyPoll):
		}
	}
	return nil
}

const (
	endBatch = 1000
	// endSeenEmpty is how often in a row no pod must be there: a controller may just be making one more for what is gone.
	endSeenEmpty = 5
)
