package cluster

import "testing"

// TestWhoIsThere: a server that waits for others says how many founders are here, and who.
func TestWhoIsThere(t *testing.T) {
	server := func(name string, change func(m *Member)) Member {
		m := Member{Name: name, Status: StatusAlive}
		m.Role, m.BootstrapExpect = RoleServer, 3
		if change != nil {
			change(&m)
		}
		return m
	}
	members := []Member{
		server("s2", nil), server("s1", nil), server("dead", func(m *Member) { m.Status = StatusFailed }),
		server("later", func(m *Member) { m.BootstrapExpect = 0 }), server("w1", func(m *Member) { m.Role = RoleWorker }),
	}
	if got, want := present("s1", members), "2 of 3 are here: s1, s2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
