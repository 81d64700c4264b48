package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDevicesThatAreClaimed: claims, what they are made from and what drivers offer are kept by every server. A pod that
// claims devices says why it waits, wherever it comes to wait; ingresses are what their controller makes of them.
func TestDevicesThatAreClaimed(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "devices")
	const pod = `
---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  %s
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: gpu, resourceClaimName: gpu}]
  containers: [{name: main, image: busybox, command: [sleep, '1000'], resources: {claims: [{name: gpu}]}}]
`
	c.berthIn(t, `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: gpu}
spec: {devices: {requests: [{name: one, exactly: {deviceClassName: gpus}}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec: {ingressClassName: outside, rules: [{host: web.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}
`+fmt.Sprintf(pod, "waits", "")+fmt.Sprintf(pod, "named", "nodeName: worker-1"), "apply", "-n", ns, "-f", "-")
	says := func(name, path, want string) {
		t.Helper()
		c.eventually(t, name+" to say why it waits", func(context.Context) error {
			out := c.berth(t, "get", "pod", name, "-n", ns, "-o", "jsonpath={"+path+"}")
			if !strings.Contains(out, want) {
				return fmt.Errorf("it says %q", out)
			}
			return nil
		})
	}
	says("waits", ".status.conditions[?(@.type=='PodScheduled')].message", `waiting for devices for resourceclaim "gpu"`)
	has(t, "why", c.berth(t, "why", "waits", "-n", ns), `waiting for devices for resourceclaim "gpu"`)
	says("named", ".status.containerStatuses[0].state.waiting.message", "spec.resourceClaims: this node has no drivers that prepare claimed devices (gpu)")
	for _, s := range c.followers(t) {
		claim, err := s.Kube.ResourceV1().ResourceClaims(ns).Get(t.Context(), "gpu", metav1.GetOptions{})
		if err != nil || claim.Status.Allocation != nil {
			t.Errorf("%v, %v", claim, err)
		}
	}
	has(t, "ingress", c.berth(t, "describe", "ingress", "web", "-n", ns), "web.example.com", "outside", "web:80")
	c.berth(t, "delete", "namespace", ns)
}
