package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/pki"
)

// patience is for a machine that is busy with other things, or is emulated.
var patience = func() time.Duration {
	if os.Getenv(inVM) != "" {
		return 5 * time.Minute
	}
	return 2 * time.Minute
}()

const (
	pollEvery = 50 * time.Millisecond
	stopGrace = 20 * time.Second
	// askTimeout bounds one question within a wait.
	askTimeout = 20 * time.Second
)

// cluster is a fleet with a command line's configuration.
type cluster struct {
	*fleet.Fleet
	env []string
}

func server(name string, more ...string) fleet.Spec {
	return fleet.Spec{Name: name, Kind: pki.Server, HCL: "server {\n  enabled = true\n" + strings.Join(more, "\n") + "\n}\n"}
}

// ample: no pod is evicted because the tests' machine has little disk or memory left.
const ample = `eviction {
    hard = { "memory.available" = "0", "nodefs.available" = "0", "imagefs.available" = "0", "nodefs.inodesFree" = "0", "imagefs.inodesFree" = "0" }
  }`

// fakeRuntime is the runtime of workers that run nothing. It uses nothing of the machine, and nobody is evicted from it.
const fakeRuntime = `runtime = "fake"`

// worker is one that runs processes and has enough of everything, unless it says otherwise: what answers on the machine, and
// how full it is, is none of the tests'.
func worker(name string, more ...string) fleet.Spec {
	if !slices.ContainsFunc(more, func(line string) bool { return strings.HasPrefix(line, "runtime") }) {
		more = append(more, `runtime = "process"`)
	}
	if !slices.ContainsFunc(more, func(line string) bool { return strings.HasPrefix(line, "eviction") || line == fakeRuntime }) {
		more = append(more, ample)
	}
	return fleet.Spec{Name: name, Kind: pki.Worker, HCL: "worker {\n  enabled = true\n" + strings.Join(more, "\n") + "\n}\n"}
}

// newCluster configures and starts agents, and ends everything after the test.
func newCluster(t *testing.T, specs ...fleet.Spec) *cluster {
	t.Helper()
	c, err := startCluster(t.Name(), specs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.end(t) })
	return c
}

func startCluster(name string, specs ...fleet.Spec) (*cluster, error) {
	dir, err := os.MkdirTemp(root, strings.ReplaceAll(name, "/", "-")+"-")
	if err != nil {
		return nil, err
	}
	f, err := fleet.New(binary, dir)
	if err != nil {
		return nil, err
	}
	f.DieTogether = true
	c := &cluster{Fleet: f}
	if _, err := f.Add(specs...); err != nil {
		return nil, err
	}
	if err := c.writeCLI(); err != nil {
		return nil, err
	}
	return c, f.Start()
}

// writeCLI writes what a person would: a context with every server.
func (c *cluster) writeCLI() error {
	files, err := pki.Issue(filepath.Join(c.Dir, "ca"), pki.Request{Kind: pki.Client, Name: "ada", Groups: []string{"system:masters"}}, true)
	if err != nil {
		return err
	}
	var addresses []string
	for _, s := range c.Servers() {
		addresses = append(addresses, fmt.Sprintf("%q", s.HTTP()))
	}
	file, err := c.WriteFile("cli.hcl", fmt.Sprintf(`current_context = "test"
context "test" {
  addresses = [%s]
  tls {
    ca_file   = %q
    cert_file = %q
    key_file  = %q
  }
}
`, strings.Join(addresses, ", "), files.CA, files.Cert, files.Key))
	c.env = []string{"HOME=" + c.Dir, "PATH=" + os.Getenv("PATH"), "BERTH_CLI_CONFIG=" + file}
	return err
}

// end ends the pods while there is somebody to end them, and then everything.
func (c *cluster) end(t testing.TB) {
	if err := c.stop(t); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		for _, p := range c.Processes() {
			t.Logf("the log of %s ends:\n%s", p.Name, p.LogTail(25))
		}
	}
}

