package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const manifest = `apiVersion: v1
kind: Pod
metadata:
  name: talker
  labels: {app: talker}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: main
    image: none
    command: [/bin/sh, -c, 'echo hello from $WHO; echo ready; exec sleep 1000']
    env: [{name: WHO, value: talker}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: blue}
`

// The verbs that people know, on a cluster of processes.
func TestKubectlVerbs(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "verbs")
	file, err := c.WriteFile("verbs.yaml", manifest)
	if err != nil {
		t.Fatal(err)
	}
	berth := func(args ...string) string { t.Helper(); return c.berth(t, append(args, "-n", ns)...) }

	has(t, "apply", berth("apply", "-f", file), "pod/talker created", "configmap/settings created")
	has(t, "apply again", berth("apply", "-f", file), "pod/talker unchanged", "configmap/settings unchanged")
	has(t, "wait", berth("wait", "--for=condition=Ready", "pod/talker", "--timeout=100s"), "condition met")
	has(t, "get", berth("get", "pods", "-o", "wide"), "NAME", "READY", "talker", "1/1", "Running", "worker-")
	has(t, "describe", berth("describe", "pod", "talker"), "Status:           Running", "Scheduled", "Successfully assigned verbs/talker")
	has(t, "logs", berth("logs", "talker"), "hello from talker\nready\n")
	has(t, "label", berth("label", "pod", "talker", "tier=front"), "pod/talker labeled")
	has(t, "get by label", berth("get", "pods", "-l", "tier=front,app=talker", "-o", "name"), "pod/talker\n")
	has(t, "patch", berth("patch", "configmap", "settings", "-p", `{"data":{"size":"big"}}`), "configmap/settings patched")
	editor, err := c.WriteFile("editor.sh", "#!/bin/sh\nsed -i 's/colour: blue/colour: red/' \"$1\"\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(editor, 0o700); err != nil {
		t.Fatal(err)
	}
	edit := run(t, append(c.env, "KUBE_EDITOR="+editor), "", "edit", "configmap", "settings", "-n", ns)
	has(t, "edit", edit.out+edit.err, "configmap/settings edited")
	if got := berth("get", "configmap", "settings", "-o", "jsonpath={.data}"); got != `{"colour":"red","size":"big"}` {
		t.Errorf("after patch and edit: %s", got)
	}
	has(t, "create", c.berthIn(t, strings.NewReplacer("talker", "second", "settings", "others").Replace(manifest), "create", "-f", "-", "-n", ns,
		"--validate=strict", "--dry-run=server"), "pod/second created (server dry run)")
	if got := berth("get", "pods", "-o", "name"); got != "pod/talker\n" {
		t.Errorf("a dry run left something: %s", got)
	}
	has(t, "server-side apply", berth("apply", "--server-side", "--force-conflicts", "-f", file), "pod/talker serverside-applied")
	has(t, "explain", berth("explain", "pod.spec.priorityClassName"), "FIELD: priorityClassName", "system-node-critical")
	has(t, "explain of our own", berth("explain", "preemptions.status"), "GROUP:      berth.dev")
	has(t, "api-resources", berth("api-resources"), "priorityclasses", "queueentries", "preemptions", "schedulerconfigurations")
	has(t, "events", berth("events"), "Scheduled", "Started")
	has(t, "delete", berth("delete", "-f", file), `pod "talker" deleted`, `configmap "settings" deleted`)
	r := run(t, c.env, "", "get", "pod", "talker", "-n", ns)
	if r.code != 1 || r.err != "Error from server (NotFound): pods \"talker\" not found\n" {
		t.Errorf("get what is gone: status %d, %q", r.code, r.err)
	}
}

func TestLogs(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "logs")
	kube := c.Reader().Kube
	once := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	create(t, kube,
		pod(ns, "counter", "for i in 1 2 3 4 5; do echo line $i; sleep 0.3; done", once),
		pod(ns, "restarts", `echo attempt; [ -e "$HOME/x" ]; exit 3`))
	// Followed from the first line to the container's end, through a server
	// that has nothing to do with the worker.
	c.eventually(t, "counter to start", func(ctx context.Context) error {
		p, err := kube.CoreV1().Pods(ns).Get(ctx, "counter", metav1.GetOptions{})
		if err == nil && p.Status.Phase == corev1.PodPending {
			err = fmt.Errorf("it is pending")
		}
		return err
	})
	if got := c.berth(t, "logs", "-f", "counter", "-n", ns); got != "line 1\nline 2\nline 3\nline 4\nline 5\n" {
		t.Errorf("logs -f: %q", got)
	}
	c.eventually(t, "a restart", func(ctx context.Context) error {
		p, err := kube.CoreV1().Pods(ns).Get(ctx, "restarts", metav1.GetOptions{})
		if err == nil && (len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].RestartCount == 0) {
			err = fmt.Errorf("no restart: %+v", p.Status)
		}
		return err
	})
	if got := c.berth(t, "logs", "--previous", "restarts", "-n", ns); got != "attempt\n" {
		t.Errorf("logs --previous: %q", got)
	}
	// What there is not is refused with a status, not answered with nothing.
	refused := func(name string, o *corev1.PodLogOptions, want string) {
		t.Helper()
		b, err := kube.CoreV1().Pods(ns).GetLogs(name, o).DoRaw(t.Context())
		if !apierrors.IsBadRequest(err) || !strings.Contains(string(b), strings.ReplaceAll(want, `"`, `\"`)) {
			t.Errorf("logs of %s: %q, %v", name, b, err)
		}
	}
	refused("counter", &corev1.PodLogOptions{Previous: true}, `previous terminated container "main" in pod "counter" not found`)
	create(t, kube, pod(ns, "waits", "true", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "claimed", VolumeSource: corev1.VolumeSource{
			ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "nobody", IQN: "iqn.2026-01.nobody:disk"}}}}
	}))
	c.eventually(t, "the pod to be refused by its field", func(ctx context.Context) error {
		p, err := kube.CoreV1().Pods(ns).Get(ctx, "waits", metav1.GetOptions{})
		if err != nil || len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Waiting == nil ||
			!strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Message, "spec.volumes[0].name") {
			return fmt.Errorf("%v: %+v", err, p.Status)
		}
		return nil
	})
	refused("waits", &corev1.PodLogOptions{}, `container "main" in pod "waits" is waiting to start: CreateContainerConfigError`)
}

