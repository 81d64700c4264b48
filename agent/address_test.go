package agent

import "testing"

// TestWhereCommandsReachTheAPI is what the log proposes to whoever has founded a cluster.
func TestWhereCommandsReachTheAPI(t *testing.T) {
	for want, c := range map[string]Config{
		"127.0.0.1:7640":  {BindAddr: "0.0.0.0", Ports: Ports{HTTP: 7640}},
		"[::1]:7640":      {BindAddr: "::", Ports: Ports{HTTP: 7640}},
		"10.0.0.1:17640":  {BindAddr: "10.0.0.1", Ports: Ports{HTTP: 17640}},
		"[fd00::1]:7640":  {BindAddr: "fd00::1", Ports: Ports{HTTP: 7640}},
		"127.0.0.1:PORT":  {BindAddr: "127.0.0.1"},
		"127.0.0.1:17640": {Ports: Ports{HTTP: 17640}},
	} {
		if got := c.apiAddress(); got != want {
			t.Errorf("of %s, %d: got %s, want %s", c.BindAddr, c.Ports.HTTP, got, want)
		}
	}
}
