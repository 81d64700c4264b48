package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// plugins is how device plugins come to nodes: a DaemonSet, on those with a label. PROGRAM has no image of its own.
const plugins = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: plugin}
spec:
  selector: {matchLabels: {app: plugin}}
  template:
    metadata: {labels: {app: plugin}}
    spec:
      nodeSelector: {devices: sample}
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: IMAGE
        command: [/plugin]
        volumeMounts:
        - {name: program, mountPath: /plugin}
        - {name: sockets, mountPath: /var/lib/kubelet/device-plugins}
        - {name: devices, mountPath: /tmp}
      volumes:
      - {name: program, hostPath: {path: PROGRAM, type: File}}
      - {name: sockets, hostPath: {path: /var/lib/kubelet/device-plugins, type: Directory}}
      - {name: devices, hostPath: {path: /tmp, type: Directory}}
`

// kubeletServesPlugins: Kubernetes' own device plugin is a pod of the kubelet's node and registers there. As many pods run as it has devices, each
// with one; they go on while the plugin is gone, and others wait.
func kubeletServesPlugins(t *testing.T, c *cluster, m *machine) {
	kube := c.Reader().Kube
	label := func(value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{"devices":%s}}}`, value)
		if _, err := kube.CoreV1().Nodes().Patch(t.Context(), m.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	goOn := func(pods ...string) {
		t.Helper()
		for _, name := range pods {
			if p, err := c.get(t.Context(), name); err != nil || !podReady(p) || p.Spec.NodeName != m.name || p.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("%s did not go on: %v, %+v", name, err, p)
			}
		}
	}
	c.berthIn(t, strings.NewReplacer("IMAGE", daemontest.Busybox, "PROGRAM", samplePlugin(t)).Replace(plugins), "apply", "-f", "-")
	label(`"sample"`)
	c.waitDevices(t, m.name, 2, 2)
	create(t, kube, withDevice("one"), withDevice("two"))
	c.waitRunning(t, "default", "one", "two")
	c.haveDevices(t, "one", "two")
	create(t, kube, withDevice("three"))
	c.waitsForDevice(t, "three", 2)

	// The kubelet starts it again, and it registers anew.
	plugin := c.plugin(t)
	_, _, _ = c.shell(t.Context(), "websocket", plugin, "kill 1", nil) // which ends with it
	c.waitFor(t, plugin, "to be started again", func(p *corev1.Pod) bool {
		return podReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	c.waitDevices(t, m.name, 2, 2)
	goOn("one", "two")
	c.berth(t, "delete", "pod", "one", "--timeout=100s")
	c.waitRunning(t, "default", "three")
	c.haveDevices(t, "two", "three")

	label("null")
	c.waitDevices(t, m.name, 2, 0)
	goOn("two", "three")
	c.berth(t, "delete", "pod", "two", "--timeout=100s")
	create(t, kube, withDevice("four"))
	c.waitsForDevice(t, "four", 2)
	label(`"sample"`)
	c.waitDevices(t, m.name, 2, 2)
	c.waitRunning(t, "default", "four")
	c.haveDevices(t, "three", "four")
	goOn("three")
	c.berth(t, "delete", "daemonset/plugin", "pod/three", "pod/four", "--timeout=100s")
	label("null")
}

// plugin is the pod of the plugin.
func (c *cluster) plugin(t *testing.T) (name string) {
	t.Helper()
	c.eventually(t, "one pod of the plugin", func(ctx context.Context) error {
		list, err := c.Reader().Kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=plugin"})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || !podReady(&list.Items[0]) {
			return fmt.Errorf("there are %d", len(list.Items))
		}
		name = list.Items[0].Name
		return nil
	})
	return name
}
