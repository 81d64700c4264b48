package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const deviceObjects = `
apiVersion: v1
kind: Node
metadata: {name: kubelet-1, labels: {kubernetes.io/hostname: kubelet-1}}
status:
  capacity: {cpu: "4", memory: 8Gi, pods: "110"}
  allocatable: {cpu: "4", memory: 8Gi, pods: "110"}
  daemonEndpoints: {kubeletEndpoint: {Port: 10250}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: kubelet-1-gpus}
spec:
  driver: gpu.example.com
  nodeName: kubelet-1
  pool: {name: kubelet-1, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}, {name: gpu-1}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}
`

const devicePod = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]
  containers: [{name: c, image: none, resources: {claims: [{name: gpu}]}}]
`

// TestDeviceClaims: pods with claims get devices on the node that has them, and no other; who finds none says so, and gets what comes free
// from whoever leads by then. The node is an object and no more: what a kubelet does there is shown by TestKubelet.
func TestDeviceClaims(t *testing.T) {
	c := newCluster(t, server("s1", "bootstrap_expect = 3"), server("s2", "bootstrap_expect = 3"), server("s3", "bootstrap_expect = 3"), worker("worker-1"))
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.berthIn(t, deviceObjects, "apply", "-f", "-")
	names := []string{"first", "second", "third"}
	for _, name := range names {
		c.berthIn(t, strings.ReplaceAll(devicePod, "NAME", name), "apply", "-f", "-")
	}
	kube := func() (*corev1.PodList, error) {
		return c.Reader().Kube.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	}
	placed := func(want int) (waits, runs string) {
		c.eventually(t, fmt.Sprintf("%d pods to have devices", want), func(context.Context) error {
			list, err := kube()
			if err != nil {
				return err
			}
			n := 0
			for _, p := range list.Items {
				switch p.Spec.NodeName {
				case "":
					waits = p.Name
				case "kubelet-1":
					n++
					runs = p.Name
				default:
					t.Fatalf("%s is on %s, which has no drivers", p.Name, p.Spec.NodeName)
				}
			}
			if n != want {
				return fmt.Errorf("%d have", n)
			}
			return nil
		})
		return waits, runs
	}
	waits, runs := placed(2)
	c.eventually(t, "who waits to say for what", func(ctx context.Context) error {
		p, err := c.Reader().Kube.CoreV1().Pods("default").Get(ctx, waits, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodScheduled && strings.Contains(condition.Message, "waiting for devices for resourceclaim") {
				return nil
			}
		}
		return fmt.Errorf("it says %+v", p.Status.Conditions)
	})
	leader := c.waitLeader(t)
	leader.Kill()
	now := int64(0)
	c.eventually(t, "one to be deleted", func(ctx context.Context) error {
		err := c.Reader().Kube.CoreV1().Pods("default").Delete(ctx, runs, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	placed(2)
	c.restart(t, leader)
	claims, err := c.Reader().Kube.ResourceV1().ResourceClaims("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	devices := map[string]string{}
	for _, claim := range claims.Items {
		if claim.Status.Allocation == nil {
			continue
		}
		device := claim.Status.Allocation.Devices.Results[0].Device
		if other := devices[device]; other != "" {
			t.Errorf("%s is given to %s and %s", device, other, claim.Name)
		}
		devices[device] = claim.Name
	}
	if len(devices) != 2 {
		t.Errorf("there are given %v", devices)
	}
}
