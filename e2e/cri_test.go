package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/worker/runtime/cri/containerdtest"
	"github.com/berth-dev/berth/worker/runtime/cri/criotest"
	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

var crioPrograms = flag.String("crio", "", "a folder with crio and pinns: tests of real containers have a CRI-O, not a containerd")

// daemon is a container runtime of the tests' own.
type daemon interface {
	Endpoint() string
	Run(ctx context.Context) error
	Kill()
	KillSandbox(ctx context.Context, podUID string) error
	Left(ctx context.Context) (string, error)
	Close() error
}

// realDaemon is a daemon whose containers stand on shims.
type realDaemon interface {
	daemon
	KillShim(ctx context.Context, podUID string) error
	Running(ctx context.Context) ([]string, error)
	BreakNetwork() (repair func() error, err error)
	Network() ([]string, error)
	Processes() []int
	LogTail() string
	Dial() (*grpc.ClientConn, error)
}

// runtimeService is how a daemon is asked for what it keeps, as long as the test lasts.
func runtimeService(t *testing.T, d realDaemon) criv1.RuntimeServiceClient {
	t.Helper()
	conn, err := d.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is under way
	return criv1.NewRuntimeServiceClient(conn)
}

// ofPod are the labels by which a daemon finds what is a pod's.
func ofPod(p *corev1.Pod) map[string]string {
	return map[string]string{"io.kubernetes.pod.uid": string(p.UID)}
}

// startDaemon starts a containerd, or the CRI-O that the tests are told of.
func startDaemon(ctx context.Context, number uint16) (realDaemon, error) {
	if programs := *crioPrograms; programs != "" {
		return criotest.Start(ctx, programs, "", number) // below root the paths of its sockets would be too long
	}
	var options []func(*containerdtest.Daemon)
	if os.Getenv(inVM) == "systemd" {
		options = append(options, containerdtest.BySystemd)
	}
	return containerdtest.Start(ctx, root, number, options...)
}

// idPrefix is how the names of containers begin.
func idPrefix() string {
	if *crioPrograms != "" {
		return "cri-o://"
	}
	return "containerd://"
}

// The daemon that tests share, made by the first that needs it.
var criDaemon struct {
	once sync.Once
	d    realDaemon
	err  error
}

// realContainers is a daemon of the tests' own. Tests are left out where nobody could install one, and fail where root
// could.
func realContainers(t *testing.T) realDaemon {
	t.Helper()
	needsContainers(t)
	criDaemon.once.Do(func() {
		d, err := startDaemon(context.Background(), uint16(os.Getpid()))
		if criDaemon.err = err; err == nil {
			criDaemon.d = d
		}
	})
	if criDaemon.err != nil {
		t.Fatal(criDaemon.err)
	}
	return criDaemon.d
}

// mayLackContainers: nobody could install what real containers need, or is told not to.
func mayLackContainers() bool {
	return os.Geteuid() != 0 || os.Getenv("BERTH_WITHOUT_CONTAINERS") != ""
}

func missingForContainers() string {
	if *crioPrograms != "" {
		return criotest.Missing(*crioPrograms)
	}
	return containerdtest.Missing()
}

// needsContainers leaves a test out where real containers may be lacking and are, and fails it where they have to be there.
func needsContainers(t *testing.T) {
	t.Helper()
	missing := missingForContainers()
	if missing == "" {
		return
	}
	if mayLackContainers() {
		t.Skipf("real containers need %s", missing)
	}
	t.Fatalf("real containers need %s: `make containers` installs it on Debian; BERTH_WITHOUT_CONTAINERS=1 leaves these tests out", missing)
}

// stopRealContainers ends it, and says what the tests left in it.
func stopRealContainers() error {
	if criDaemon.d == nil {
		return nil
	}
	if os.Getenv(inVM) != "" {
		return criDaemon.d.Close() // what is left goes with the machine
	}
	left, err := criDaemon.d.Left(context.Background())
	if left != "" {
		err = errors.Join(err, fmt.Errorf("left behind: %s", left))
	}
	return errors.Join(err, criDaemon.d.Close())
}

// criWorker is a worker of that daemon, by the runtime cri or auto. It leaves the rules of this machine's network alone.
func criWorker(d daemon, name, runtime string, more ...string) fleet.Spec {
	return worker(name, append(more, fmt.Sprintf("runtime = %q", runtime), fmt.Sprintf("cri {\n  endpoint = %q\n}", d.Endpoint()), "services {\n  mode = \"off\"\n}")...)
}