// stop is end, and says what should not have been left to end. t is told what is no failure; nil: nobody is.
func (c *cluster) stop(t testing.TB) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if len(c.Workers()) > 0 && c.Leader(ctx) != nil {
		if err := c.deletePods(ctx, metav1.NamespaceAll); err != nil && t != nil {
			t.Logf("the pods are ended by force: %v", err)
		}
	}
	c.Stop(stopGrace)
	lost := strays(c.Dir)
	if _, left := reap(c.Dir); len(lost)+len(left) > 0 {
		return fmt.Errorf("containers that have ended have left the processes %v; those that could not be ended: %v", lost, left)
	}
	return nil
}

// deletePods deletes the pods of a namespace, or of all, with what would make others, and waits for their end.
func (c *cluster) deletePods(ctx context.Context, namespace string) error {
	kube := c.Reader().Kube
	now := int64(0)
	for {
		list, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) == 0 {
			return nil
		}
		if err == nil {
			spaces := map[string]bool{}
			for i := range list.Items {
				spaces[list.Items[i].Namespace] = true
			}
			for space := range spaces {
				for _, kind := range []interface {
					DeleteCollection(context.Context, metav1.DeleteOptions, metav1.ListOptions) error
				}{
					kube.BatchV1().CronJobs(space), kube.BatchV1().Jobs(space), kube.AppsV1().Deployments(space), kube.AppsV1().ReplicaSets(space),
					kube.AppsV1().StatefulSets(space), kube.AppsV1().DaemonSets(space), kube.CoreV1().Pods(space),
				} {
					err = errors.Join(err, kind.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
				}
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(pollEvery):
		}
	}
}

// eventually asks until there is no error any more.
func (c *cluster) eventually(t testing.TB, what string, ask func(ctx context.Context) error) {
	t.Helper()
	ctx := t.Context()
	if ctx.Err() != nil {
		ctx = context.Background() // the test is cleaning up
	}
	if err := c.wait(ctx, what, ask); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) wait(ctx context.Context, what string, ask func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last error // of an ask that had its time
	for {
		one, done := context.WithTimeout(ctx, askTimeout)
		err := ask(one)
		done()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if ended := c.Alive(); ended != nil {
			return fmt.Errorf("waiting for %s: %w", what, ended)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, last)
		case <-time.After(pollEvery):
		}
	}
}

// waitReady waits until every worker is a ready node.
func (c *cluster) waitReady(ctx context.Context) error {
	return c.wait(ctx, "the nodes", func(ctx context.Context) error {
		nodes, err := c.Reader().Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready, want := 0, 0
		for _, w := range c.Workers() {
			if w.Running() {
				want++
			}
		}
		for i := range nodes.Items {
			if nodeReady(&nodes.Items[i]) {
				ready++
			}
		}
		if ready != want {
			return fmt.Errorf("%d of %d nodes are ready", ready, want)
		}
		_, err = c.Reader().Kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return err
	})
}

// waitLeader waits for a leader that all running servers know.
func (c *cluster) waitLeader(t testing.TB) *fleet.Process {
	t.Helper()
	var leader *fleet.Process
	c.eventually(t, "a leader", func(ctx context.Context) error {
		if leader = c.Leader(ctx); leader == nil {
			return errors.New("nobody leads")
		}
		for _, s := range c.Servers() {
			if !s.Running() {
				continue
			}
			status, err := s.Status(ctx)
			if err != nil {
				return err
			}
			if status.Leader != leader.Name {
				return fmt.Errorf("%s says that %q leads, and %s says it does", s.Name, status.Leader, leader.Name)
			}
		}
		return nil
	})
	return leader
}

// followers are the running servers that do not lead.
func (c *cluster) followers(t testing.TB) []*fleet.Process {
	t.Helper()
	leader := c.waitLeader(t)
	var out []*fleet.Process
	for _, s := range c.Servers() {
		if s != leader && s.Running() {
			out = append(out, s)
		}
	}
	return out
}

// restart starts a server that was killed, and waits until it serves.
func (c *cluster) restart(t testing.TB, p *fleet.Process) {
	t.Helper()
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	c.eventually(t, p.Name+" to serve again", func(ctx context.Context) error {
		_, err := p.Kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return err
	})
}

