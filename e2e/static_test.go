package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// SP1, SP2: a node runs the pods of its folder, whether there is a server or not, and the API shows them.
func TestStaticPods(t *testing.T) {
	t.Run("process", func(t *testing.T) { staticPods(t, nil) })
	t.Run("cri", func(t *testing.T) { staticPods(t, realContainers(t)) })
}

const staticManifest = `apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: default
spec:
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %s
    command: [sh, -c, "echo %s; exec sleep 1000"]
    resources: {requests: {cpu: 250m}}
`

func staticPods(t *testing.T, d daemon) {
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	image, option := "none", fmt.Sprintf("static_pods = %q", folder)
	w, s := worker("worker-1", option), server("server-1", "bootstrap_expect = 1")
	if d != nil {
		image, w = daemontest.Busybox, criWorker(d, "worker-1", "cri", option)
		s.Host, w.Host = reachable(), reachable()
	}
	write("web.yaml", fmt.Sprintf(staticManifest, "web", image, "one"))
	c := newCluster(t, s, w)
	if d != nil {
		c.emptied(t, d)
	}
	t.Cleanup(func() { // what the folder does not have ends
		for _, name := range []string{"web.yaml", "wrong.yaml"} {
			_ = os.Remove(filepath.Join(folder, name)) // it may not be there
		}
		if c.Servers()[0].Running() {
			c.goneStatic(t)
		}
	})
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := c.waitFor(t, "web-worker-1", "to run", podReady)
	node, err := c.Reader().Kube.CoreV1().Nodes().Get(t.Context(), "worker-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if o := metav1.GetControllerOf(first); o == nil || o.Kind != "Node" || o.UID != node.UID {
		t.Errorf("its owner is %+v", o)
	}
	if p := first.Spec.Priority; p == nil || *p != 2000001000 || first.Annotations[corev1.MirrorPodAnnotationKey] == "" {
		t.Errorf("its priority is %v, its annotations are %v", p, first.Annotations)
	}
	waitLog(t, c, "web-worker-1", "one\n")
	if got := c.berth(t, "exec", "web-worker-1", "--", "echo", "inside"); got != "inside\n" {
		t.Errorf("exec: %q", got)
	}
	container := first.Status.ContainerStatuses[0].ContainerID

	t.Run("its mirror is deleted", func(t *testing.T) {
		if err := c.Reader().Kube.CoreV1().Pods("default").Delete(t.Context(), "web-worker-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		p := c.waitFor(t, "web-worker-1", "to be shown again", func(p *corev1.Pod) bool { return p.UID != first.UID && podReady(p) })
		if now := p.Status.ContainerStatuses[0].ContainerID; now != container {
			t.Errorf("another container runs: %s, and it was %s", now, container)
		}
	})
	t.Run("a file has a mistake", func(t *testing.T) {
		write("wrong.yaml", strings.Replace(fmt.Sprintf(staticManifest, "wrong", image, "no"), "image:", "imge:", 1))
		c.eventually(t, "the mistake to be told", func(context.Context) error {
			if log := c.Workers()[0].LogTail(200); !strings.Contains(log, "wrong.yaml:11") {
				return errors.New("it is not in the log")
			}
			return nil
		})
		c.hasEvent(t, "worker-1", "FailedStaticPod", "wrong.yaml:11")
		if p := c.waitFor(t, "web-worker-1", "to run beside it", podReady); p.Status.ContainerStatuses[0].ContainerID != container {
			t.Errorf("another container runs: %+v", p.Status.ContainerStatuses)
		}
		write("wrong.yaml", fmt.Sprintf(staticManifest, "wrong", image, "corrected"))
		c.waitFor(t, "wrong-worker-1", "to run", podReady)
		if err := os.Remove(filepath.Join(folder, "wrong.yaml")); err != nil {
			t.Fatal(err)
		}
		c.eventually(t, "the pod to go", func(ctx context.Context) error {
			if _, err := c.get(ctx, "wrong-worker-1"); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %w", err)
			}
			return nil
		})
	})
	t.Run("without a server", func(t *testing.T) {
		c.Workers()[0].Kill()
		c.Servers()[0].Kill()
		write("web.yaml", fmt.Sprintf(staticManifest, "web", image, "two"))
		if err := c.Workers()[0].Start(); err != nil {
			t.Fatal(err)
		}
		// Nobody can be asked about it: it says so itself.
		c.eventually(t, "the edited pod to run", func(context.Context) error {
			var logs []string
			for _, pattern := range []string{"containers/*/containers/main/*/log", "cri/*/logs/main/*.log"} {
				more, err := filepath.Glob(filepath.Join(c.Workers()[0].DataDir, "worker", pattern))
				if err != nil {
					return err
				}
				logs = append(logs, more...)
			}
			for _, log := range logs {
				if text, _ := os.ReadFile(log); strings.Contains(string(text), "two") { // or it is being removed
					return nil
				}
			}
			return fmt.Errorf("the logs are %v", logs)
		})
		c.restart(t, c.Servers()[0])
		p := c.waitFor(t, "web-worker-1", "to be shown", func(p *corev1.Pod) bool {
			return podReady(p) && p.Annotations[corev1.MirrorPodAnnotationKey] != first.Annotations[corev1.MirrorPodAnnotationKey]
		})
		if p.Spec.NodeName != "worker-1" {
			t.Errorf("it is on %q", p.Spec.NodeName)
		}
		waitLog(t, c, "web-worker-1", "two\n")
	})
}

// goneStatic waits until the API shows no static pod any more.
func (c *cluster) goneStatic(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := c.wait(ctx, "the static pods to end", func(ctx context.Context) error {
		list, err := c.Reader().Kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("there are %d pods", len(list.Items))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