// byRuntime runs a test that waits, mostly, for both runtimes at a time; without a daemon pods are processes.
func byRuntime(t *testing.T, test func(*testing.T, realDaemon)) {
	t.Run("process", func(t *testing.T) {
		t.Parallel()
		test(t, nil)
	})
	t.Run("cri", func(t *testing.T) {
		t.Parallel()
		test(t, realContainers(t))
	})
}

// oneWorker is a server and worker-1, which is ready: of real containers, or, without a daemon, of processes.
func oneWorker(t *testing.T, d daemon, option string) *cluster {
	t.Helper()
	w, s := worker("worker-1", option), server("server-1", "bootstrap_expect = 1")
	if d != nil {
		w = criWorker(d, "worker-1", "cri", option)
		s.Host, w.Host = reachable(), reachable()
	}
	c := newCluster(t, s, w)
	if d != nil {
		c.emptied(t, d)
	}
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// emptied sees to it that the pods are gone from their node before the test ends what would have to end them.
func (c *cluster) emptied(t *testing.T, d daemon) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.deletePods(ctx, metav1.NamespaceAll); err != nil {
			t.Error(err)
		}
		c.eventually(t, "nothing to be left on the node", func(ctx context.Context) error {
			left, err := d.Left(ctx)
			if err == nil && left != "" {
				err = errors.New(left)
			}
			return err
		})
	})
}

// imaged is a pod of an image.
func imaged(name, command string, more ...func(*corev1.Pod)) *corev1.Pod {
	p := pod("default", name, command, more...)
	if c := &p.Spec.Containers[0]; c.Image == "none" {
		c.Image = daemontest.Busybox
	}
	return p
}

func (c *cluster) get(ctx context.Context, name string) (*corev1.Pod, error) {
	return c.Reader().Kube.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
}

