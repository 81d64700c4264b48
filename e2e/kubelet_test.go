package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// kubeletsPods are one of each kind. The image is nothing to the worker of processes, and the command runs on both.
const kubeletsPods = `
apiVersion: v1
kind: ConfigMap
metadata: {name: told}
data: {word: hello}
---
apiVersion: v1
kind: Secret
metadata: {name: kept}
stringData: {word: hidden}
---
apiVersion: v1
kind: Pod
metadata: {name: plain, labels: {app: plain}}
spec:
  nodeName: kubelet-1
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, "cat /all/told /all/kept; echo $WORD; echo served > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"]
    env: [{name: WORD, valueFrom: {configMapKeyRef: {name: told, key: word}}}]
    readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
    volumeMounts: [{name: all, mountPath: /all}, {name: own, mountPath: /own}]
  volumes:
  - name: own
    emptyDir: {medium: Memory}
  - name: all
    projected:
      sources:
      - {configMap: {name: told, items: [{key: word, path: told}]}}
      - {secret: {name: kept, items: [{key: word, path: kept}]}}
      - {serviceAccountToken: {path: token, audience: "https://kubernetes.default.svc", expirationSeconds: 3600}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: many}
spec:
  replicas: 4
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: many}}}
      tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}]
      containers: [{name: c, image: IMAGE, command: [sleep, "1000"]}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: all}
spec:
  selector: {matchLabels: {app: all}}
  template:
    metadata: {labels: {app: all}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: IMAGE, command: [sleep, "1000"]}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: numbered}
spec:
  replicas: 2
  serviceName: numbered
  selector: {matchLabels: {app: numbered}}
  template:
    metadata: {labels: {app: numbered}}
    spec:
      nodeSelector: {kubernetes.io/hostname: kubelet-1}
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: IMAGE, command: [sleep, "1000"]}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  template:
    spec:
      nodeSelector: {kubernetes.io/hostname: kubelet-1}
      restartPolicy: Never
      containers: [{name: c, image: IMAGE, command: [echo, done]}]
`

// Kubernetes' own kubelet joins by a token and is a node like any other, beside one of Berth's workers.
func TestKubelet(t *testing.T) {
	needsKubelet(t)
	s, w := server("server-1", "bootstrap_expect = 1", "signed_kubelets = true", "scheduler { node_grace = \"30s\" }"), worker("worker-1")
	s.Host, w.Host = reachable(), reachable()
	c := newCluster(t, s, w)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := c.addKubelet(t, "kubelet-1")
	kube := c.Reader().Kube
	c.eventually(t, "the kubelet's node to be ready", func(ctx context.Context) error {
		n, err := kube.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
		if err == nil && !nodeReady(n) {
			err = fmt.Errorf("its conditions are %+v", n.Status.Conditions)
		}
		return err
	})
	c.approveServing(t, m.name)
	c.berthIn(t, strings.ReplaceAll(kubeletsPods, "IMAGE", daemontest.Busybox), "apply", "-f", "-")

	t.Run("pods of every kind run", func(t *testing.T) { kubeletRuns(t, c, m) })
	t.Run("its static pods are shown", func(t *testing.T) { kubeletStatic(t, c, m) })
	t.Run("people reach into them", func(t *testing.T) { kubeletReached(t, c, m) })
	t.Run("its lease is renewed beside the log", func(t *testing.T) { kubeletRenews(t, c, m) })
	t.Run("pods are deleted", func(t *testing.T) {
		c.berth(t, "delete", "pod", "plain", "--timeout=100s")
		before, err := kube.CoreV1().Pods("default").Get(t.Context(), "numbered-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.berth(t, "delete", "pod", "numbered-1", "--timeout=100s")
		c.waitFor(t, "numbered-1", "to be another", func(p *corev1.Pod) bool { return p.UID != before.UID && podReady(p) })
	})
	t.Run("device plugins register", func(t *testing.T) { kubeletServesPlugins(t, c, m) })
	t.Run("claims of devices are met", func(t *testing.T) { kubeletGivesDevices(t, c, m) })
	t.Run("a volume of a driver is attached", func(t *testing.T) { kubeletAttaches(t, c, m) })
	t.Run("devices go with their driver", func(t *testing.T) { kubeletWipes(t, c) })
	t.Run("the machine is lost", func(t *testing.T) { kubeletLost(t, c, m) })
}

// approveServing approves what the kubelet wants to serve by, as an administrator does.
func (c *cluster) approveServing(t *testing.T, node string) {
	t.Helper()
	c.eventually(t, "the certificate that "+node+" serves by", func(ctx context.Context) error {
		list, err := c.Reader().Kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{
			FieldSelector: "spec.signerName=" + certificatesv1.KubeletServingSignerName,
		})
		if err != nil {
			return err
		}
		for i := range list.Items {
			r := &list.Items[i]
			if r.Spec.Username != "system:node:"+node {
				continue
			}
			if len(r.Status.Conditions) == 0 {
				c.berth(t, "certificate", "approve", r.Name)
			}
			if len(r.Status.Certificate) > 0 {
				return nil
			}
		}
		return errors.New("it is not signed")
	})
}

