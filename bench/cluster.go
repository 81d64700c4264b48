package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/server"
)

const (
	user = "bench"
	// poll is how often the harness looks whether something has come about.
	poll = 5 * time.Millisecond
	// startTimeout bounds starting and stopping; stallTimeout is how long a
	// workload may make no progress.
	startTimeout = 2 * time.Minute
	stallTimeout = time.Minute
	// batch is how many small commands the harness proposes at a time.
	batch = 1_000
)

var groups = []string{"system:masters"}

// cluster is the servers in this process, and their nodes.
type cluster struct {
	dev     *agent.Dev
	servers []*server.Server
	fleet   *fleet
}

// start starts the servers of a workload, with its nodes.
func (r *run) start(ctx context.Context) (*cluster, error) {
	c, err := r.startServers(ctx, server.Consensus{})
	if err != nil {
		return nil, err
	}
	if err := r.addNodes(ctx, c); err != nil {
		return nil, errors.Join(err, c.stop(ctx))
	}
	return c, nil
}

func (r *run) startServers(ctx context.Context, consensus server.Consensus) (*cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	dev, err := agent.StartDev(ctx, agent.DevConfig{
		DataDir: r.DataDir, Version: r.Version, Servers: r.Servers, Runtime: "fake", Consensus: consensus, Scheduler: r.scheduler(), Logger: r.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &cluster{dev: dev, servers: dev.Servers()}, nil
}

// scheduler is the configuration that the cluster begins with: the default one, but
// that stubs are not missed. Nobody renews a lease for them, so that nothing else
// is in the log than what is measured.
func (r *run) scheduler() *berthv1.SchedulerConfiguration {
	c := berthv1.Default()
	if r.Workers == StubWorkers {
		day := int32((24 * time.Hour) / time.Second)
		c.Spec.NodeGraceSeconds = &day
	}
	return c
}

// stop ends everything.
func (c *cluster) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	if c.fleet != nil {
		c.fleet.stop()
	}
	return c.dev.Stop(ctx)
}

// addNodes registers the nodes of the workload, or starts their workers.
func (r *run) addNodes(ctx context.Context, c *cluster) error {
	if r.Workers == FakeWorkers {
		var err error
		if c.fleet, err = startFleet(ctx, c.fleetOf(r.Nodes, r.Version)); err != nil {
			return err
		}
	} else if err := c.registerStubs(ctx, 0, r.Nodes); err != nil {
		return err
	}
	return c.await(ctx, "the nodes to be ready", func(v *fsm.View) (bool, int) { return v.Nodes.Len() == r.Nodes, v.Nodes.Len() })
}

// fleetOf is a fleet that connects to all servers.
func (c *cluster) fleetOf(workers int, version string) fleetConfig {
	var addrs []string
	for _, s := range c.servers {
		addrs = append(addrs, s.RPCAddr())
	}
	return fleetConfig{
		workers: workers, servers: addrs, version: version,
		source:     func(name string) (*pki.Source, error) { return c.dev.Source(pki.Worker, name) },
		registered: func(context.Context) (int, error) { return c.servers[0].View().Nodes.Len(), nil },
	}
}

// registerStubs registers the nodes of these numbers, with nobody behind them.
func (c *cluster) registerStubs(ctx context.Context, from, to int) error {
	var commands []fsm.Command
	for i := from; i < to; i++ {
		commands = append(commands, &fsm.RegisterNode{Node: fsm.NodeWire{Object: stubNode(i)}})
	}
	return c.propose(ctx, commands)
}

// The pods and nodes are those of kube-scheduler's own benchmarks.
func nodeCapacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("32Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func stubNode(i int) *corev1.Node {
	name := nodeName(i)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zoneName(i)}},
		Status:     corev1.NodeStatus{Capacity: nodeCapacity(), Allocatable: nodeCapacity()},
	}
}

func newPod(cpu, memory string) *corev1.Pod {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &seconds,
			RestartPolicy:                 corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
			SchedulerName: corev1.DefaultSchedulerName, SecurityContext: &corev1.PodSecurityContext{},
			Containers: []corev1.Container{{
				Name: "pause", Image: "registry.k8s.io/pause:3.10", ImagePullPolicy: corev1.PullIfNotPresent,
				TerminationMessagePath:   corev1.TerminationMessagePathDefault,
				TerminationMessagePolicy: corev1.TerminationMessageReadFile,
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
				}},
			}},
		},
	}
}

