package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"
)

// TestMembersAreBounded: whoever has the gossip's key names members as it likes, and fills no memory; of those that are gone the ones that are
// so for longest make room, and who is known is heard.
func TestMembersAreBounded(t *testing.T) {
	p := &Pool{name: "self", members: map[string]Member{}, subs: map[*Subscription]struct{}{}, log: hclog.NewNullLogger(), forgotten: time.Now()}
	d := delegate{p}
	meta, err := encodeMeta(Meta{Role: RoleWorker, Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	node := func(i int) *memberlist.Node { return &memberlist.Node{Name: fmt.Sprint("n", i), Meta: meta} }
	join := func(i int) error {
		err := d.NotifyAlive(node(i))
		if err == nil {
			d.NotifyJoin(node(i))
		}
		return err
	}
	for i := range maxMembers {
		if err := join(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := join(maxMembers); err == nil {
		t.Error("one more is taken, and none is gone")
	}
	if err := join(0); err != nil {
		t.Errorf("one that is known: %v", err)
	}
	for i := range 100 {
		d.NotifyLeave(node(i))
	}
	for i := range 50 {
		if err := join(maxMembers + i); err != nil {
			t.Errorf("one of %d more, and 100 are gone: %v", i+1, err)
		}
	}
	if n := len(p.members); n > maxMembers {
		t.Errorf("%d members are listed", n)
	}
	for name, listed := range map[string]bool{"n0": false, "n99": true, "n100": true} {
		if _, ok := p.members[name]; ok != listed {
			t.Errorf("%s is listed: %t", name, ok)
		}
	}
	gone := 0
	for _, m := range p.members {
		if m.Status != StatusAlive {
			gone++
		}
	}
	if gone != p.gone {
		t.Errorf("%d members are gone, and %d are counted", gone, p.gone)
	}
	if err := d.NotifyAlive(&memberlist.Node{Name: strings.Repeat("x", maxNameBytes+1), Meta: meta}); err == nil {
		t.Error("a name without a bound is taken")
	}
}