func kubeletRuns(t *testing.T, c *cluster, m *machine) {
	kube := c.Reader().Kube
	c.waitRunning(t, "default", "plain", "numbered-0", "numbered-1")
	c.eventually(t, "the workloads", func(ctx context.Context) error {
		d, err := kube.AppsV1().Deployments("default").Get(ctx, "many", metav1.GetOptions{})
		if err != nil {
			return err
		}
		a, err := kube.AppsV1().DaemonSets("default").Get(ctx, "all", metav1.GetOptions{})
		if err != nil {
			return err
		}
		j, err := kube.BatchV1().Jobs("default").Get(ctx, "once", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Status.ReadyReplicas != 4 || a.Status.NumberReady != 2 || j.Status.Succeeded != 1 {
			return fmt.Errorf("%d of 4, %d of 2, %d of 1", d.Status.ReadyReplicas, a.Status.NumberReady, j.Status.Succeeded)
		}
		return nil
	})
	if on := c.nodesOf(t, "app=many"); !slices.Contains(on, "worker-1") {
		t.Errorf("the Deployment is on %v", on)
	}
	for _, of := range []string{"app=many", "app=all", "app=numbered", "job-name=once"} {
		if on := c.nodesOf(t, of); !slices.Contains(on, m.name) {
			t.Errorf("pods of %s are on %v, and none is on the kubelet's node", of, on)
		}
	}
	c.hasEvent(t, "plain", "Started", "")
}

const kubeletsStatic = `
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: IMAGE, command: [sh, -c, "echo from a file; exec sleep 1000"]}]
`

// kubeletStatic: what is in the node's folder runs, and its mirror goes when the file does.
func kubeletStatic(t *testing.T, c *cluster, m *machine) {
	file := filepath.Join(m.manifests(), "static.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(kubeletsStatic, "IMAGE", daemontest.Busybox)), 0o644); err != nil {
		t.Fatal(err)
	}
	name := "static-" + m.name
	p := c.waitRunning(t, "default", name)[0]
	if p.Annotations[corev1.MirrorPodAnnotationKey] == "" || p.Spec.NodeName != m.name {
		t.Errorf("the mirror is %+v", p.ObjectMeta)
	}
	c.eventually(t, "its log", func(context.Context) error {
		if r := run(t, c.env, "", "logs", name); r.out != "from a file\n" {
			return fmt.Errorf("%q, %q", r.out, r.err)
		}
		return nil
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.eventually(t, "the mirror to be gone", func(ctx context.Context) error {
		_, err := c.Reader().Kube.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
}

// nodesOf are the nodes on which pods are that do not end.
func (c *cluster) nodesOf(t *testing.T, selector string) (nodes []string) {
	t.Helper()
	list, err := c.Reader().Kube.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			nodes = append(nodes, list.Items[i].Spec.NodeName)
		}
	}
	return nodes
}

func kubeletReached(t *testing.T, c *cluster, m *machine) {
	kube := c.Reader().Kube
	if got := c.berth(t, "logs", "plain"); got != "hellohiddenhello\n" {
		t.Errorf("its log: %q", got)
	}
	if r := run(t, c.env, "", "logs", "plain", "--previous"); r.code == 0 || !strings.Contains(r.err, "previous terminated container") {
		t.Errorf("the log of a container that never was: %d %q", r.code, r.err)
	}
	for protocol := range protocols {
		out, errs, err := c.shell(t.Context(), protocol, "plain", "cat; echo err >&2; wc -c < /all/token", strings.NewReader("in\n"))
		if lines := strings.Fields(out); err != nil || errs != "err\n" || len(lines) != 2 || lines[0] != "in" || len(lines[1]) < 3 {
			t.Errorf("%s: %v, wrote %q and %q", protocol, err, out, errs)
		}
	}
	once := func(p *corev1.Pod) {
		p.Spec.Containers[0].Stdin, p.Spec.Containers[0].StdinOnce, p.Spec.RestartPolicy = true, true, corev1.RestartPolicyNever
	}
	create(t, kube, imaged("reads", "read line; echo got $line", on(m.name), once))
	c.waitRunning(t, "default", "reads")
	var out bytes.Buffer
	err := session{server: c.Reader(), ns: "default", pod: "reads", protocol: "websocket", part: "attach",
		StreamOptions: remotecommand.StreamOptions{Stdin: strings.NewReader("this\n"), Stdout: &out}}.run(t.Context())
	if err != nil || !strings.Contains(out.String(), "got this") {
		t.Errorf("attached: %v, it says %q", err, &out)
	}
	forwarded(t, c, true, on(m.name))
	b, err := kube.CoreV1().Pods("default").ProxyGet("", "plain", "8080", "index.html", nil).DoRaw(t.Context())
	if err != nil || string(b) != "served\n" {
		t.Errorf("through the API it says %q: %v", b, err)
	}
	if _, err := kube.CoreV1().Pods("default").ProxyGet("", "plain", "1", "", nil).DoRaw(t.Context()); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("where nobody listens: %v", err)
	}
	if got := c.berth(t, "get", "--raw", "/api/v1/nodes/"+m.name+"/proxy/metrics/resource"); !strings.Contains(got, `pod="plain"`) {
		t.Errorf("the node shows %.300q", got)
	}
}

func kubeletRenews(t *testing.T, c *cluster, m *machine) {
	leases := c.Reader().Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	first, err := leases.Get(t.Context(), m.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.eventually(t, "a renewal", func(ctx context.Context) error {
		now, err := leases.Get(ctx, m.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		stored, err := leases.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + m.name})
		if err != nil {
			return err
		}
		if !now.Spec.RenewTime.After(first.Spec.RenewTime.Time) || len(stored.Items) != 1 || !stored.Items[0].Spec.RenewTime.Before(now.Spec.RenewTime) {
			return fmt.Errorf("it is of %s, and was of %s; stored are %d", now.Spec.RenewTime, first.Spec.RenewTime, len(stored.Items))
		}
		return nil
	})
}

// kubeletLost: power is gone. The node is unknown, its pods are let go, and others take their place on the worker.
func kubeletLost(t *testing.T, c *cluster, m *machine) {
	m.kill()
	waitLost(t, c, m.name)
	if r := run(t, c.env, "", "logs", "numbered-0"); r.code == 0 || !strings.Contains(r.err, "the kubelet of node "+m.name+" does not answer") {
		t.Errorf("a log of it: %d %q", r.code, r.err)
	}
	c.eventually(t, "the Deployment to be on the worker", func(context.Context) error {
		if on := c.nodesOf(t, "app=many"); len(on) != 4 || slices.Contains(on, m.name) {
			return fmt.Errorf("it is on %v", on)
		}
		return nil
	})
	c.berth(t, "delete", "node", m.name)
	c.eventually(t, "the pods of the node to be gone", func(ctx context.Context) error {
		list, err := c.Reader().Kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + m.name})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are left", len(list.Items))
		}
		return err
	})
}
