package services

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
)

// TestPodsWaitForNames: no pod of a new cluster starts with the host's resolver because the service of names came after
// all others; where it never comes, one pod waits for all.
func TestPodsWaitForNames(t *testing.T) {
	node := func() *Node {
		return &Node{Table: NewTable(), log: hclog.NewNullLogger(), opts: Options{Domain: "cluster.local."}}
	}
	asks := func(t *testing.T, n *Node) []string {
		servers, domain, err := n.Resolver(t.Context())
		if err != nil || domain != "cluster.local" {
			t.Errorf("%q: %v", domain, err)
		}
		return servers
	}
	synctest.Test(t, func(t *testing.T) {
		n := node()
		close(n.Table.synced)
		go func() {
			time.Sleep(time.Second)
			n.Table.mu.Lock()
			defer n.Table.mu.Unlock()
			n.Table.putService(resolverService, &corev1.Service{Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.10"}}})
		}()
		if got := asks(t, n); len(got) != 1 || got[0] != "10.96.0.10" {
			t.Errorf("pods ask %q", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n, began := node(), time.Now()
		for range 3 {
			if got := asks(t, n); len(got) != 0 {
				t.Errorf("pods ask %q", got)
			}
		}
		if waited := time.Since(began); waited != tellTimeout {
			t.Errorf("they waited for %s", waited)
		}
	})
}
