package raftnode

import (
	"testing"
	"testing/synctest"
)

func TestElectProposeAndApplyEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.must(namespace())
		index := c.must(create("m", "1"))
		for id, n := range c.nodes {
			if err := n.WaitApplied(c.ctx(), index); err != nil {
				t.Fatal(err)
			}
			if got := value(n.state, "m"); got != "1" {
				t.Errorf("%s has %q", id, got)
			}
		}
		c.same()
	})
}