// propose carries commands out, and fails if one is refused.
func (c *cluster) propose(ctx context.Context, commands []fsm.Command) error {
	for len(commands) > 0 {
		n := min(batch, len(commands))
		ps := make([]fsm.Proposal, n)
		for i, command := range commands[:n] {
			ps[i] = fsm.Proposal{User: user, Groups: groups, Command: command}
		}
		rs, err := c.servers[0].Propose(ctx, ps...)
		if err != nil {
			return err
		}
		for i := range rs {
			if err := rs[i].Err(); err != nil {
				return fmt.Errorf("%T: %w", commands[i], err)
			}
		}
		commands = commands[n:]
	}
	return nil
}

// maxAdmit is the most pods that one AdmitPods takes.
const maxAdmit = 1000

// admit stores many pods of one template by few commands.
func (c *cluster) admit(ctx context.Context, template *corev1.Pod, count int) error {
	var commands []fsm.Command
	for ; count > 0; count -= maxAdmit {
		commands = append(commands, &fsm.AdmitPods{Template: fsm.PodWire{Object: template}, Count: int32(min(count, maxAdmit))})
	}
	return c.propose(ctx, commands)
}

// await waits until something holds on every server. The condition also tells
// how far things have come: a workload fails when nothing moves any more.
func (c *cluster) await(ctx context.Context, what string, holds func(v *fsm.View) (bool, int)) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	progress, moved := -1, time.Now()
	for {
		all, sum := true, 0
		for _, s := range c.servers {
			done, n := holds(s.View())
			all = all && done
			sum += n
			select {
			case err := <-s.Fatal():
				return fmt.Errorf("waiting for %s: server %s: %w", what, s.Name(), err)
			default:
			}
		}
		switch {
		case all:
			return nil
		case sum != progress:
			progress, moved = sum, time.Now()
		case time.Since(moved) > stallTimeout:
			return fmt.Errorf("waiting for %s: nothing moved for %s, at %d on all servers together\n%s", what, stallTimeout, sum, c.describe())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-ticker.C:
		}
	}
}

// describe is where the servers stand, for a workload that does not go on.
func (c *cluster) describe() string {
	var b strings.Builder
	for _, s := range c.servers {
		v := s.View()
		ready := 0
		v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
			if len(n.Spec.Taints) == 0 {
				ready++
			}
			return true
		})
		fmt.Fprintf(&b, "  %s: leads %t, index %d, %d nodes without taints, %d pods, queue %+v, %d nominations\n",
			s.Name(), s.IsLeader(), v.Index(), ready, v.Pods.Len(), v.QueueLengths(), v.Nominations.Len())
	}
	return b.String()
}

// bound is the number of pods that have a node.
func bound(v *fsm.View) int { return v.Pods.Len() - v.Queue.Len() }

func (c *cluster) awaitBound(ctx context.Context, pods int) error {
	return c.await(ctx, fmt.Sprintf("%d pods to be bound", pods), func(v *fsm.View) (bool, int) {
		return bound(v) >= pods, bound(v)
	})
}

// clients are ordinary ones, each for one of the servers in turn.
func (c *cluster) clients(n int) ([]kubernetes.Interface, error) {
	pair, err := c.dev.Client()
	if err != nil {
		return nil, err
	}
	out := make([]kubernetes.Interface, n)
	for i := range out {
		s := c.servers[i%len(c.servers)]
		if out[i], err = newClient(s.HTTPAddr(), c.dev.CA(), pair); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// newClient makes a client that speaks protobuf, as Kubernetes' own components
// do, and does not hold itself back.
func newClient(addr string, ca []byte, pair pki.Pair) (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(restConfig(addr, ca, pair))
}

func restConfig(addr string, ca []byte, pair pki.Pair) *rest.Config {
	return &rest.Config{
		Host: "https://" + addr, QPS: -1,
		ContentConfig: rest.ContentConfig{
			ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
		TLSClientConfig: rest.TLSClientConfig{
			CAData: ca, CertData: pair.CertPEM, KeyData: pair.KeyPEM, ServerName: pki.ServerDNSName,
		},
	}
}
