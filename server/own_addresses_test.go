package server

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
)

// An upgraded cluster gets the range that is configured, and the objects of the addresses that services have; a second
// family is added to the range, and another configuration is told and changes nothing.
func TestAddressesOfBeforeGetTheirObjects(t *testing.T) {
	c := newTestCluster(t)
	began := func(version int, ranges ...string) *Server {
		s := c.start("a", func(cfg *Config) {
			cfg.BootstrapExpect, cfg.MaxLogVersion = 1, version
			for _, r := range ranges {
				cfg.Services.ClusterIPs = append(cfg.Services.ClusterIPs, netip.MustParsePrefix(r))
			}
		})
		return c.leaderNamed(s)
	}
	objectOf := func(v *fsm.View, address string) string {
		o, ok := v.Objects.Get(fsm.ObjectKey(fsm.IPAddresses, "", address))
		if !ok {
			return ""
		}
		p := o.Value.(*networkingv1.IPAddress).Spec.ParentRef
		return p.Resource + "/" + p.Namespace + "/" + p.Name
	}
	ranges := func(v *fsm.View) []string {
		o, ok := v.Objects.Get(fsm.ObjectKey(fsm.ServiceCIDRs, "", defaultRange))
		if !ok {
			return nil
		}
		return o.Value.(*networkingv1.ServiceCIDR).Spec.CIDRs
	}
	s := began(fsm.SinceAddresses - 1)
	web := ownService(metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web"}, "10.96.0.77")
	raw, err := web.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	c.propose(s, &fsm.PutObject{Resource: services, Raw: raw, Create: true})
	await(t, s, "the API's service", func(v *fsm.View) bool { return v.AddressTaken("10.96.0.1") })
	if v := s.View(); objectOf(v, "10.96.0.77") != "" || ranges(v) != nil {
		t.Fatal("a cluster of before has ranges and addresses")
	}
	c.stop(s)
	s = began(0)
	await(t, s, "the objects", func(v *fsm.View) bool {
		return objectOf(v, "10.96.0.77") == "services/default/web" && objectOf(v, "10.96.0.1") == "services/default/kubernetes" &&
			slices.Equal(ranges(v), []string{"10.96.0.0/16"})
	})
	c.stop(s)
	s = began(0, "10.96.0.0/16", "fd00::/112")
	await(t, s, "the second family", func(v *fsm.View) bool { return slices.Equal(ranges(v), []string{"10.96.0.0/16", "fd00::/112"}) })
	c.stop(s)
	s = began(0, "10.98.0.0/16")
	if commands, differs, err := s.ownRange(s.View(), metav1.Now()); err != nil || len(commands) != 0 || !differs {
		t.Errorf("%d commands, differs %t, %v", len(commands), differs, err)
	}
	for _, tt := range []struct {
		address string
		given   bool
	}{{"10.96.0.77", true}, {"10.98.0.1", true}, {"192.0.2.1", false}} {
		service := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: tt.address}}
		if isGiven(s.View(), s.config.Services, service) != tt.given {
			t.Errorf("%s is given: %t", tt.address, !tt.given)
		}
	}
}