// waitFor waits until a pod is as it is to be, and returns it.
func (c *cluster) waitFor(t *testing.T, name, what string, ok func(p *corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var out *corev1.Pod
	c.eventually(t, "pod "+name+": "+what, func(ctx context.Context) error {
		p, err := c.get(ctx, name)
		if err == nil && !ok(p) {
			err = fmt.Errorf("it is %s: %+v %+v", p.Status.Phase, p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
		}
		out = p
		return err
	})
	return out
}

func waiting(p *corev1.Pod) string {
	if s := p.Status.ContainerStatuses; len(s) > 0 && s[0].State.Waiting != nil {
		return s[0].State.Waiting.Reason
	}
	return ""
}

// hasEvent waits for an event about a pod.
func (c *cluster) hasEvent(t *testing.T, pod, reason, text string) {
	t.Helper()
	c.eventually(t, "event "+reason+" of "+pod, func(ctx context.Context) error {
		list, err := c.Reader().Kube.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return err
		}
		var seen []string
		for i := range list.Items {
			e := &list.Items[i]
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("there are: %q", seen)
	})
}

// What only real containers show: addresses, images, and a runtime that goes away.
func TestRealContainers(t *testing.T) {
	d := realContainers(t)
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"), criWorker(d, "worker-1", "auto"))
	c.emptied(t, d)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	kube := c.Reader().Kube

	t.Run("a pod has an address of its own, and is probed there", func(t *testing.T) {
		serves := imaged("serves", "echo hello > /tmp/index.html; exec httpd -f -p 8080 -h /tmp", func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": "serves"}
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1,
				ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intOf(8080), Path: "/index.html"}}}
		})
		create(t, kube, serves)
		p := c.waitRunning(t, "default", "serves")[0]
		if p.Status.PodIP == "" || p.Status.PodIP == p.Status.HostIP || !strings.HasPrefix(p.Status.ContainerStatuses[0].ContainerID, idPrefix()) ||
			p.Status.ContainerStatuses[0].ImageID == "" {
			t.Errorf("status %+v", p.Status)
		}
		asks := imaged("asks", fmt.Sprintf("wget -q -O - http://%s:8080/", p.Status.PodIP), func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
		create(t, kube, asks)
		c.waitFor(t, "asks", "to succeed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
		if got := c.berth(t, "logs", "asks"); got != "hello\n" {
			t.Errorf("it was told %q", got)
		}
	})

	t.Run("what listens in it is reached through the API", func(t *testing.T) {
		c.berthIn(t, "apiVersion: v1\nkind: Service\nmetadata: {name: serves}\nspec: {selector: {app: serves}, ports: [{name: http, port: 80, targetPort: 8080}]}\n", "create", "-f", "-")
		for what, ask := range map[string]restclient.ResponseWrapper{
			"the pod":     kube.CoreV1().Pods("default").ProxyGet("", "serves", "8080", "index.html", nil),
			"the service": kube.CoreV1().Services("default").ProxyGet("http", "serves", "80", "index.html", nil),
		} {
			c.eventually(t, what+" to answer", func(ctx context.Context) error {
				b, err := ask.DoRaw(ctx)
				if err == nil && string(b) != "hello\n" {
					err = fmt.Errorf("it says %q", b)
				}
				return err
			})
		}
		_, err := kube.CoreV1().Pods("default").ProxyGet("http", "serves", "1", "", nil).DoRaw(t.Context())
		if !apierrors.IsServiceUnavailable(err) {
			t.Errorf("where nobody listens: %v", err)
		}
	})

	t.Run("images that cannot be had", func(t *testing.T) {
		image := func(name string, policy corev1.PullPolicy) func(*corev1.Pod) {
			return func(p *corev1.Pod) {
				p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = name, policy
			}
		}
		create(t, kube, imaged("never", "true", image("127.0.0.1:1/none:1", corev1.PullNever)),
			imaged("nowhere", "true", image("127.0.0.1:1/none:1", "")), imaged("misspelt", "true", image("127.0.0.1:1/None:1", "")))
		c.waitFor(t, "never", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "ErrImageNeverPull" })
		c.waitFor(t, "misspelt", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "InvalidImageName" })
		c.waitFor(t, "nowhere", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "ImagePullBackOff" })
		c.hasEvent(t, "nowhere", "Failed", "Failed to pull image")
		c.hasEvent(t, "serves", "Pulled", "already present on machine")
	})

	t.Run("images for those who have a secret", func(t *testing.T) { secretPulls(t, c) })

	t.Run("the node tells its images and its runtime", func(t *testing.T) {
		n, err := kube.CoreV1().Nodes().Get(t.Context(), "worker-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		has := slices.ContainsFunc(n.Status.Images, func(i corev1.ContainerImage) bool { return slices.Contains(i.Names, daemontest.Busybox) })
		if !has || !strings.HasPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, idPrefix()) {
			t.Errorf("images %+v, runtime %s", n.Status.Images, n.Status.NodeInfo.ContainerRuntimeVersion)
		}
	})

	t.Run("a sandbox that is lost is made again", func(t *testing.T) {
		before := c.waitRunning(t, "default", "serves")[0]
		if err := d.KillSandbox(t.Context(), string(before.UID)); err != nil {
			t.Fatal(err)
		}
		after := c.waitFor(t, "serves", "to serve again", func(p *corev1.Pod) bool { return podReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
		c.hasEvent(t, "serves", "SandboxChanged", "Pod sandbox changed")
		if after.UID != before.UID || after.Status.PodIP == before.Status.PodIP {
			t.Errorf("its address was %s and is %s", before.Status.PodIP, after.Status.PodIP)
		}
	})

	t.Run("a runtime that goes away makes the node not ready, and takes nothing with it", func(t *testing.T) {
		before := c.waitRunning(t, "default", "serves")[0]
		d.Kill()
		c.waitNode(t, false)
		create(t, kube, imaged("comes", "exec sleep 1000", func(p *corev1.Pod) { p.Spec.NodeName = "worker-1" }))
		w := c.Workers()[0]
		w.Kill() // the worker comes back before its runtime does
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.waitNode(t, true)
		c.waitRunning(t, "default", "comes")
		after := c.waitRunning(t, "default", "serves")[0]
		if a, b := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || b.RestartCount != a.RestartCount ||
			before.Status.PodIP != after.Status.PodIP {
			t.Errorf("the pod is another: %+v", after.Status)
		}
	})
}

func (c *cluster) waitNode(t *testing.T, ready bool) {
	t.Helper()
	c.eventually(t, fmt.Sprintf("the node's readiness to be %v", ready), func(ctx context.Context) error {
		n, err := c.Reader().Kube.CoreV1().Nodes().Get(ctx, "worker-1", metav1.GetOptions{})
		if err == nil && nodeReady(n) != ready {
			err = fmt.Errorf("conditions %+v", n.Status.Conditions)
		}
		return err
	})
}