// verify waits until all servers answer, and compares their states.
func (c *cluster) verify(t testing.TB, servers int) {
	t.Helper()
	c.eventually(t, "the servers' digests", func(ctx context.Context) error {
		v, err := c.Reader().Verify(ctx)
		if err != nil {
			return err
		}
		if len(v.Servers) != servers {
			return fmt.Errorf("%d servers answered: %+v", len(v.Servers), v.Servers)
		}
		for _, one := range v.Servers {
			if one.Error != "" {
				return fmt.Errorf("%s: %s", one.Name, one.Error)
			}
		}
		if !v.Equal {
			t.Fatalf("the states differ at index %d: %+v", v.Index, v.Servers)
		}
		return nil
	})
}

// The cluster that tests share which leave it as they found it: three servers,
// three workers that run processes and one that only pretends.
var shared struct {
	once sync.Once
	c    *cluster
	err  error
}

func sharedCluster(t *testing.T) *cluster {
	t.Helper()
	shared.once.Do(func() {
		var specs []fleet.Spec
		for i := range 3 {
			specs = append(specs, server(fmt.Sprintf("server-%d", i+1), "bootstrap_expect = 3"))
		}
		for i := range 3 {
			specs = append(specs, worker(fmt.Sprintf("worker-%d", i+1), `capacity { cpu = "4" }`))
		}
		specs = append(specs, pretender())
		if shared.c, shared.err = startCluster("shared", specs...); shared.err == nil {
			shared.err = shared.c.waitReady(context.Background())
		}
	})
	if shared.err != nil {
		t.Fatalf("the shared cluster did not start: %v", shared.err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, p := range shared.c.Processes() {
			t.Logf("the log of %s ends:\n%s", p.Name, p.LogTail(25))
		}
	})
	return shared.c
}

// pretender is a worker with room for everybody who asks for it, see pretended.
func pretender() fleet.Spec {
	return worker("pretender", `runtime = "fake"`, `taints = ["pretend:NoSchedule"]`, `max_pods = 10000`, `capacity { cpu = "1000" }`)
}

func stopShared() error {
	if shared.c == nil {
		return nil
	}
	return shared.c.stop(nil)
}

// namespace makes a namespace for a test, and empties it afterwards.
func (c *cluster) namespace(t *testing.T, name string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.eventually(t, "namespace "+name, func(ctx context.Context) error {
		_, err := c.Reader().Kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.deletePods(ctx, name); err != nil {
			t.Errorf("delete the pods of %s: %v", name, err)
		}
	})
	return name
}

// pod runs a command in a shell.
func pod(namespace, name, command string, more ...func(*corev1.Pod)) *corev1.Pod {
	grace := int64(20)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{{Name: "main", Image: "none", Command: []string{"/bin/sh", "-c", command}}},
		},
	}
	for _, f := range more {
		f(p)
	}
	return p
}

func cpu(amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	}
}

func class(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.PriorityClassName = name }
}

func on(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node} }
}

// pretended pods go to the worker with the fake runtime.
func pretended(p *corev1.Pod) {
	on("pretender")(p)
	p.Spec.Tolerations = []corev1.Toleration{{Key: "pretend", Operator: corev1.TolerationOpExists}}
}

func nodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

func create(t testing.TB, kube kubernetes.Interface, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		if _, err := kube.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatalf("create pod %s/%s: %v", p.Namespace, p.Name, err)
		}
	}
}

// waitRunning waits until pods are ready, and returns them.
func (c *cluster) waitRunning(t testing.TB, namespace string, names ...string) []*corev1.Pod {
	t.Helper()
	var out []*corev1.Pod
	for _, name := range names {
		c.eventually(t, "pod "+namespace+"/"+name+" to run", func(ctx context.Context) error {
			p, err := c.Reader().Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !podReady(p) {
				return fmt.Errorf("it is %s on %q: %+v", p.Status.Phase, p.Spec.NodeName, p.Status.Conditions)
			}
			out = append(out, p)
			return nil
		})
	}
	return out
}
