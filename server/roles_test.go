package server

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/apiserver/roles"
	"github.com/berth-dev/berth/fsm"
)

// A cluster of before there were roles gets them when its servers know of them, and nobody loses anything by that; what its
// administrator takes away then does not come back. A new cluster gives nothing away.
func TestRolesAfterAnUpgrade(t *testing.T) {
	c := newTestCluster(t)
	lines := token + ",admin,1,\"system:masters\"\nann,ann,2,\"people\"\n"
	if err := os.WriteFile(filepath.Join(c.dir, "tokens"), []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	may := func(s *Server, path string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.config.HTTPAddr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer ann")
		resp, err := c.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	const pods, logs = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/pods/none/log"
	began := func(version int) *Server {
		s := c.start("a", func(cfg *Config) { cfg.BootstrapExpect, cfg.MaxLogVersion = 1, version })
		return c.leaderNamed(s)
	}
	s := began(fsm.SinceRoles - 1)
	if s.View().HasRoles() || may(s, pods) != http.StatusOK || may(s, logs) != http.StatusNotFound {
		t.Fatal("a cluster of before has roles, or allows less")
	}
	c.stop(s)
	s = began(0)
	await(t, s, "roles", func(v *fsm.View) bool { return v.Role("", "view") != nil && v.HasRoles() })
	if may(s, pods) != http.StatusOK || may(s, logs) != http.StatusNotFound {
		t.Error("an upgrade has taken something away")
	}
	c.propose(s, &fsm.DeleteObject{Resource: fsm.ClusterRoleBindings, Name: roles.EditApplications})
	if may(s, pods) != http.StatusOK || may(s, logs) != http.StatusForbidden {
		t.Error("what an administrator has taken away counts on, or more than that has gone")
	}
	await(t, s, "what remembers the roles", (*fsm.View).HadRoles)
	c.stop(s)
	s = began(0)
	if code := may(s, logs); code != http.StatusForbidden {
		t.Errorf("what an administrator has taken away has come back: %d", code)
	}
	// Who deletes every last role gives nothing by it, and gets back what every cluster has.
	s.View().Objects.Scan("", func(_ string, o *fsm.Object) bool {
		if fsm.IsRole(o.Resource) {
			c.propose(s, &fsm.DeleteObject{Resource: o.Resource, Namespace: o.Value.GetNamespace(), Name: o.Value.GetName()})
		}
		return true
	})
	if v := s.View(); v.Role("", "view") != nil || !v.HasRoles() || may(s, pods) != http.StatusForbidden {
		t.Error("a cluster whose roles were deleted counts as one of before there were any")
	}
	c.stop(s)
	s = began(0)
	await(t, s, "roles", func(v *fsm.View) bool { return v.Role("", "view") != nil })
	if may(s, pods) != http.StatusForbidden {
		t.Error("who deletes every role gives by it what everybody might before")
	}
	c.stop(s)

	s = c.start("new", func(cfg *Config) { cfg.BootstrapExpect = 1 })
	c.leaderNamed(s)
	await(t, s, "what remembers the roles", (*fsm.View).HadRoles)
	if may(s, pods) != http.StatusForbidden || may(s, "/apis") != http.StatusOK {
		t.Error("a new cluster gives away more than discovery, or not that")
	}
}

// leaderNamed waits until a server leads.
func (c *testCluster) leaderNamed(s *Server) *Server {
	c.t.Helper()
	if leader := c.leader(); leader != s {
		c.t.Fatalf("%s leads", leader.Name())
	}
	return s
}
