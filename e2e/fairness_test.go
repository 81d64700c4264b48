package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A cluster has Kubernetes' flow schemas and priority levels from the beginning, every server goes by them, and what is deleted of
// them comes back, after the leader is gone too.
func TestPriorityAndFairness(t *testing.T) {
	c := newCluster(t, server("s1", "bootstrap_expect = 3"), server("s2", "bootstrap_expect = 3"), server("s3", "bootstrap_expect = 3"))
	c.waitLeader(t)
	ready := func(what string) {
		c.eventually(t, what, func(ctx context.Context) error {
			for _, s := range c.Servers() {
				if !s.Running() {
					continue
				}
				schemas, err := s.Kube.FlowcontrolV1().FlowSchemas().List(ctx, metav1.ListOptions{})
				if err != nil {
					return err
				}
				for _, f := range schemas.Items {
					if len(f.Status.Conditions) == 0 || f.Status.Conditions[0].Status != "False" {
						return fmt.Errorf("%s: %s: %+v", s.Name, f.Name, f.Status)
					}
				}
				raw, err := s.Kube.CoreV1().RESTClient().Get().AbsPath("/debug/api_priority_and_fairness/dump_priority_levels").Do(ctx).Raw()
				if err != nil || !strings.Contains(string(raw), "workload-low,") || len(schemas.Items) < 10 {
					return fmt.Errorf("%s: %d schemas, %v: %s", s.Name, len(schemas.Items), err, raw)
				}
			}
			return nil
		})
	}
	ready("the schemas and levels of every cluster")
	has(t, "schemas", c.berth(t, "get", "flowschemas"), "exempt", "catch-all", "global-default", "service-accounts")
	c.berth(t, "delete", "prioritylevelconfiguration", "workload-low")
	c.waitLeader(t).Kill()
	c.waitLeader(t)
	ready("what was deleted")
	has(t, "metrics", c.berth(t, "get", "--raw", "/metrics"), "apiserver_flowcontrol_nominal_limit_seats")
}