func TestCordonAndDrain(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "drain")
	kube := c.Reader().Kube
	create(t, kube, pod(ns, "stays", "exec sleep 1000", on("worker-1")), pod(ns, "goes", "exec sleep 1000", on("worker-2")))
	c.waitRunning(t, ns, "stays", "goes")
	t.Cleanup(func() { c.uncordon(t, "worker-2") })

	has(t, "cordon", c.berth(t, "cordon", "worker-2"), "node/worker-2 cordoned")
	create(t, kube, pod(ns, "waits", "exec sleep 1000", on("worker-2")))
	c.eventually(t, "the pod to be told why it waits", func(ctx context.Context) error {
		r := c.berth(t, "why", "waits", "-n", ns)
		if !strings.Contains(r, "node(s) were unschedulable") {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	has(t, "get nodes", c.berth(t, "get", "nodes"), "Ready,SchedulingDisabled")
	has(t, "drain", c.berth(t, "drain", "worker-2", "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=100s"),
		"evicting pod drain/goes", "node/worker-2 drained")
	has(t, "uncordon", c.berth(t, "uncordon", "worker-2"), "node/worker-2 uncordoned")
	c.waitRunning(t, ns, "waits", "stays")
}

// uncordon lets pods on a node again, whatever became of the test.
func (c *cluster) uncordon(t *testing.T, node string) {
	patch := []byte(`{"spec":{"unschedulable":null}}`)
	if _, err := c.Reader().Kube.CoreV1().Nodes().Patch(context.Background(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
}

// A program of client-go that knows nothing of Berth.
func TestPlainClientGo(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "clientgo")
	pods := c.Reader().Kube.CoreV1().Pods(ns)
	ctx := t.Context()
	p, err := pods.Create(ctx, pod(ns, "p", "exec sleep 1000", pretended), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.waitRunning(t, ns, "p")
	p.Labels = map[string]string{"stale": "yes"}
	if _, err := pods.Update(ctx, p, metav1.UpdateOptions{}); err == nil {
		t.Error("an update with a stale resourceVersion was taken")
	}
	if _, err := pods.Patch(ctx, "p", types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "a=b", FieldSelector: "spec.nodeName=pretender"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
	if err := pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: ns}}); err != nil {
		t.Error(err)
	}
	c.eventually(t, "the evicted pod to go", func(ctx context.Context) error {
		if _, err := pods.Get(ctx, "p", metav1.GetOptions{}); err == nil {
			return fmt.Errorf("it is still there")
		}
		return nil
	})
}

// What Berth adds to kubectl's verbs.
func TestOwnVerbs(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "own")
	kube := c.Reader().Kube
	create(t, kube, pod(ns, "huge", "exit 0", cpu("5000")))
	c.eventually(t, "the queue to say why", func(context.Context) error {
		if out := c.berth(t, "queue", "-n", ns); !strings.Contains(out, "huge") || !strings.Contains(out, "Insufficient cpu") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	has(t, "why", c.berth(t, "why", "huge", "-n", ns), "Now 0 of 4 nodes would take it:", "Insufficient cpu (short ")
	var queue struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(c.berth(t, "queue", "-n", ns, "-o", "json")), &queue); err != nil || len(queue.Items) != 1 {
		t.Errorf("queue -o json: %+v, %v", queue, err)
	}
	has(t, "get queueentries", c.berth(t, "get", "queueentries", "-n", ns), "huge", "Unschedulable")
	onePod, _, _ := strings.Cut(manifest, "---")
	file, err := c.WriteFile("plan.yaml", onePod)
	if err != nil {
		t.Fatal(err)
	}
	has(t, "plan", c.berth(t, "plan", "-f", file, "-n", ns), "talker", "worker-")
	if got := c.berth(t, "get", "pods", "-n", ns, "-o", "name"); got != "pod/huge\n" {
		t.Errorf("a plan left something: %s", got)
	}
	has(t, "members", c.berth(t, "members"), "server-1", "worker-3", "pretender", "alive")
	has(t, "list-peers", c.berth(t, "operator", "raft", "list-peers"), "server-1", "server-2", "server-3", "voter")
	has(t, "verify", c.berth(t, "operator", "verify"), "the states are equal")
	has(t, "status", c.berth(t, "operator", "status"), "Healthy:", "yes")
	has(t, "class create", c.berth(t, "class", "create", "own-test", "--value", "7"), "own-test")
	has(t, "class list", c.berth(t, "class", "list"), "own-test", "system-node-critical")
	has(t, "class delete", c.berth(t, "class", "delete", "own-test"), "own-test")
	has(t, "version", c.berth(t, "version"), "Berth:", "Kubernetes API:")
	has(t, "completion", c.berth(t, "completion", "bash"), "__start_berth")
	has(t, "metrics", c.berth(t, "get", "--raw", "/metrics"), "scheduler_pending_pods", "berth_revision", "scheduler_preemption_victims")
	c.verify(t, 3)
}
