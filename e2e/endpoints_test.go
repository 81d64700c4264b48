package e2e

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEndpointsAreMirrored: what somebody writes into Endpoints is in endpoint slices, by which services are carried, as
// long as it is there.
func TestEndpointsAreMirrored(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "mirrored")
	const manifest = `
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: outside}
subsets: [{addresses: [{ip: %s}], ports: [{name: http, port: 8080}]}]
`
	shows := func(want string) {
		t.Helper()
		c.eventually(t, "slices with "+want, func(ctx context.Context) error {
			list, err := c.Reader().Kube.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=outside"})
			if err != nil {
				return err
			}
			got := ""
			for i := range list.Items {
				for j := range list.Items[i].Endpoints {
					got += fmt.Sprintf("%s:%d", list.Items[i].Endpoints[j].Addresses[0], *list.Items[i].Ports[0].Port)
				}
			}
			if got != want {
				return fmt.Errorf("there are %q", got)
			}
			return nil
		})
	}
	c.berthIn(t, fmt.Sprintf(manifest, "192.0.2.1"), "apply", "-n", ns, "-f", "-")
	shows("192.0.2.1:8080")
	c.berthIn(t, fmt.Sprintf(manifest, "192.0.2.2"), "apply", "-n", ns, "-f", "-")
	shows("192.0.2.2:8080")
	c.berth(t, "delete", "endpoints", "outside", "-n", ns)
	shows("")
}
