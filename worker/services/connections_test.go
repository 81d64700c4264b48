package services

import (
	"net/netip"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// Who holds as many connections as one may takes none from others, and has as many again once they are closed.
func TestConnectionsOfOne(t *testing.T) {
	r, err := NewResolver(ResolverConfig{Table: NewTable(), Domain: "cluster.local", Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	one, other := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2")
	for range 2 {
		for range connectionsOfOne {
			if !r.enterConn(one) {
				t.Fatal("it has fewer than it may")
			}
		}
		if r.enterConn(one) {
			t.Error("it has more than it may")
		}
		if !r.enterConn(other) {
			t.Error("others have none")
		}
		r.leaveConn(other)
		for range connectionsOfOne {
			r.leaveConn(one)
		}
	}
	if r.conns != 0 || len(r.connsOf) != 0 {
		t.Errorf("%d are left, %v", r.conns, r.connsOf)
	}
}
